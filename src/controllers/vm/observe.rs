//! (client) What the operator sees of one VM: the VM and its children, from the caches. No request is made.

use crate::api::vm::names;
use crate::api::{VirtualMachine, conditions};
use crate::controllers::vm::context::Context;
use crate::controllers::vm::images;
use crate::controllers::vm::ownership::{is_earlier, is_of_earlier};
use crate::controllers::vm::views::exit::End;
use crate::controllers::vm::views::{
    ClaimView, ConfigMapView, PodView, SecretView, ServiceView, Warning, owner_of,
};
use crate::k8s::key::ObjectKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// One VM and its children.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The VM, at least as new as the operator's own last write to it.
    pub vm: Arc<VirtualMachine>,
    /// Its configuration.
    pub config_map: Option<Arc<ConfigMapView>>,
    /// The pod of its name, whosever it is.
    pub pod: Option<Arc<PodView>>,
    /// Whether this operator has deleted the pod.
    pub deleted_by_operator: bool,
    /// The claims that it uses and that are there, by name.
    pub claims: BTreeMap<String, Arc<ClaimView>>,
    /// The namespace's image repository.
    pub image_repository: Option<Arc<ClaimView>>,
    /// The fetches of the images that it names by URL, by the pods' names.
    pub fetches: BTreeMap<String, images::Seen>,
    /// How long images of its CD drives have been missing; zero where none is.
    pub images_missing: Duration,
    /// Its display secret.
    pub display_secret: Option<Arc<SecretView>>,
    /// Warnings about pods and claims that keep it from starting, by the object's UID.
    pub warnings: BTreeMap<String, Warning>,
    /// The service of its name, whosever it is.
    pub service: Option<Arc<ServiceView>>,
    /// The time of the observation.
    pub now: Timestamp,
}

/// What the claim for the runner's data is called in [`names::legacy_claim`].
pub const RUNNER_DATA: &str = "runner-data";

