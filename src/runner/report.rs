//! (client) Reports the VM's status to the API server. Only the newest status counts, and no other task waits for it.
//!
//! The pod's environment selects the target: the `VmReport` with the pod's UID as its name, or the VM in pods of
//! operators that have no `VmReport`. The operator creates the report, copies it into the VM's status and publishes the
//! events. While the report does not exist, the runner retries, because the operator has not created it yet.
//!
//! Invariants: it writes the runner's own fields only, to its report or to the VM with the configured UID. An
//! unreachable API server delays the report and nothing else.

use crate::api::vm::names;
use crate::api::{VirtualMachine, VmReport};
use crate::k8s::client::connect;
use crate::runner::state::Phase;
use crate::runner::status::{Announcement, Identity, Observed};
use http::header::{ACCEPT, HeaderValue};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, PartialObjectMeta, Request};
use kube::{Api, Client, Config, Resource};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

/// Maximum duration of a request to the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for the last report, which delays the exit of the pod.
const LAST_REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Media type that requests only the metadata of an object from the API server.
const METADATA_ONLY: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
/// Maximum number of attempts of a write after conflicts with writes of other clients.
const CONFLICT_ATTEMPTS: u32 = 4;
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

/// The task that writes the newest status, and its inputs.
pub struct Reporter {
    newest: watch::Sender<Observed>,
    notes: mpsc::Sender<Announcement>,
    task: JoinHandle<()>,
}

impl Reporter {
    /// Starts with a first status. Without an identity the runner writes no reports.
    pub fn start(identity: Option<Identity>, first: Observed) -> Self {
        let (newest, statuses) = watch::channel(first);
        let (notes, queue) = mpsc::channel(16);
        let task = tokio::spawn(async move {
            if let Some(identity) = identity {
                Task {
                    identity,
                    statuses,
                    queue,
                    client: None,
                    written: Vec::new(),
                }
                .run()
                .await;
            }
        });
        Self {
            newest,
            notes,
            task,
        }
    }

    /// Replaces the status that is written next.
    pub fn publish(&self, observed: &Observed) {
        self.newest.send_if_modified(|newest| {
            let changed = newest != observed;
            newest.clone_from(observed);
            changed
        });
    }

    /// Writes an event for the announcement.
    pub fn announce(&self, note: Announcement) {
        let _ = self.notes.try_send(note);
    }

    /// Writes the newest status, within a time limit, and stops.
    pub async fn finish(self) {
        let Self {
            newest,
            notes,
            task,
        } = self;
        drop((newest, notes));
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
    #[error(
        "the VirtualMachine object of this pod was deleted, and a new object has the same name"
    )]
    PreviousVm,
}

impl Error {
    /// Whether the VM was deleted. A new VM may have its name.
    fn is_gone(&self) -> bool {
        matches!(self, Self::PreviousVm) || self.code() == Some(404)
    }

    /// Whether another client has written to the object between read and write.
    fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Api(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }
}

struct Task {
    identity: Identity,
    statuses: watch::Receiver<Observed>,
    queue: mpsc::Receiver<Announcement>,
    client: Option<Client>,
    written: Vec<Condition>,
}

impl Task {
    /// Writes the newest status after each change. Returns after the last status, or when the VM is deleted.
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
                Ok(()) => {
                    (last, backoff) = (Some(newest), Duration::ZERO);
                    while let Ok(announcement) = self.queue.try_recv() {
                        self.write_event(&announcement).await;
                    }
                }
                Err(error) if error.is_gone() && self.identity.pod_uid.is_none() => {
                    return tracing::warn!(%error, "the VM was deleted, so the runner no longer writes its status");
                }
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

    async fn write(&mut self, observed: &Observed) -> Result<(), Error> {
        if let Some(pod) = self.identity.pod_uid.clone() {
            return self.write_report(&pod, observed).await;
        }
        let (object, conditions) = observed.object(&self.identity, &self.written, Timestamp::now());
        self.apply(object).await?;
        self.written = conditions;
        Ok(())
    }

