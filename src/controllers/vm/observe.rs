//! (client) The observed state of one VM: the VM and its children, from the stores. No request is made.

use crate::api::VirtualMachine;
use crate::api::conditions::{find, is_true};
use crate::api::runner::fetch::Progress;
use crate::api::vm::conditions;
use crate::api::vm::{State, names};
use crate::controllers::vm::claim_names::{self, claim_names};
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::copy_source::CopySource;
use crate::controllers::vm::images::{self, ObservedDownload};
use crate::controllers::vm::name_conflicts::name_conflicts;
use crate::controllers::vm::views::exit::End;
use crate::controllers::vm::views::{ConfigMapView, ReportView, Warning, other_owner_of, owner_of};
use crate::controllers::vm::volumes::RecordedVolume;
use crate::k8s::key::ObjectKey;
use crate::k8s::ownership::{is_controlled_by_previous, is_previous, owns};
use crate::k8s::views::{ClaimView, PodView, SecretView, ServiceView};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// One VM and its children.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The VM, at least as new as the operator's own last write to it, with the runner's report if it is to be copied now.
    pub vm: Arc<VirtualMachine>,
    /// The ConfigMap with the VM's name.
    pub config_map: Option<Arc<ConfigMapView>>,
    /// The pod with the VM's name. It may have another owner.
    pub pod: Option<Arc<PodView>>,
    /// Whether this operator has deleted the pod.
    pub deleted_by_operator: bool,
    /// The PVCs of the VM that exist, by name.
    pub claims: BTreeMap<String, Arc<ClaimView>>,
    /// The PVCs that pods of the VM have mounted, as the status records them.
    pub recorded: Vec<RecordedVolume>,
    /// Names of PVCs that another VM generates, too, each with that VM if the name belongs to it. It does not consider the
    /// labels of a present PVC.
    pub name_conflicts: BTreeMap<String, Option<String>>,
    /// The namespace's image repository.
    pub image_repository: Option<Arc<ClaimView>>,
    /// The downloads of the VM's images, by the name of the download pod.
    pub fetches: BTreeMap<String, ObservedDownload>,
    /// The progress of the import pod, after [`crate::controllers::vm::fetch::progress::read`].
    pub import_progress: Option<Progress>,
    /// The PVC that an import copies, after [`crate::controllers::vm::copies::observe`].
    pub copy_source: CopySource,
    /// Time since the first report of a missing image; zero if no image is missing.
    pub images_missing: Duration,
    /// The display Secret.
    pub display_secret: Option<Arc<SecretView>>,
    /// Warnings about pods and PVCs that prevent the VM from starting, by the object's UID.
    pub warnings: BTreeMap<String, Warning>,
    /// The Service with the VM's name. It may have another owner.
    pub service: Option<Arc<ServiceView>>,
    /// The report of the pod's runner, after [`crate::controllers::vm::runner_report::take`].
    pub report: Option<Arc<ReportView>>,
    /// The report, as far as [`vm`](Self::vm) contains it.
    pub copy: ReportCopy,
    /// The time of the observation.
    pub now: Timestamp,
}

/// Whether the report of the VM's pod differs from the VM's status.
#[derive(Clone, Debug, Default)]
pub enum ReportCopy {
    /// It does not differ, or there is none.
    #[default]
    None,
    /// It is copied into this VM in this reconcile. These events follow.
    Due(Arc<VirtualMachine>, Vec<RunnerEvent>),
    /// It is copied after this time.
    Later(Duration),
}

impl ReportCopy {
    /// The time until the report is copied.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        match self {
            Self::Later(delay) => Some(*delay),
            Self::None | Self::Due(..) => None,
        }
    }
}

/// An event about a change that a runner has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerEvent {
    /// In CamelCase.
    pub reason: &'static str,
    /// The note for users.
    pub note: String,
    /// Whether the event has the type `Warning`.
    pub is_warning: bool,
}

impl Observed {
    /// The desired state: `spec.vm.state`, or `Stopped` after a shutdown by the guest that the status records, and for a VM that is being
    /// deleted together with its pod.
    #[must_use]
    pub fn desired_state(&self) -> State {
        desired_state(&self.vm)
    }

    /// Name of a PVC: the legacy name if that PVC exists, else `claim`.
    #[must_use]
    pub fn claim_name(&self, disk: &str, claim: String) -> String {
        let legacy = names::legacy_claim(&self.name(), disk);
        if self.claims.contains_key(&legacy) {
            legacy
        } else {
            claim
        }
    }

    /// The other VM to which the PVC name belongs: the VM that the labels of the present PVC name. Without such labels, see
    /// [`Self::name_conflicts`].
    #[must_use]
    pub fn other_owner(&self, claim: &str) -> Option<String> {
        match self.claims.get(claim).and_then(|it| owner_of(&**it)) {
            Some(owner) => Some(owner).filter(|owner| *owner != self.name()),
            None => self.name_conflicts.get(claim).cloned().flatten(),
        }
    }

