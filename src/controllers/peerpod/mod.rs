//! The controller of `PeerPod`: no cloud instance outlives its pod.
//!
//! ```text
//! facts ──► decide ──► read the pod, describe the instance ──► decide ──► delete, release or wait
//! (store)   (pure)     (only if the decision needs it)         (pure)     (one write; status, event)
//! ```
//!
//! The controller never adds the finalizer: its absence means that the cloud-api-adaptor has deleted the instance.

mod decide;
mod facts;
pub mod metrics;
mod report;
mod virtual_machine;

use crate::api::peerpod::{PeerPodReason, VirtualMachineId, names};
use crate::api::{PeerPod, VirtualMachine};
use crate::controllers::peerpod::decide::{Decision, Instance, Read, Release, decide};
use crate::controllers::peerpod::facts::{Facts, Owner, owner};
use crate::controllers::peerpod::metrics::PeerPodMetrics;
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
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::PropagationPolicy;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Config;
use kube::{Resource, ResourceExt};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;

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
    /// Whether this process has deleted the instance.
    has_deleted: bool,
    /// Whether this process has reported that a person has abandoned the instance.
    has_warned: bool,
    /// The last report. The definition of confidential containers has no conditions, so the status may not keep it.
    reported: Option<String>,
}

/// The controller.
pub struct PeerPodController {
    cluster: Cluster,
    /// Namespace of the controller.
    namespace: String,
    settings: PeerPodSettings,
    states: States<PeerPodState>,
    peerpods: Arc<PrimaryStore<PeerPod>>,
    undecodable: [Arc<Undecodable>; 1],
    /// UID of the namespace `kube-system`, which identifies the cluster.
    cluster_uid: OnceCell<String>,
    metrics: Arc<PeerPodMetrics>,
}

impl PeerPodController {
    /// A controller with an empty store. `namespace` is its own.
    #[must_use]
    pub fn new(cluster: Cluster, namespace: String, settings: PeerPodSettings) -> Self {
        Self {
            states: States::new(cluster.first_backoff, cluster.jitter),
            peerpods: Arc::default(),
            undecodable: [Undecodable::new::<PeerPod>(Some(
                "its instance is not deleted",
            ))],
            cluster_uid: OnceCell::new(),
            metrics: cluster.metrics.of(),
            cluster,
            namespace,
            settings,
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
        let peerpods = self.peerpods.clone();
        let (changes, changed) = Changes::new(peerpods.clone());
        let own = follow::primaries(cluster, "peerpods", events, peerpods.clone());
        let own = own.inspect(move |peerpod| {
            let Some(peerpod) = peerpods.get(&ObjectKey::from(peerpod)) else {
                return;
            };
            let pod = owner(&peerpod);
            let is_sibling = |other: &PeerPod| owner(other) == pod && other.uid() != peerpod.uid();
            changes.all(|other| pod.is_some() && is_sibling(other));
        });
        futures::stream::select(own, changed)
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

    async fn describe(&self, id: &VirtualMachineId, owner: &Owner) -> Result<Instance, Error> {
        let cluster_uid = self.cluster_uid.get_or_try_init(|| self.read_cluster_uid());
        virtual_machine::describe(id, owner, cluster_uid.await?, &self.cluster).await
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

    async fn release(&self, peerpod: &PeerPod, release: Release) -> Result<Outcome, Error> {
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

    async fn reconcile(&self, peerpod: Arc<PeerPod>) -> Result<Outcome, Error> {
        let all = self.peerpods.reader().state();
        let facts = Facts::of(&peerpod, all.iter().map(|it| &**it));
        let mut read = Read::default();
        if facts.is_ending && facts.younger.is_some() {
            read.waited = self.waited(&peerpod);
        }
        loop {
            let decision = decide(&facts, &read, &self.settings.virtual_machine.namespaces);
            match (decision, &facts.owner) {
                (Decision::Nothing, _) => return self.clear(&peerpod).await,
                (Decision::ReadPod, Some(owner)) => match self.pod_has_ended(owner).await {
                    Ok(has_ended) => {
                        read.pod_has_ended = Some(has_ended);
                        if has_ended {
                            read.waited = self.waited(&peerpod);
                        }
                    }
                    Err(error) => return self.failed(&peerpod, error).await,
                },
                (Decision::Describe(id), Some(owner)) => match self.describe(&id, owner).await {
                    Ok(instance) => read.instance = Some(instance),
                    Err(error) => return self.failed(&peerpod, error).await,
                },
                (Decision::Delete(id), _) => {
                    match virtual_machine::delete(&id, &self.cluster).await {
                        Ok(has_deleted) => {
                            self.state(&peerpod, |state| state.has_deleted |= has_deleted);
                        }
                        Err(error) => return self.failed(&peerpod, error).await,
                    }
                    let is_ending = true;
                    read.instance = Some(Instance::Ours { is_ending });
                }
                (Decision::Supersede, _) => return self.supersede(&peerpod).await,
                (Decision::Release(release), _) => return self.release(&peerpod, release).await,
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
                // Both decisions need an owner.
                (Decision::ReadPod | Decision::Describe(_), None) => return Ok(Outcome::Done),
            }
        }
    }
}
