//! (client) Reports the VM's status to the API server. Only the newest status counts, and no other task waits for it.
//!
//! The runner writes to one object, the `VmReport` with the pod's UID as its name. The operator creates the report, copies
//! it into the VM's status and publishes the events. While the report does not exist, the runner retries, because the
//! operator has not created it yet. Outside of a pod of the operator, there is no report.
//!
//! An unreachable API server delays the report and nothing else.

use crate::api::VmReport;
use crate::api::vm::names;
use crate::k8s::client::connect;
use crate::runner::state::Phase;
use crate::runner::status::Observed;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Api, Client, Config};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

/// Maximum duration of a request to the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for the last report, which delays the exit of the pod.
const LAST_REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum time between two writes. Related changes occur within this time, also on a busy node, so that one write reports them.
const REPORT_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Maximum delay of the first write, which waits for QEMU so that one write reports the start and QEMU. Until then the operator's
/// status describes the VM.
const FIRST_REPORT_DELAY_MAX: Duration = Duration::from_secs(10);
/// Minimum time between two writes if only the guest's memory has changed. A balloon changes the memory for up to a minute.
const MEMORY_REPORT_INTERVAL_MIN: Duration = Duration::from_secs(5);
/// Backoff after a failed write; each further failure doubles it.
const BACKOFF_MIN: Duration = Duration::from_millis(300);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// The report of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportKey {
    pub namespace: String,
    /// UID of the pod.
    pub name: String,
}

/// The task that writes the newest status, and its input.
pub struct Reporter {
    newest: watch::Sender<Observed>,
    task: JoinHandle<()>,
}

impl Reporter {
    /// Starts with a first status. Without a key the runner writes no reports.
    pub fn start(key: Option<ReportKey>, first: Observed) -> Self {
        let (newest, statuses) = watch::channel(first);
        let task = tokio::spawn(async move {
            if let Some(key) = key {
                Task {
                    key,
                    statuses,
                    client: None,
                    written: Vec::new(),
                }
                .run()
                .await;
            }
        });
        Self { newest, task }
    }

    /// Replaces the status that is written next.
    pub fn publish(&self, observed: &Observed) {
        self.newest.send_if_modified(|newest| {
            let changed = newest != observed;
            newest.clone_from(observed);
            changed
        });
    }

    /// Writes the newest status, within a time limit, and stops.
    pub async fn finish(self) {
        let Self { newest, task } = self;
        drop(newest);
        if timeout(LAST_REPORT_TIMEOUT, task).await.is_err() {
            tracing::warn!(
                timeout_seconds = LAST_REPORT_TIMEOUT.as_secs(),
                "the runner exits, but the API server has not accepted the last \
                status of the VM in time; the status in the API server may be outdated"
            );
        }
    }
}

/// The error of a failed write.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the API server has not answered within {REQUEST_TIMEOUT:?}")]
    Timeout,
    #[error("{0}")]
    Api(#[from] kube::Error),
    #[error("{0}")]
    InCluster(#[from] kube::config::InClusterError),
    #[error("{0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
}

impl Error {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Api(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }
}

struct Task {
    key: ReportKey,
    statuses: watch::Receiver<Observed>,
    client: Option<Client>,
    written: Vec<Condition>,
}

impl Task {
    /// Writes the newest status after each change. Returns after the last status.
    async fn run(mut self) {
        // Also `None` after a failed write, because the API server may have executed it.
        let mut last: Option<Observed> = None;
        let (mut attempted, mut backoff) = (Instant::now(), Duration::ZERO);
        loop {
            let closed = self.statuses.has_changed().is_err();
            let newest = self.statuses.borrow_and_update().clone();
            let pause = match &last {
                Some(last) if *last == newest && closed => return,
                Some(last) if *last == newest => {
                    let _ = self.statuses.changed().await;
                    continue;
                }
                Some(_) if closed => Duration::ZERO,
                Some(last) => report_interval(last, &newest),
                None if closed => backoff.min(BACKOFF_MIN),
                None if newest.phase == Phase::Starting => backoff.max(FIRST_REPORT_DELAY_MAX),
                None => backoff,
            };
            if attempted.elapsed() < pause {
                tokio::select! {
                    () = sleep_until(attempted + pause) => {}
                    _ = self.statuses.changed(), if !closed => {}
                }
                continue;
            }
            match self.write(&newest).await {
                Ok(()) => (last, backoff) = (Some(newest), Duration::ZERO),
                Err(error) => {
                    tracing::warn!(%error, "cannot write the VM's status to the API server; the runner retries");
                    // Address, certificate authority and credentials may have changed, so a new client reads them again.
                    self.client
                        .take_if(|_| matches!(error.code(), None | Some(401)));
                    (last, backoff) = (None, (backoff * 2).clamp(BACKOFF_MIN, BACKOFF_MAX));
                }
            }
            attempted = Instant::now();
        }
    }

    /// Writes all fields of the report. No other client writes them, so conflicts are impossible.
    async fn write(&mut self, observed: &Observed) -> Result<(), Error> {
        let status = observed.report(&self.written, Timestamp::now());
        let resource = ApiResource::erase::<VmReport>(&());
        let object = serde_json::json!({
            "apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": self.key.name}, "status": status,
        });
        let client = self.client().await?;
        let api: Api<DynamicObject> = Api::namespaced_with(client, &self.key.namespace, &resource);
        let parameters = PatchParams::apply(names::MANAGER_RUNNER).force();
        in_time(api.patch_status(&self.key.name, &parameters, &Patch::Apply(&object))).await?;
        self.written = status.conditions;
        Ok(())
    }

    async fn client(&mut self) -> Result<Client, Error> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = connect().await?;
        self.client = Some(client.clone());
        Ok(client)
    }
}

/// The time from a write of `last` to that of `newest`. The phase is reported at once, as users wait for it.
fn report_interval(last: &Observed, newest: &Observed) -> Duration {
    if last.phase != newest.phase {
        Duration::ZERO
    } else if (Observed {
        ram: last.ram,
        ..newest.clone()
    }) == *last
    {
        MEMORY_REPORT_INTERVAL_MIN
    } else {
        REPORT_INTERVAL_MIN
    }
}

async fn connect() -> Result<Client, Error> {
    // The rest of this program needs no cryptography, so the provider is installed here.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = match std::env::var_os("KUBECONFIG") {
        Some(_) => Config::from_kubeconfig(&kube::config::KubeConfigOptions::default()).await?,
        None => Config::incluster()?,
    };
    Ok(connect::builder(config)?.build())
}

async fn in_time<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    Ok(timeout(REQUEST_TIMEOUT, request)
        .await
        .map_err(|_| Error::Timeout)??)
}

#[cfg(test)]
mod tests;
