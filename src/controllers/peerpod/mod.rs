//! The controller of `PeerPod`: no cloud instance outlives its pod.
//!
//! ```text
//! facts ──► decide ──► read the pod, describe the instance ──► decide ──► delete, release or wait
//! (store)   (pure)     (only if the decision needs it)         (pure)     (one write; status, event)
//! ```
//!
//! Calls to services outside the cluster run beside the reconciles (`calls.rs`). A reconcile that needs one ends, and the answer begins
//! another.
//!
//! The controller never adds the finalizer: its absence means that the cloud-api-adaptor has deleted the instance.

mod adaptor;
mod aws;
mod calls;
pub mod check;
mod decide;
mod facts;
mod failure;
mod gate;
mod libvirt;
pub mod metrics;
mod report;
mod sweep;
mod virtual_machine;

use crate::api::peerpod::{PeerPodReason, VirtualMachineId, names};
use crate::api::{PeerPod, VirtualMachine};
use crate::controllers::peerpod::adaptor::AdaptorConfig;
use crate::controllers::peerpod::calls::{Job, Queues};
use crate::controllers::peerpod::decide::{
    Answer, Decision, InstanceId, InstanceState, Read, Release, decide,
};
use crate::controllers::peerpod::facts::{Facts, Owner, Relations, Seen};
use crate::controllers::peerpod::failure::Failure;
use crate::controllers::peerpod::libvirt::OpenSocket;
use crate::controllers::peerpod::metrics::PeerPodMetrics;
use crate::https::{HttpsClient, HttpsError};
use crate::k8s::cluster::{Cluster, Manager};
use crate::k8s::controller::{Outcome, Reconciler};
use crate::k8s::error::Error;
use crate::k8s::follow::{self, Changes};
use crate::k8s::key::ObjectKey;
use crate::k8s::registry::Registry;
use crate::k8s::state::States;
use crate::k8s::store::primary::PrimaryStore;
use crate::k8s::undecodable::{StandIn, Undecodable, decoded_in};
use crate::k8s::views::PodView;
use crate::k8s::watch::Namespaces;
use crate::k8s::writer::{Writer, only_uid};
use crate::settings::peerpod::PeerPodSettings;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use kube::api::PropagationPolicy;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Config;
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;

pub use libvirt::Socket;

/// The controller as field manager and as reporter of events.
pub const MANAGER: Manager = Manager {
    field_manager: names::MANAGER,
    reporter: names::REPORTER,
    action: names::ACTION,
};

/// Delay before the request is sent again that the API server has denied, or whose kind it does not know.
const DENIED_RECHECK: Duration = Duration::from_secs(60);

/// The remembered state of a `PeerPod`.
#[derive(Debug, Default)]
pub struct PeerPodState {
    /// UID of the object that the state is about.
    uid: Option<String>,
    /// The first sight of the end of its pod, or of a younger `PeerPod`.
    free_since: Option<Instant>,
    /// Whether a call about the instance waits or is in progress.
    is_asked: bool,
    /// The result of the last call, until a reconcile reads it.
    result: Option<Result<Answer, Failure>>,
    /// Failed calls since the last change of the answer or of the configuration.
    failures: u32,
    /// State and place of the last answer.
    answered: Option<(InstanceState, String)>,
    /// The first of the last answers of the provider, all of the same place and without the instance.
    absent_since: Option<Instant>,
    /// Time between that answer and the last one.
    absent: Duration,
    /// Whether this process has deleted the instance.
    has_deleted: bool,
    /// Whether this process has reported that a person has abandoned the instance.
    has_warned: bool,
    /// The reason of the last report.
    reason: Option<PeerPodReason>,
    /// The last report. The definition of confidential containers has no conditions, so the status may not keep it.
    reported: Option<String>,
}

/// Creates the client for the services of providers. It trusts public certificate authorities and those of the argument.
type NewHttpsClient = Box<dyn Fn(&[u8]) -> Result<HttpsClient, HttpsError> + Send + Sync>;

