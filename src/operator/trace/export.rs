//! (client) Sends traces to an OpenTelemetry collector, if the settings name one; else there is nothing to do.
//!
//! By the HTTP client that talks to the API server, and in JSON: the crates that speak this protocol would add more to
//! the program than everything that is said by it.

use super::super::context::Context;
use super::{Trace, otlp};
use http::Request;
use kube::client::Body;
use kube::{Client, Config};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// How many traces wait at most. Whoever starts more VMs than a collector takes, loses traces and no VM.
const WAITING: usize = 256;
/// How many are sent at once.
const AT_ONCE: usize = 64;
/// Time that the collector has to take them.
const DEADLINE: Duration = Duration::from_secs(10);

/// Where traces are handed in.
pub type Sender = mpsc::Sender<Trace>;

/// Where they are taken out.
pub type Receiver = mpsc::Receiver<Trace>;

/// The way of traces to [`forever`].
#[must_use]
pub fn channel() -> (Sender, Receiver) {
    mpsc::channel(WAITING)
}

/// Sends what is handed in, to where the settings say at that moment. One that cannot be sent is lost, as is said once
/// until it works again.
pub async fn forever(ctx: Arc<Context>, mut traces: Receiver) {
    let mut collector: Option<(String, Client)> = None;
    let mut failed = false;
    let mut batch = Vec::new();
    while traces.recv_many(&mut batch, AT_ONCE).await > 0 {
        let sent = std::mem::take(&mut batch);
        let Some(endpoint) = ctx.settings().reconciler.traces_endpoint.clone() else { continue };
        let result = async {
            let client = match collector.take().filter(|(of, _)| *of == endpoint) {
                Some((_, client)) => client,
                None => client(&endpoint)?,
            };
            let client = &collector.insert((endpoint.clone(), client)).1;
            send(client, &sent, &ctx.namespace).await
        };
        match result.await {
            Ok(()) if failed => {
                failed = false;
                tracing::info!(endpoint, "the collector takes traces again");
            }
            Ok(()) => {}
            Err(error) if failed => tracing::debug!(endpoint, error, "traces are lost"),
            Err(error) => {
                failed = true;
                tracing::warn!(
                    endpoint,
                    error,
                    "traces are lost; see openTelemetry.endpoint in the ConfigMap vm-operator"
                );
            }
        }
    }
}

fn client(endpoint: &str) -> Result<Client, String> {
    let endpoint = endpoint.parse().map_err(|e| format!("no address: {e}"))?;
    let mut config = Config::new(endpoint);
    (config.connect_timeout, config.read_timeout, config.write_timeout) =
        (Some(DEADLINE), Some(DEADLINE), Some(DEADLINE));
    Client::try_from(config).map_err(|e| e.to_string())
}

async fn send(client: &Client, traces: &[Trace], namespace: &str) -> Result<(), String> {
    let body = otlp::request(traces, namespace).to_string().into_bytes();
    let request = Request::post("/v1/traces").header("content-type", "application/json").body(Body::from(body));
    let request = request.map_err(|e| e.to_string())?;
    let answer = tokio::time::timeout(DEADLINE, client.send(request)).await;
    let answer = answer.map_err(|_| format!("no answer within {DEADLINE:?}"))?.map_err(|e| e.to_string())?;
    if answer.status().is_success() { Ok(()) } else { Err(format!("the collector answers {}", answer.status())) }
}
