//! `vm-operator peerpod`: commands about PeerPods.

use crate::controllers::peerpod::{MANAGER, PeerPodController};
use crate::k8s::cluster::Cluster;
use crate::operator::fatal::Fatal;
use crate::operator::run::own_namespace;
use crate::settings::ConfigFile;
use crate::settings::peerpod::PeerPodSettings;
use std::path::PathBuf;

#[derive(clap::Subcommand)]
pub(super) enum PeerPodCommand {
    /// Print account, place and rights of each configured provider. It changes nothing. The exit code is 1 if something is missing.
    Check(Check),
}

#[derive(clap::Args)]
pub(super) struct Check {
    /// Configuration file [default: /etc/opt/vmoperator/config.yaml, if it exists]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Namespace of the cloud-api-adaptor [default: the one of the pod]
    #[arg(short, long)]
    namespace: Option<String>,
}

pub(super) async fn run(PeerPodCommand::Check(options): PeerPodCommand) -> Result<(), Fatal> {
    let config = ConfigFile::<PeerPodSettings>::load(options.config.as_deref())?;
    let namespace = options.namespace.or_else(own_namespace);
    let namespace = namespace.ok_or(Fatal::NoAdaptorNamespace)?;
    let client = kube::Client::try_from(kube::Config::infer().await?)?;
    let cluster = Cluster::new(client, MANAGER);
    let controller = PeerPodController::new(cluster, namespace, config.settings, environment());
    let findings = controller.check().await;
    for finding in &findings {
        println!("{}", finding.text);
    }
    match findings.iter().filter(|it| !it.is_ok).count() {
        0 => Ok(()),
        failed => Err(Fatal::Check(failed)),
    }
}

/// The variables of the process that sources of credentials read.
pub(super) fn environment() -> std::collections::HashMap<String, String> {
    let variables = std::env::vars();
    variables
        .filter(|(key, _)| key.starts_with("AWS_"))
        .collect()
}
