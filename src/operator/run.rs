//! Runs the selected controllers: API client, leader election, HTTP pages, and shutdown.

use crate::k8s::client::gate;
use crate::k8s::client::timeout::Deadlines;
use crate::k8s::cluster::Cluster;
use crate::k8s::leader::{Candidate, Leadership, LeadershipLost, identity};
use crate::k8s::registry::Registry;
use crate::operator::fatal::Fatal;
use crate::operator::http;
use crate::operator::set::{ControllerName, ControllerSet, SetDefinition, Start};
use crate::settings::{ConfigFile, Section};
use crate::telemetry::logs::{self, LogLevel};
use crate::telemetry::metrics::Metrics;
use axum::Router;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use kube::{Api, Config};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Time for the reconciles in progress after a request to shut down. The kubelet kills the operator after 30 s.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// The options of `vm-operator run`.
#[derive(clap::Args)]
pub(super) struct Run {
    /// Controllers to run, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "vm,pool")]
    pub(super) controllers: Vec<ControllerName>,
    /// Configuration file, which the operator reads again after a change [default: /etc/opt/vmoperator/config.yaml, if it exists]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port of the HTTP server with /livez, /readyz and /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8081")]
    http: SocketAddr,
    #[command(flatten)]
    log: logs::Options,
}

pub(super) fn own_namespace() -> Option<String> {
    let namespace =
        std::fs::read_to_string("/var/run/secrets/kubernetes.io/serviceaccount/namespace").ok()?;
    Some(namespace.trim().to_owned()).filter(|namespace| !namespace.is_empty())
}

/// The parts of the operator that a restart with another configuration retains.
struct Process {
    identity: String,
    metrics: Arc<Metrics>,
    log_level: Arc<LogLevel>,
    pages: watch::Sender<Router>,
    stop: watch::Receiver<bool>,
}

/// Runs a set of controllers until the process receives a request to shut down.
pub(super) async fn operate<S: ControllerSet>(run: Run) -> Result<(), Fatal> {
    let log_level = Arc::new(run.log.begin());
    let mut config = ConfigFile::<S::Settings>::load(run.config.as_deref())?;
    let pages = http::serve(run.http)
        .await
        .map_err(|e| Fatal::Http(run.http, e))?;
    let process = Process {
        identity: own_identity(),
        metrics: Arc::default(),
        log_level,
        pages,
        stop: stop_signal()?,
    };
    (S::DEFINITION.metrics)(&process.metrics);
    loop {
        match operate_with::<S>(config.clone(), &run.controllers, &process).await? {
            End::Stopped => return Ok(()),
            End::Reconfigured(changed) => {
                tracing::info!(
                    "the configuration has changed; the controllers start again with the new configuration"
                );
                config = *changed;
            }
            End::NoLeader(lost) => {
                tracing::error!(
                    "{lost}; another operator may be the leader, so this operator starts again as a standby"
                );
            }
        }
    }
}

/// The cause of the end of [`operate_with`].
enum End<S> {
    /// The process received a request to shut down.
    Stopped,
    /// The configuration has changed.
    Reconfigured(Box<ConfigFile<S>>),
    /// This operator is not the leader any more. Its client sends no write.
    NoLeader(LeadershipLost),
}

/// Runs the operator until its end. Before it returns a new configuration, reconciles have finished and the Lease is released, so
/// that never two configurations are in use.
async fn operate_with<S: ControllerSet>(
    config: ConfigFile<S::Settings>,
    controllers: &[ControllerName],
    process: &Process,
) -> Result<End<S::Settings>, Fatal> {
    let settings = config.settings.clone();
    let namespace = settings
        .namespace()
        .map(str::to_owned)
        .or_else(own_namespace);
    let namespace = namespace.ok_or(Fatal::NoNamespace)?;
    let leadership = Leadership::waiting();
    let access = Config::infer().await?;
    let leases = gate::client_without_gate(access.clone(), process.metrics.clone())?;
    let leases = Api::namespaced(leases, &namespace);
    let lease = S::DEFINITION.lease;
    let mut candidate = Candidate::new(leases, lease, &process.identity, leadership.clone());
    let cluster = cluster(access, leadership, process.metrics.clone(), &S::DEFINITION)?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), namespace, "starting");

    let end = end(config, process);
    let controllers_stop = end.clone().map(drop).boxed().shared();
    let mut start = Start::new(cluster, namespace, controllers_stop);
    S::start(controllers, &settings, &mut start);
    let Start {
        pages,
        runs,
        mut tasks,
        ..
    } = start;
    let registry = pages.registry.clone();
    drop(process.pages.send_replace(pages.router()));
    let election = async {
        // A process without complete stores must not become the leader.
        registry.ready().await;
        candidate.run().await
    };
    tokio::select! {
        lost = election => return Ok(End::NoLeader(lost)),
        ended = tasks.ended() => return Err(ended.into()),
        _ = futures::future::join_all(runs) => {}
        // A write may still be in progress, so the Lease is not released but expires.
        () = shutdown_timeout(&registry, process) => return Ok(End::Stopped),
    }
    // Tasks make calls to services outside the cluster too, which must end before another operator leads.
    tasks.stop().await;
    candidate.release().await;
    Ok(end
        .await
        .map_or(End::Stopped, |changed| End::Reconfigured(Box::new(changed))))
}

/// Completes at the request to shut down, or with a changed configuration.
fn end<S: Section>(
    config: ConfigFile<S>,
    process: &Process,
) -> Shared<BoxFuture<'static, Option<ConfigFile<S>>>> {
    let (signal, log_level) = (stopped(process.stop.clone()), process.log_level.clone());
    let valid = process.metrics.settings_valid.clone();
    let end = async move {
        tokio::select! {
            () = signal => None,
            changed = config.changed(&valid, Some(&log_level)) => Some(changed),
        }
    };
    end.boxed().shared()
}

/// Completes when the reconciles in progress at the request to shut down have had their time.
async fn shutdown_timeout(registry: &Registry, process: &Process) {
    stopped(process.stop.clone()).await;
    tracing::info!("the operator shuts down and waits for the reconciles in progress");
    // Before the first lists, no reconcile can be in progress.
    if registry.missing().is_empty() {
        tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
    }
}

fn cluster(
    access: Config,
    leadership: Leadership,
    metrics: Arc<Metrics>,
    set: &SetDefinition,
) -> Result<Cluster, Fatal> {
    let deadlines = Deadlines::default();
    let client = gate::client(access, metrics.clone(), leadership.clone(), deadlines)?;
    let mut cluster = Cluster::new(client, set.manager);
    (cluster.leadership, cluster.metrics) = (leadership, metrics);
    cluster.foreign = set.foreign;
    Ok(cluster)
}

/// Identity of this process in the Lease. The host name is the pod's name; the Deployment sets `POD_UID`.
fn own_identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let pod_uid = std::env::var("POD_UID").ok();
    let random = format!(
        "{:x}-{}",
        jiff::Timestamp::now().as_nanosecond(),
        std::process::id()
    );
    identity(
        host.as_deref().map(str::trim),
        pod_uid.as_deref().filter(|uid| !uid.is_empty()),
        &random,
    )
}

/// Returns a channel that becomes true with the first SIGTERM or SIGINT. The second signal exits the process immediately.
pub(super) fn stop_signal() -> Result<watch::Receiver<bool>, Fatal> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Fatal::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Fatal::Signals)?;
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            if stop.send_replace(true) {
                std::process::exit(1);
            }
        }
    });
    Ok(stopped)
}

pub(super) async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error means that the sender is dropped, which never happens.
    let _ = stop.wait_for(|stop| *stop).await;
}
