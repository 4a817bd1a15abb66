//! (client) Reports the VM's status to the API server. Only the newest status counts, and no other task waits for it.
//!
//! The pod decides where the runner reports: to the `VmReport` with the pod's UID as its name, or, in pods of earlier operators, to
//! the VM. The operator creates the report, copies it into the VM's status and publishes the events. A missing report is one that
//! the operator has not created yet.
//!
//! Invariants: it writes the runner's own fields only, to its report or to the VM with the configured UID. An unreachable API server
//! delays the report and nothing else.

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

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// For the last report, which the end of the pod waits for.
const LAST_REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Asks the API server for an object's metadata without the rest.
const METADATA_ONLY: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
/// Attempts of a write that follow each other at once where other clients write to the object too.
const CONFLICT_ATTEMPTS: u32 = 4;
/// Between two writes: changes come in groups, and on a busy node the changes of a group come up to a second apart.
const SPACING: Duration = Duration::from_secs(1);
/// Before the first write, unless QEMU runs earlier: one write then reports both. Until then the operator's status describes the VM.
const START_SPACING: Duration = Duration::from_secs(10);
/// Between two writes if only the guest's memory has changed: a balloon takes a minute to move.
const MEMORY_SPACING: Duration = Duration::from_secs(5);
/// The pause after a failed write; each further failure doubles it.
const BACKOFF_MIN: Duration = Duration::from_millis(300);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Takes what is to be reported.
pub struct Reporter {
    newest: watch::Sender<Observed>,
    notes: mpsc::Sender<Announcement>,
    task: JoinHandle<()>,
}

impl Reporter {
    /// Starts with a first status. Without an identity nothing is reported to anybody.
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

    /// Replaces what is to be reported.
    pub fn publish(&self, observed: &Observed) {
        self.newest.send_if_modified(|newest| {
            let changed = newest != observed;
            newest.clone_from(observed);
            changed
        });
    }

    /// Makes an event of it.
    pub fn announce(&self, note: Announcement) {
        let _ = self.notes.try_send(note);
    }

    /// Tells the rest, as far as time allows.
    pub async fn finish(self) {
        let Self {
            newest,
            notes,
            task,
        } = self;
        drop((newest, notes));
        if timeout(LAST_REPORT_TIMEOUT, task).await.is_err() {
            tracing::warn!("the last report has not reached the API server in time");
        }
    }
}

/// Why something was not written.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the API server has not answered in time")]
    Timeout,
    #[error("{0}")]
    Api(#[from] kube::Error),
    #[error("{0}")]
    InCluster(#[from] kube::config::InClusterError),
    #[error("{0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    #[error("the VM of that name is another one by now")]
    PreviousVm,
}

impl Error {
    /// Whether the VM's object is no more: deleted, or another one of the same name.
    fn is_gone(&self) -> bool {
        matches!(self, Self::PreviousVm) || self.code() == Some(404)
    }

    /// Whether somebody else has written to the object in between.
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
    /// Writes each status that is still the newest at its time; ends after the last one, or when the VM's object is gone.
    async fn run(mut self) {
        // None after a failed write, too: it may have reached the API server.
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
                Some(last) => spacing(last, &newest),
                None if closed => backoff.min(BACKOFF_MIN),
                None if newest.phase == Phase::Starting => backoff.max(START_SPACING),
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
                    while let Ok(note) = self.queue.try_recv() {
                        self.note(&note).await;
                    }
                }
                Err(error) if error.is_gone() && self.identity.pod_uid.is_none() => {
                    return tracing::warn!(%error, "the VM's object is gone; nothing is reported any more");
                }
                Err(error) => {
                    tracing::warn!(%error, "the status was not written; trying again");
                    // Address, certificate authority or credentials may have changed: they are read again.
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

    /// Writes all fields of the report. Nobody else writes them, so that no conflict is possible.
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

    /// Applies the status. The API server does not look at the UID in a write to a status, so the object is looked at
    /// first, and written only as long as it is the one that was seen.
    async fn apply(&mut self, mut object: serde_json::Value) -> Result<(), Error> {
        let client = self.client().await?;
        let resource = ApiResource::erase::<VirtualMachine>(&());
        let api: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), &self.identity.namespace, &resource);
        let parameters = PatchParams::apply(names::MANAGER_RUNNER).force();
        for attempt in 1.. {
            let seen = self.read_metadata(&client).await?;
            if self.identity.uid.is_some() && seen.uid != self.identity.uid {
                return Err(Error::PreviousVm);
            }
            if let Some(metadata) = object
                .get_mut("metadata")
                .and_then(serde_json::Value::as_object_mut)
            {
                metadata.insert("resourceVersion".to_owned(), seen.resource_version.into());
            }
            let patch = Patch::Apply(&object);
            match in_time(api.patch_status(&self.identity.name, &parameters, &patch)).await {
                Err(error) if error.is_conflict() && attempt < CONFLICT_ATTEMPTS => {}
                answer => return answer.map(drop),
            }
        }
        Ok(())
    }

    /// The VM's metadata, by a write that changes nothing and is not kept. A role could allow reading for all VMs of the
    /// namespace only, with what is in their `cloudInit`; a write is held to the runner's own VM by the admission policy.
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

    /// An event is a courtesy: it is tried once. The operator publishes the events of a report.
    async fn note(&mut self, note: &Announcement) {
        if self.identity.pod_uid.is_some() {
            return;
        }
        let event = event(&self.identity, note, Timestamp::now());
        let Ok(client) = self.client().await else {
            return;
        };
        let api: Api<Event> = Api::namespaced(client, &self.identity.namespace);
        match timeout(REQUEST_TIMEOUT, api.create(&PostParams::default(), &event)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "an event was not written"),
            Err(_) => tracing::warn!("an event was not written in time"),
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
fn spacing(last: &Observed, newest: &Observed) -> Duration {
    if last.phase != newest.phase {
        Duration::ZERO
    } else if (Observed {
        ram: last.ram,
        ..newest.clone()
    }) == *last
    {
        MEMORY_SPACING
    } else {
        SPACING
    }
}

async fn connect() -> Result<Client, Error> {
    // Signing keys are needed nowhere else in this program.
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
