//! `vm-operator web` and `vm-operator hash-password`.

use crate::k8s::client::gate;
use crate::k8s::cluster::Cluster;
use crate::k8s::tasks::Tasks;
use crate::operator::fatal::Fatal;
use crate::operator::run::{own_namespace, stop_signal, stopped};
use crate::settings::web::{Users, WebSettings};
use crate::settings::{ConfigFile, Section};
use crate::telemetry::logs;
use crate::telemetry::metrics::Metrics;
use crate::web::{self, Console};
use kube::Config;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use std::io::{IsTerminal, Stdin};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;

/// The options of `vm-operator web`.
#[derive(clap::Args)]
pub(super) struct Web {
    /// Configuration file, which the console reads again after a change [default: /etc/opt/vmoperator/config.yaml, if it exists]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// File with users that log in with a password, which the console reads again after a change
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/opt/vm-web/users.yaml"
    )]
    users: PathBuf,
    /// Address and port of the web console
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8080")]
    listen: SocketAddr,
    /// Address and port of the HTTP server with /livez, /readyz and /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8081")]
    http: SocketAddr,
    #[command(flatten)]
    log: logs::Options,
}

/// Runs the web console until the process receives a request to shut down.
pub(super) async fn run(options: Web) -> Result<(), Fatal> {
    let log_level = options.log.begin();
    let config = ConfigFile::<WebSettings>::load(options.config.as_deref())?;
    let users = ConfigFile::<Users>::load_optional(&options.users)?;
    let present = |config: &ConfigFile<WebSettings>, users: &ConfigFile<Users>| {
        let settings = config.settings.clone().with_users(&users.settings);
        if settings.users().is_empty() && settings.providers().is_empty() {
            tracing::warn!(
                "nobody can log in, because no user is configured; add users to users.yaml of the Secret vm-web-users"
            );
        }
        let providers = settings.providers().iter();
        for provider in providers.filter(|provider| provider.authorized_roles.is_empty()) {
            tracing::warn!(
                provider = provider.name,
                "nobody can log in by the provider, because authorizedRoles is empty; add roles, or \"\" for users without a role"
            );
        }
        Arc::new(settings)
    };
    let named = config.settings.namespace().map(str::to_owned);
    let namespace = named.or_else(own_namespace).ok_or(Fatal::NoNamespace)?;
    let metrics = Arc::<Metrics>::default();
    let client = gate::client_without_gate(Config::infer().await?, metrics.clone())?;
    let mut cluster = Cluster::new(client, web::MANAGER);
    cluster.metrics = metrics;
    let events = cluster.events.clone();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), namespace, "starting");
    let (sender, settings) = watch::channel(present(&config, &users));
    let authorities = options.users.with_file_name("ca.crt");
    let console = Console::new(cluster, namespace, settings, &authorities);
    let config_valid = console.metrics.settings_valid("config.yaml");
    let users_valid = console.metrics.settings_valid("users.yaml");
    let mut tasks = Tasks::default();
    console.start(&mut tasks);
    for (name, address, router) in [
        (
            "the web console",
            options.listen,
            web::router(console.clone()),
        ),
        (
            "/livez, /readyz and /metrics",
            options.http,
            web::probes(console),
        ),
    ] {
        let what = format!("serving {name} over HTTP");
        let serving = web::serve(address, router, &what).await;
        let serving = serving.map_err(|e| Fatal::Http(address, e))?;
        tasks.spawn(format!("HTTP server of {name}"), serving);
    }
    let follow_files = async {
        let (mut config, mut users) = (config, users);
        loop {
            tokio::select! {
                changed = config.clone().changed(&config_valid, Some(&log_level)) => {
                    if changed.settings.namespace() != config.settings.namespace() {
                        tracing::warn!("the changed namespace needs a restart of the console");
                    }
                    config = changed;
                }
                changed = users.clone().changed(&users_valid, None) => users = changed,
            }
            tracing::info!("the configuration has changed");
            drop(sender.send_replace(present(&config, &users)));
        }
    };
    let (stop, mut result) = (stop_signal()?, Ok(()));
    let work = async {
        result = tokio::select! {
            () = stopped(stop) => Ok(()),
            ended = tasks.ended() => Err(ended.into()),
            () = follow_files => Ok(()),
        };
    };
    events.publish_during(work).await;
    result
}

/// Reads a password from standard input, and prints its hash.
pub(super) fn hash_password() -> Result<(), Fatal> {
    let line = read_hidden(&std::io::stdin()).map_err(Fatal::Password)?;
    let password = line.trim_end_matches(['\n', '\r']);
    if password.is_empty() || password.len() > web::PASSWORD_MAX {
        return Err(Fatal::PasswordLength(web::PASSWORD_MAX));
    }
    let hash =
        bcrypt::hash(password, web::COST).map_err(|e| Fatal::Password(std::io::Error::other(e)))?;
    println!("{hash}");
    Ok(())
}

/// Reads a line. A terminal does not show it.
fn read_hidden(input: &Stdin) -> std::io::Result<String> {
    let mut line = String::new();
    if !input.is_terminal() {
        input.read_line(&mut line)?;
        return Ok(line);
    }
    eprint!("Password: ");
    let shown = tcgetattr(input)?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    tcsetattr(input, OptionalActions::Flush, &hidden)?;
    let read = input.read_line(&mut line);
    tcsetattr(input, OptionalActions::Flush, &shown)?;
    eprintln!();
    read.map(|_| line)
}