    /// Writes all fields of the report. No other client writes them, so conflicts are impossible.
    async fn write_report(&mut self, pod: &str, observed: &Observed) -> Result<(), Error> {
        let status = observed.report(&self.written, Timestamp::now());
        let resource = ApiResource::erase::<VmReport>(&());
        let object = serde_json::json!({
            "apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": pod}, "status": status,
        });
        let client = self.client().await?;
        let api: Api<DynamicObject> =
            Api::namespaced_with(client, &self.identity.namespace, &resource);
        let parameters = PatchParams::apply(names::MANAGER_RUNNER).force();
        in_time(api.patch_status(pod, &parameters, &Patch::Apply(&object))).await?;
        self.written = status.conditions;
        Ok(())
    }

    /// Applies the status to the VM with the runner's UID. The API server ignores the UID in a write to a status. The runner
    /// therefore reads UID and resource version first, and writes only to that resource version.
    async fn apply(&mut self, mut object: serde_json::Value) -> Result<(), Error> {
        let client = self.client().await?;
        let resource = ApiResource::erase::<VirtualMachine>(&());
        let api: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), &self.identity.namespace, &resource);
        let parameters = PatchParams::apply(names::MANAGER_RUNNER).force();
        for attempt in 1.. {
            let present = self.read_metadata(&client).await?;
            if self.identity.uid.is_some() && present.uid != self.identity.uid {
                return Err(Error::PreviousVm);
            }
            if let Some(metadata) = object
                .get_mut("metadata")
                .and_then(serde_json::Value::as_object_mut)
            {
                metadata.insert(
                    "resourceVersion".to_owned(),
                    present.resource_version.into(),
                );
            }
            let patch = Patch::Apply(&object);
            match in_time(api.patch_status(&self.identity.name, &parameters, &patch)).await {
                Err(error) if error.is_conflict() && attempt < CONFLICT_ATTEMPTS => {}
                answer => return answer.map(drop),
            }
        }
        Ok(())
    }

    /// Reads the VM's metadata by a dry run of a write without changes. A role for reading would allow all VMs of the namespace
    /// with the secrets in their `cloudInit`, but the admission policy restricts writes to the runner's own VM.
    async fn read_metadata(&self, client: &Client) -> Result<ObjectMeta, Error> {
        let path = VirtualMachine::url_path(&(), Some(&self.identity.namespace));
        let parameters = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let nothing = Patch::Merge(serde_json::json!({}));
        let request = Request::new(path).patch_subresource(
            "status",
            &self.identity.name,
            &parameters,
            &nothing,
        );
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        request.headers_mut().insert(ACCEPT, METADATA_ONLY);
        Ok(
            in_time(client.request::<PartialObjectMeta<VirtualMachine>>(request))
                .await?
                .metadata,
        )
    }

    /// Writes an event without retries, because events are optional. The operator publishes the events of a report.
    async fn write_event(&mut self, announcement: &Announcement) {
        if self.identity.pod_uid.is_some() {
            return;
        }
        let event = event(&self.identity, announcement, Timestamp::now());
        let Ok(client) = self.client().await else {
            return;
        };
        let api: Api<Event> = Api::namespaced(client, &self.identity.namespace);
        match timeout(REQUEST_TIMEOUT, api.create(&PostParams::default(), &event)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the runner cannot create a Kubernetes event about the VM; the event is lost")
            }
            Err(_) => {
                tracing::warn!(
                    "the API server has not accepted an event about the VM within {REQUEST_TIMEOUT:?}; the event may be lost"
                );
            }
        }
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

fn event(identity: &Identity, note: &Announcement, now: Timestamp) -> Event {
    let type_ = if note.is_warning() {
        "Warning"
    } else {
        "Normal"
    };
    let (action, reason, note) = note.texts();
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", identity.name)),
            namespace: Some(identity.namespace.clone()),
            ..ObjectMeta::default()
        },
        action: Some(action.to_owned()),
        event_time: Some(MicroTime(now)),
        note: Some(note),
        reason: Some(reason.to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some(format!("{}/{}", names::GROUP, names::VERSION)),
            kind: Some("VirtualMachine".to_owned()),
            name: Some(identity.name.clone()),
            namespace: Some(identity.namespace.clone()),
            uid: identity.uid.clone(),
            ..ObjectReference::default()
        }),
        reporting_controller: Some(names::REPORTER_RUNNER.to_owned()),
        reporting_instance: Some(identity.name.clone()),
        type_: Some(type_.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests;