impl Observed {
    /// Name of the claim: the legacy one, if there is one; else the other.
    #[must_use]
    pub fn claim_name(&self, what: &str, claim: String) -> String {
        let legacy = names::legacy_claim(&self.name(), what);
        if self.claims.contains_key(&legacy) {
            legacy
        } else {
            claim
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

    /// Whether it has a CD drive, and so a need for the image repository.
    #[must_use]
    pub fn has_cd_drive(&self) -> bool {
        self.vm
            .spec
            .vm
            .disks
            .iter()
            .any(|disk| disk.cdrom.is_some())
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

    /// The pod, if it is this VM's and not a namesake's.
    #[must_use]
    pub fn own_pod(&self) -> Option<&Arc<PodView>> {
        let uid = self.vm.metadata.uid.as_deref()?;
        self.pod.as_ref().filter(|pod| {
            pod.metadata
                .owner_references
                .iter()
                .flatten()
                .any(|owner| owner.uid == uid)
        })
    }

    /// The pod, if it is one of an earlier VM of this name.
    #[must_use]
    pub fn earlier_pod(&self) -> Option<&PodView> {
        self.pod.as_deref().filter(|pod| {
            pod.owner_references()
                .iter()
                .any(|owner| is_earlier(owner, &self.vm))
        })
    }

    /// Whether the guest runs, by the runner's word.
    #[must_use]
    pub fn is_running(&self) -> bool {
        let alive = self.own_pod().is_some_and(|pod| !pod.has_ended());
        alive && conditions::is_true(self.conditions(), conditions::RUNNING)
    }

    /// Whether the VM's part in its pod has begun. The runner may tell so seconds before the kubelet does.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.is_running() || self.own_pod().is_some_and(|pod| pod.has_begun())
    }
}

/// Names of the disks of a VM that have claims, in order, with their claims' names.
#[must_use]
pub fn disk_names(vm: &VirtualMachine) -> Vec<(String, String)> {
    let templates = vm
        .spec
        .vm
        .disks
        .iter()
        .filter_map(|disk| disk.volume_claim_template.as_ref());
    let disks = templates.enumerate().map(|(n, template)| {
        let name = template.metadata.as_ref().and_then(|m| m.name.as_deref());
        let disk = names::disk(name, n);
        let claim = names::disk_claim(&vm.name_any(), &disk);
        (disk, claim)
    });
    disks.collect()
}

/// The display secret: the user's own before the generated one, else the first by name.
fn display_secret(secrets: Vec<Arc<SecretView>>, vm: &VirtualMachine) -> Option<Arc<SecretView>> {
    let generated = names::display_secret(&vm.name_any());
    let secrets = secrets
        .into_iter()
        .filter(|secret| !is_of_earlier(secret.as_ref(), vm));
    secrets.min_by_key(|secret| (secret.name_any() == generated, secret.name_any()))
}

/// Since when images of the VM are missing, as stands in the condition.
pub fn images_missing_since(vm: &VirtualMachine) -> Option<Timestamp> {
    let conditions = &vm.status.as_ref()?.conditions;
    let missing =
        conditions::find(conditions, conditions::MEDIA_FETCHED).filter(|c| c.status != "True")?;
    Some(missing.last_transition_time.0)
}

/// How long they have been missing.
fn images_missing(vm: &VirtualMachine, now: Timestamp) -> Duration {
    images_missing_since(vm).map_or(Duration::ZERO, |missing| since(missing, now))
}

/// How long ago that was; zero for a time in the future, which another clock has noted or which was noted before the clock was set.
#[must_use]
pub fn since(time: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(time)).unwrap_or_default()
}

/// How long ago a fetch pod has ended, by its node's clock. One that has ended before its container ran has no such time: then
/// since it was created.
fn ended_for(pod: &PodView, now: Timestamp) -> Option<Duration> {
    let made = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let at = Some(pod)
        .filter(|pod| pod.has_ended())
        .and_then(|pod| End::of(pod).at.or(made))?;
    Some(since(at, now))
}

/// Looks at the VM.
#[must_use]
pub fn observe(vm: Arc<VirtualMachine>, ctx: &Context) -> Observed {
    let now = (ctx.cluster.now)();
    let (name, key) = (vm.name_any(), ObjectKey::of(&*vm));
    let disks = disk_names(&vm)
        .into_iter()
        .map(|(disk, claim)| (names::legacy_claim(&name, &disk), claim));
    let runner_data = (
        names::legacy_claim(&name, RUNNER_DATA),
        names::runner_data_claim(&name),
    );
    let claim = |(legacy, claim): (String, String)| {
        // One of a former stateful set holds the data of this VM; it goes before one that was made since.
        let legacy = ctx
            .caches
            .claims
            .get(&ctx.key(&legacy))
            .filter(|view| owner_of(view.as_ref()).is_none_or(|vm| vm == name));
        let view = legacy.or_else(|| ctx.caches.claims.get(&ctx.key(&claim)))?;
        Some((view.name_any(), view))
    };
    let claims: BTreeMap<String, Arc<ClaimView>> =
        disks.chain([runner_data]).filter_map(claim).collect();
    let pod = ctx.caches.pods.get(&key);
    let pod_uid = pod.as_ref().and_then(|pod| pod.metadata.uid.as_deref());
    let deleted_by_operator = pod_uid.is_some_and(|uid| ctx.states.has_deleted_pod(&key, uid));
    let fetch = |remote: images::Remote| {
        let pod = ctx.caches.pods.get(&ctx.key(&remote.pod_name()));
        let ended_for = pod.as_deref().and_then(|pod| ended_for(pod, now));
        (
            remote.pod_name(),
            images::Seen {
                pod,
                progress: None,
                ended_for,
            },
        )
    };
    Observed {
        config_map: ctx.caches.config_maps.get(&key),
        warnings: BTreeMap::new(),
        fetches: images::remotes(&vm).into_iter().map(fetch).collect(),
        images_missing: images_missing(&vm, now),
        pod,
        deleted_by_operator,
        claims,
        image_repository: ctx
            .caches
            .claims
            .get(&ctx.key(names::IMAGE_REPOSITORY_CLAIM)),
        display_secret: display_secret(ctx.caches.secrets.group(&key), &vm),
        service: ctx.caches.services.get(&key),
        now,
        vm,
    }
}