/// The controller.
pub struct PeerPodController {
    cluster: Cluster,
    /// Namespace of the controller.
    namespace: String,
    settings: PeerPodSettings,
    states: States<PeerPodState>,
    peerpods: Arc<PrimaryStore<PeerPod>>,
    relations: Arc<Relations>,
    undecodable: [Arc<Undecodable>; 1],
    /// UID of the namespace `kube-system`, which identifies the cluster.
    cluster_uid: OnceCell<String>,
    metrics: Arc<PeerPodMetrics>,
    /// Variables of the process that sources of credentials read.
    environment: HashMap<String, String>,
    /// Creates the client for the services of providers.
    pub https: NewHttpsClient,
    /// Opens sockets of libvirt on this machine.
    pub open_socket: OpenSocket,
    calls: Queues,
    changes: OnceLock<Changes<PeerPod>>,
}

impl PeerPodController {
    /// A controller with an empty store. `namespace` is its own. `environment` are the variables of the process that begin with `AWS_`.
    #[must_use]
    pub fn new(
        cluster: Cluster,
        namespace: String,
        settings: PeerPodSettings,
        environment: HashMap<String, String>,
    ) -> Self {
        let metrics = cluster.metrics.of::<PeerPodMetrics>();
        metrics.reset();
        Self {
            states: States::new(cluster.first_backoff, cluster.jitter),
            peerpods: Arc::default(),
            relations: Arc::default(),
            undecodable: [Undecodable::new::<PeerPod>(Some(
                "its instance is not deleted",
            ))],
            cluster_uid: OnceCell::new(),
            metrics,
            cluster,
            namespace,
            settings,
            environment,
            https: Box::new(HttpsClient::new),
            open_socket: libvirt::open_socket(),
            calls: Queues::default(),
            changes: OnceLock::new(),
        }
    }