    /// Name of the VM and of its pod.
    #[must_use]
    pub fn name(&self) -> String {
        self.vm.name_any()
    }

    /// Key of the VM.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        ObjectKey::of(&*self.vm)
    }

    /// Whether the VM has a CD drive, and so needs the image repository.
    #[must_use]
    pub fn has_cd_drive(&self) -> bool {
        self.vm
            .spec
            .vm
            .disks
            .iter()
            .any(|disk| disk.cdrom.is_some())
    }

    /// Whether the VM is being deleted.
    #[must_use]
    pub fn is_being_deleted(&self) -> bool {
        self.vm.metadata.deletion_timestamp.is_some()
    }

    /// The VM's conditions.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        self.vm
            .status
            .as_ref()
            .map(|status| status.conditions.as_slice())
            .unwrap_or_default()
    }

    /// The pod, if this VM owns it.
    #[must_use]
    pub fn own_pod(&self) -> Option<&Arc<PodView>> {
        self.pod.as_ref().filter(|pod| owns(&*self.vm, &***pod))
    }

    /// The pod, if a previous VM with the same name owns it.
    #[must_use]
    pub fn previous_vm_pod(&self) -> Option<&PodView> {
        self.pod.as_deref().filter(|pod| {
            pod.owner_references()
                .iter()
                .any(|owner| is_previous(owner, &*self.vm))
        })
    }

    /// Whether a PVC that the pod names is no longer the recorded one, or belongs to another VM.
    #[must_use]
    pub fn has_other_claim(&self) -> bool {
        let name = self.name();
        let is_named =
            |it: &&RecordedVolume| claim_names::generates(&self.vm, &it.volume.claim_name);
        let mut recorded = self.recorded.iter().filter(is_named);
        recorded.any(|recorded| recorded.is_gone() || recorded.has_other_owner(&name))
    }

    /// The PVCs of the VM's pod that are being deleted.
    #[must_use]
    pub fn terminating_volumes(&self) -> Vec<&ClaimView> {
        let name = self.name();
        let is_own = |claim: &&Arc<ClaimView>| other_owner_of(&***claim, &name).is_none();
        terminating(self.claims.values().filter(is_own))
    }

    /// The PVCs of a new pod that are being deleted.
    #[must_use]
    pub fn terminating_claims(&self) -> Vec<&ClaimView> {
        let repository = self.image_repository.iter().filter(|_| self.has_cd_drive());
        terminating(self.claims.values().chain(repository))
    }

    /// Whether the guest runs, as the runner has reported.
    #[must_use]
    pub fn is_running(&self) -> bool {
        let alive = self.own_pod().is_some_and(|pod| !pod.has_ended());
        alive && is_true(self.conditions(), conditions::RUNNING)
    }

    /// Whether the spec has changed since the operator last wrote the status. The generation in the status of a new VM is 0.
    #[must_use]
    pub fn has_changed_spec(&self) -> bool {
        let status = self.vm.status.as_ref();
        let seen = status.and_then(|status| status.observed_generation);
        seen.is_some_and(|seen| seen > 0 && Some(seen) < self.vm.metadata.generation)
    }

    /// Whether the pod's container has started. The runner may report that seconds before the kubelet.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.is_running() || self.own_pod().is_some_and(|pod| pod.has_started())
    }
}

fn terminating<'a>(claims: impl Iterator<Item = &'a Arc<ClaimView>>) -> Vec<&'a ClaimView> {
    claims
        .map(AsRef::as_ref)
        .filter(|claim| claim.metadata.deletion_timestamp.is_some())
        .collect()
}

/// The finalizer of a deletion that leaves the children without an owner, as `kubectl delete --cascade=orphan` requests it.
const FINALIZER_ORPHAN: &str = "orphan";

/// Whether the deletion of the VM leaves its pod.
#[must_use]
pub fn orphans_pod(vm: &VirtualMachine) -> bool {
    vm.finalizers().iter().any(|it| it == FINALIZER_ORPHAN)
}

/// The desired state of the VM: see [`Observed::desired_state`].
#[must_use]
pub fn desired_state(vm: &VirtualMachine) -> State {
    if vm.metadata.deletion_timestamp.is_some() && !orphans_pod(vm) {
        return State::Stopped;
    }
    let shutdown = vm.status.as_ref().and_then(|status| status.guest_shutdown);
    match shutdown {
        Some(shutdown) if Some(shutdown.generation) == vm.metadata.generation => State::Stopped,
        _ => vm.spec.vm.state,
    }
}

/// The entries of `status.volumes`, with the present PVCs and the evidence of the previous reconcile.
pub fn recorded(vm: &VirtualMachine, ctx: &VmController) -> Vec<RecordedVolume> {
    let key = ObjectKey::of(vm);
    let volumes = claim_names::volumes_of(vm).iter();
    let recorded = volumes.map(|volume| RecordedVolume {
        present: ctx.caches.claims.get(&ctx.scope.key(&volume.claim_name)),
        evidence: ctx.states.deletion_evidence(&key, &volume.uid),
        volume: volume.clone(),
    });
    recorded.collect()
}