    /// Adds the store to the registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.add("peerpods", self.peerpods.clone());
    }

    /// Watches the `PeerPods`. Returns those that have changed, and the others of the same pod.
    pub fn watch(&self) -> impl Stream<Item = ObjectRef<PeerPod>> + Send + 'static + use<> {
        let namespaces = match self.settings.namespaces.as_slice() {
            [] => Namespaces::All,
            namespaces => Namespaces::Only(namespaces.to_vec()),
        };
        let [undecodable] = &self.undecodable;
        let (cluster, last) = (&self.cluster, StandIn::LastVersion);
        let events = decoded_in(cluster, &namespaces, &Config::default(), undecodable, last);
        let (peerpods, relations) = (self.peerpods.clone(), self.relations.clone());
        let noted = relations.clone();
        let events = events.inspect(move |event| {
            if let Ok(event) = event {
                noted.watched(event);
            }
        });
        let (changes, changed) = Changes::new(peerpods.clone());
        let changes = self.changes.get_or_init(|| changes).clone();
        let own = follow::primaries(cluster, "peerpods", events, peerpods.clone());
        let own = own.inspect(move |peerpod| {
            let Some(peerpod) = peerpods.get(&ObjectKey::from(peerpod)) else {
                return;
            };
            let own = ObjectKey::of(&*peerpod);
            let others = relations.of(&peerpod).into_iter().filter(|key| *key != own);
            others.for_each(|key| changes.object(key));
        });
        futures::stream::select(own, changed)
    }

    /// The facts about the `PeerPod`, as the store has them.
    fn facts(&self, peerpod: &PeerPod) -> Facts {
        let related = self.relations.of(peerpod);
        let related = related.iter().filter_map(|key| self.peerpods.get(key));
        let related: Vec<_> = related.collect();
        Facts::of(peerpod, related.iter().map(|it| &**it))
    }

    /// Reads or changes the state of the `PeerPod`. One with another UID has a new state.
    fn state<R>(&self, peerpod: &PeerPod, change: impl FnOnce(&mut PeerPodState) -> R) -> R {
        self.states.change(&ObjectKey::of(peerpod), |state| {
            if state.uid != peerpod.metadata.uid {
                *state = PeerPodState {
                    uid: peerpod.metadata.uid.clone(),
                    ..PeerPodState::default()
                };
            }
            change(state)
        })
    }

    /// Time since the first sight of the end of the pod. A restart of the controller begins it again.
    fn waited(&self, peerpod: &PeerPod) -> Duration {
        let now = (self.cluster.instant)();
        let since = self.state(peerpod, |state| *state.free_since.get_or_insert(now));
        now.saturating_duration_since(since)
    }

    async fn pod_has_ended(&self, owner: &Owner) -> Result<bool, Error> {
        let writer = Writer::new(&self.cluster, &owner.namespace);
        let pod = writer.find::<Pod, PodView>(&owner.name).await?;
        let pod = pod.filter(|pod| pod.metadata.uid.as_ref() == Some(&owner.uid));
        Ok(pod.is_none_or(|pod| pod.is_complete()))
    }

    async fn describe(&self, id: &VirtualMachineId, owner: &Owner) -> Result<Answer, Error> {
        let cluster_uid = self.cluster_uid.get_or_try_init(|| self.read_cluster_uid());
        let state = virtual_machine::describe(id, owner, cluster_uid.await?, &self.cluster).await?;
        let is_developer_mode = match state {
            InstanceState::Ours { is_ending: false } => {
                self.read_adaptor().await?.is_developer_mode()
            }
            _ => false,
        };
        Ok(Answer {
            state,
            is_developer_mode,
            ..Answer::default()
        })
    }

    /// The keys of the adaptor's ConfigMap. One that does not exist has none.
    async fn read_config_map(&self) -> Result<BTreeMap<String, String>, Error> {
        let writer = Writer::new(&self.cluster, &self.namespace);
        let found = writer.find::<ConfigMap, ConfigMap>(&self.settings.config_map);
        Ok(found.await?.and_then(|it| it.data).unwrap_or_default())
    }

    /// The keys of a Secret of the adaptor. One that does not exist has none.
    async fn read_secret(&self, name: &str) -> Result<BTreeMap<String, String>, Error> {
        let writer = Writer::new(&self.cluster, &self.namespace);
        let found = writer.find::<Secret, Secret>(name).await?;
        let data = found.and_then(|it| it.data).unwrap_or_default().into_iter();
        let text = |value: Vec<u8>| String::from_utf8_lossy(&value).trim().to_owned();
        Ok(data.map(|(key, value)| (key, text(value.0))).collect())
    }

    /// The configuration of the adaptor, as the API server has it now.
    async fn read_adaptor(&self) -> Result<AdaptorConfig, Error> {
        let (config_map, secret) = (&self.settings.config_map, &self.settings.secret);
        let of_secret = self.read_secret(secret).await?;
        let of_config_map = self.read_config_map().await?;
        Ok(AdaptorConfig::new(
            (config_map, of_config_map),
            (secret, of_secret),
        ))
    }

    /// Notes in the `PeerPod` that the instance was seen.
    async fn note(&self, peerpod: &PeerPod, seen: &Seen) -> Result<(), Error> {
        let key = ObjectKey::of(peerpod);
        let writer = Writer::new(&self.cluster, key.namespace());
        let text = json!(seen).to_string();
        let patch = json!({"metadata": {
            "resourceVersion": peerpod.metadata.resource_version,
            "annotations": {names::ANNOTATION_SEEN: text},
        }});
        let noted = writer.merge::<_, PeerPod>(&self.peerpods, key.name(), &patch);
        noted.await.map(drop)
    }

    /// Has the call made that the decision needs. Its answer begins another reconcile.
    fn ask(&self, peerpod: &PeerPod, facts: &Facts, read: Read, decision: Decision) {
        let (Some(owner), Some(uid)) = (&facts.owner, &peerpod.metadata.uid) else {
            return;
        };
        if self.state(peerpod, |state| {
            !std::mem::replace(&mut state.is_asked, true)
        }) {
            self.calls.push(Job {
                key: ObjectKey::of(peerpod),
                uid: uid.clone(),
                owner: owner.clone(),
                is_ending: facts.is_ending,
                seen: facts.seen.clone(),
                read,
                decision,
            });
        }
    }

    /// Takes the result of the last call. Returns the answer into `read`.
    fn take_result(&self, peerpod: &PeerPod, read: &mut Read) -> Option<Failure> {
        let taken = self.states.with(&ObjectKey::of(peerpod), |state| {
            let is_same = state.uid == peerpod.metadata.uid;
            let result = state.result.take().filter(|_| is_same)?;
            Some((result, state.absent))
        });
        let (result, absent) = taken.flatten()?;
        read.absent = absent;
        match result {
            Ok(answer) => {
                read.answer = Some(answer);
                None
            }
            Err(failure) => Some(failure),
        }
    }

    /// Reports the failed call about an instance whose pod has ended, and has it repeated.
    async fn call_failed(
        &self,
        peerpod: &PeerPod,
        facts: &Facts,
        failure: Failure,
        again: (Read, Decision),
    ) -> Result<Outcome, Error> {
        let recheck = match failure.is_of_provider() {
            // The call waits until the provider's pause ends.
            true => {
                self.ask(peerpod, facts, again.0, again.1);
                None
            }
            false => {
                let failures = self.state(peerpod, |state| state.failures);
                Some(self.states.backoff(failures))
            }
        };
        if !facts.is_ending {
            return Ok(Outcome::Done.recheck_within(recheck));
        }
        self.report(peerpod, failure.reason, failure.message, recheck)
            .await
    }

    async fn read_cluster_uid(&self) -> Result<String, Error> {
        const NAME: &str = "kube-system";
        let writer = Writer::new(&self.cluster, "");
        let found = writer.find::<Namespace, PartialObjectMeta<Namespace>>(NAME);
        let uid = found.await?.and_then(|namespace| namespace.metadata.uid);
        uid.ok_or_else(|| Error::Changed {
            kind: "Namespace",
            name: NAME.to_owned(),
        })
    }

    /// Deletes the `PeerPod`, which is not the newest of its pod.
    async fn supersede(&self, peerpod: &PeerPod) -> Result<Outcome, Error> {
        let writer = Writer::new(
            &self.cluster,
            peerpod.metadata.namespace.as_deref().unwrap_or_default(),
        );
        let uid = only_uid(&peerpod.uid().unwrap_or_default());
        let (name, background) = (peerpod.name_any(), PropagationPolicy::Background);
        let deletion = writer.delete_primary::<_, PeerPod>(&self.peerpods, &name, uid, background);
        let is_deleted = match deletion.await {
            Ok(is_deleted) => is_deleted,
            Err(error) => return self.failed(peerpod, error).await,
        };
        if is_deleted {
            let note = "the pod has a younger PeerPod, so this one is deleted";
            report::normal(&self.cluster, peerpod, "Superseded", note).await;
        }
        Ok(Outcome::Recheck(DENIED_RECHECK))
    }

    async fn release(
        &self,
        peerpod: &PeerPod,
        release: Release,
        remains: &[String],
    ) -> Result<Outcome, Error> {
        let key = ObjectKey::of(peerpod);
        // Before the write, because nothing reports an object that no longer exists.
        if release == Release::Abandoned && !self.state(peerpod, |state| state.has_warned) {
            report::abandoned(&self.cluster, &self.namespace, peerpod).await;
            self.state(peerpod, |state| state.has_warned = true);
        }
        let writer = Writer::new(&self.cluster, key.namespace());
        let removed = writer.remove_finalizer(&self.peerpods, peerpod, names::FINALIZER);
        match removed.await {
            // Another client was faster.
            Err(error) if error.is_absence() => return Ok(Outcome::Done),
            Err(error) => return self.failed(peerpod, error).await,
            Ok(()) => {}
        }
        let has_deleted = self.state(peerpod, |state| state.has_deleted);
        self.metrics.released(report::outcome(release, has_deleted));
        report::released(&self.cluster, peerpod, release, has_deleted).await;
        report::remaining(&self.cluster, peerpod, remains).await;
        Ok(Outcome::Done)
    }

    /// Reports a request that the API server rejects, or whose kind it does not know. Other errors are retried.
    async fn failed(&self, peerpod: &PeerPod, error: Error) -> Result<Outcome, Error> {
        let is_of_vm =
            matches!(&error, Error::Api { kind, .. } if **kind == *VirtualMachine::kind(&()));
        let (reason, next) = match error.code() {
            Some(403 | 422) => (
                PeerPodReason::PermissionDenied,
                "give the controller this permission, or change the policy that rejects the request; for VirtualMachines, \
                 deploy/overlays/peerpod-local is an example",
            ),
            Some(404) if is_of_vm => (
                PeerPodReason::ConfigMissing,
                "install the definition of VirtualMachines: kubectl apply -f crds/",
            ),
            _ => return Err(error),
        };
        let message = format!("{error}; {next}");
        self.report(peerpod, reason, message, Some(DENIED_RECHECK))
            .await
    }
}

impl Reconciler for PeerPodController {
    type Object = PeerPod;
    type State = PeerPodState;
    const NAME: &'static str = "peerpod";

    fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn states(&self) -> &States<PeerPodState> {
        &self.states
    }

    fn objects(&self) -> Store<PeerPod> {
        self.peerpods.reader()
    }

    fn undecodable(&self) -> &[Arc<Undecodable>] {
        &self.undecodable
    }

    fn update_metrics(&self) {
        report::update_metrics(self);
    }

    async fn reconcile(&self, peerpod: Arc<PeerPod>) -> Result<Outcome, Error> {
        let mut facts = self.facts(&peerpod);
        let mut read = Read::default();
        if facts.is_ending && facts.younger.is_some() {
            read.waited = self.waited(&peerpod);
        }
        let mut failure = self.take_result(&peerpod, &mut read);
        loop {
            let decision = decide(&facts, &read, &self.settings.virtual_machine.namespaces);
            match (decision, &facts.owner) {
                (Decision::Nothing, _) => return self.clear(&peerpod).await,
                (Decision::Later(after), _) => return Ok(Outcome::Recheck(after)),
                (Decision::ReadPod, Some(owner)) => match self.pod_has_ended(owner).await {
                    Ok(has_ended) => {
                        read.pod_has_ended = Some(has_ended);
                        if has_ended {
                            read.waited = self.waited(&peerpod);
                        }
                    }
                    Err(error) => return self.failed(&peerpod, error).await,
                },
                (Decision::Describe(InstanceId::VirtualMachine(id)), Some(owner)) => {
                    match self.describe(&id, owner).await {
                        Ok(answer) => read.answer = Some(answer),
                        Err(error) => return self.failed(&peerpod, error).await,
                    }
                }
                (Decision::Delete(InstanceId::VirtualMachine(id)), _) => {
                    match virtual_machine::delete(&id, &self.cluster).await {
                        Ok(has_deleted) => {
                            self.state(&peerpod, |state| state.has_deleted |= has_deleted);
                        }
                        Err(error) => return self.failed(&peerpod, error).await,
                    }
                    let is_ending = true;
                    read.answer = Some(Answer {
                        state: InstanceState::Ours { is_ending },
                        ..Answer::default()
                    });
                }
                (Decision::Note(seen), _) => match self.note(&peerpod, &seen).await {
                    Ok(()) => facts.seen = Some(seen),
                    Err(error) => return self.failed(&peerpod, error).await,
                },
                (decision @ (Decision::Describe(_) | Decision::Delete(_)), Some(_)) => {
                    let again = (read, decision);
                    match failure.take() {
                        Some(failure) => {
                            return self.call_failed(&peerpod, &facts, failure, again).await;
                        }
                        None => self.ask(&peerpod, &facts, again.0, again.1),
                    }
                    return Ok(Outcome::Done);
                }
                (Decision::Supersede, _) => return self.supersede(&peerpod).await,
                (Decision::Release(release), _) => {
                    let remains = read.answer.map(|it| it.remains).unwrap_or_default();
                    return self.release(&peerpod, release, &remains).await;
                }
                (
                    Decision::Wait {
                        reason,
                        message,
                        recheck,
                    },
                    _,
                ) => {
                    return self.report(&peerpod, reason, message, recheck).await;
                }
                // These decisions need an owner.
                (Decision::ReadPod | Decision::Describe(_) | Decision::Delete(_), None) => {
                    return Ok(Outcome::Done);
                }
            }
        }
    }
}