/// The same with the evidence after this observation.
fn with_evidence(
    mut recorded: Vec<RecordedVolume>,
    vm: &VirtualMachine,
    pod: Option<&PodView>,
) -> Vec<RecordedVolume> {
    for volume in &mut recorded {
        volume.evidence = volume.next_evidence(desired_state(vm), pod);
    }
    recorded
}

/// The PVCs of the VM that exist, by name.
fn claims(vm: &VirtualMachine, ctx: &VmController) -> BTreeMap<String, Arc<ClaimView>> {
    let (name, claims) = (vm.name_any(), &ctx.caches.claims);
    let present = |[legacy, claim]: [String; 2]| {
        // A PVC of the StatefulSet of an old Java VM-Operator contains the VM's data. It has priority over a newer one.
        let legacy = claims
            .get(&ctx.scope.key(&legacy))
            .filter(|view| other_owner_of(view.as_ref(), &name).is_none());
        let view = legacy.or_else(|| claims.get(&ctx.scope.key(&claim)))?;
        Some((view.name_any(), view))
    };
    claim_names(vm).filter_map(present).collect()
}

/// The downloads of the VM's images, by the name of the download pod.
fn downloads(
    vm: &VirtualMachine,
    now: Timestamp,
    ctx: &VmController,
) -> BTreeMap<String, ObservedDownload> {
    let download = |remote: images::RemoteImage| {
        let name = remote.pod_name();
        let pod = ctx.caches.pods.get(&ctx.scope.key(&name));
        let ended_for = pod.as_deref().and_then(|pod| ended_for(pod, now));
        let download = ObservedDownload {
            pod,
            progress: None,
            ended_for,
        };
        (name, download)
    };
    images::remote_images(vm)
        .into_iter()
        .map(download)
        .collect()
}

/// The display Secret. The user's own Secret has priority over the generated one; else the first by name.
fn display_secret(secrets: Vec<Arc<SecretView>>, vm: &VirtualMachine) -> Option<Arc<SecretView>> {
    let generated = names::display_secret(&vm.name_any());
    let secrets = secrets
        .into_iter()
        .filter(|secret| !is_controlled_by_previous(secret.as_ref(), vm));
    secrets.min_by_key(|secret| (secret.name_any() == generated, secret.name_any()))
}

/// The time at which images of the VM were first reported missing, from the condition.
pub fn images_missing_since(vm: &VirtualMachine) -> Option<Timestamp> {
    let conditions = &vm.status.as_ref()?.conditions;
    let missing = find(conditions, conditions::MEDIA_FETCHED).filter(|c| c.status != "True")?;
    Some(missing.last_transition_time.0)
}

/// The duration from `time` until `now`. It is zero for a time in the future: another clock may be ahead, or this clock
/// was set back.
#[must_use]
pub fn since(time: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(time)).unwrap_or_default()
}

/// Time since a download pod has ended, by its node's clock. A pod that has ended before its container ran counts from
/// its creation.
fn ended_for(pod: &PodView, now: Timestamp) -> Option<Duration> {
    let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let at = Some(pod)
        .filter(|pod| pod.has_ended())
        .and_then(|pod| End::of(pod).at.or(created))?;
    Some(since(at, now))
}

/// Reads the VM's children from the stores.
#[must_use]
pub fn observe(vm: Arc<VirtualMachine>, ctx: &VmController) -> Observed {
    let (now, key, caches) = ((ctx.scope.cluster.now)(), ObjectKey::of(&*vm), &ctx.caches);
    let pod = caches.pods.get(&key);
    let pod_uid = pod.as_ref().and_then(|pod| pod.metadata.uid.as_deref());
    let repository = ctx.scope.key(names::IMAGE_REPOSITORY_CLAIM);
    Observed {
        config_map: caches.config_maps.get(&key),
        deleted_by_operator: pod_uid.is_some_and(|uid| ctx.states.has_deleted_pod(&key, uid)),
        claims: claims(&vm, ctx),
        recorded: with_evidence(recorded(&vm, ctx), &vm, pod.as_deref()),
        name_conflicts: name_conflicts(&vm, ctx),
        image_repository: caches.claims.get(&repository),
        fetches: downloads(&vm, now, ctx),
        import_progress: None,
        copy_source: CopySource::default(),
        images_missing: images_missing_since(&vm)
            .map_or(Duration::ZERO, |missing| since(missing, now)),
        display_secret: display_secret(caches.secrets.group(&key), &vm),
        warnings: BTreeMap::new(),
        service: caches.services.get(&key),
        report: None,
        copy: ReportCopy::None,
        pod,
        now,
        vm,
    }
}
