//! (client) The watches of VMs and of their children. Each fills a store and reports the VMs to reconcile.
//! [`crate::k8s::watch`] lists, follows and recovers from errors.

use crate::api::VirtualMachine;
use crate::api::vm::names;
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::images;
use crate::controllers::vm::report;
use crate::controllers::vm::views::VmView;
use crate::k8s::follow::{self, Changes};
use crate::k8s::key::ObjectKey;
use crate::k8s::store::children::{Cache, Change};
use crate::k8s::tasks::Tasks;
use crate::k8s::undecodable::{StandIn, decoded_in};
use crate::k8s::watch::{NamespacedObject, filter_map};
use futures::Stream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use serde_json::json;
use std::sync::Arc;

/// Watches VMs into [`VmController::vms`]. Returns the VMs that were added, changed or deleted. A VM that cannot be decoded
/// counts as missing.
pub fn vms(
    ctx: &Arc<VmController>,
) -> impl Stream<Item = ObjectRef<VirtualMachine>> + Send + 'static + use<> {
    let (scope, ctx) = (&ctx.scope, ctx.clone());
    let [undecodable] = &ctx.undecodable;
    let config = watcher::Config::default();
    let events = decoded_in::<VmView>(
        &scope.cluster,
        &scope.namespaces(),
        &config,
        undecodable,
        StandIn::Nothing(placeholder),
    );
    let (cluster, vms) = (scope.cluster.clone(), ctx.vms.clone());
    let events = filter_map(events, move |event| Some(received(event, &ctx)));
    follow::primaries(&cluster, "vms", events, vms)
}

/// The event with the VM as the store has it. The shutdown of a deleted VM is reported.
fn received(event: Event<VmView>, ctx: &Arc<VmController>) -> Event<VirtualMachine> {
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(vm) => Event::InitApply(vm.into()),
        Event::Apply(vm) => Event::Apply(vm.into()),
        Event::Delete(vm) => {
            let vm = VirtualMachine::from(vm);
            let [undecodable] = &ctx.undecodable;
            if ctx.scope.cluster.leadership.leads() && !undecodable.contains(&ObjectKey::of(&vm)) {
                tokio::spawn(report_shutdown(vm.clone(), ctx.clone()));
            }
            Event::Delete(vm)
        }
    }
}

/// A VM with this metadata and an empty spec. Only its metadata is used.
fn placeholder(metadata: ObjectMeta) -> Option<VmView> {
    serde_json::from_value(json!({"metadata": metadata, "spec": {"vm": {}}})).ok()
}

/// Reports that the guest of a deleted VM shuts down.
async fn report_shutdown(vm: VirtualMachine, ctx: Arc<VmController>) {
    report::publish_shutdown(&vm, &ctx).await;
}

/// Watches the VMs' children into the controller's stores. Returns the VMs with children that have changed since the
/// first lists were complete.
pub fn children(
    ctx: &Arc<VmController>,
    tasks: &mut Tasks,
) -> impl Stream<Item = ObjectRef<VirtualMachine>> + Send + 'static + use<> {
    let (changes, changed) = Changes::new(ctx.vms.clone());
    let of_vms = format!("{}={}", names::LABEL_NAME, names::APP_NAME);
    let secrets = format!(
        "{of_vms},{}={}",
        names::LABEL_COMPONENT,
        names::COMPONENT_DISPLAY_SECRET
    );
    let watch = ChildWatch {
        ctx: ctx.clone(),
        changes,
    };
    let caches = &ctx.caches;
    watch.follow(tasks, "pods", "", &caches.pods, ChildWatch::pod_changed);
    watch.follow(tasks, "configmaps", &of_vms, &caches.config_maps, ignore);
    let kind = "persistentvolumeclaims";
    watch.follow(tasks, kind, "", &caches.claims, ChildWatch::claim_changed);
    watch.follow(tasks, "services", &of_vms, &caches.services, ignore);
    watch.follow(tasks, "secrets", &secrets, &caches.secrets, ignore);
    watch.follow(tasks, "vmreports", "", &caches.reports, ignore);
    changed
}

/// For kinds with objects that name their VM.
fn ignore(_: &ChildWatch, _: &ObjectKey) {}

#[derive(Clone)]
struct ChildWatch {
    ctx: Arc<VmController>,
    changes: Changes<VirtualMachine>,
}

impl ChildWatch {
    /// Watches a kind into its store. Reports the VM that the object's label names. `changed` is called with the key of
    /// each object that was added, changed or deleted.
    fn follow<K: NamespacedObject>(
        &self,
        tasks: &mut Tasks,
        kind: &'static str,
        labels: &str,
        cache: &Arc<Cache<K>>,
        changed: fn(&Self, &ObjectKey),
    ) {
        let watch = self.clone();
        let on_change = move |key, change| watch.changed(key, change, changed);
        let scope = &self.ctx.scope;
        let (cluster, namespaces) = (&scope.cluster, scope.namespaces());
        follow::spawn_children(cluster, &namespaces, tasks, kind, labels, cache, on_change);
    }

    fn changed(&self, key: Option<ObjectKey>, change: Change, changed: fn(&Self, &ObjectKey)) {
        let is_known = change == Change::None;
        // PVCs that belong to no VM are in the group without a name.
        if !matches!(&change, Change::Group(vm) if vm.name().is_empty()) {
            self.changes.of(change);
        }
        // The image repository unblocks all VMs, not only the VM that has created it.
        let is_reported =
            |key: &ObjectKey| !is_known || key.name() == names::IMAGE_REPOSITORY_CLAIM;
        if let Some(key) = key.filter(is_reported) {
            changed(self, &key);
        }
    }

    /// Reports the VM that the PVC's name contains: a PVC that a user has created may lack the label, or have
    /// that of another VM.
    fn claim_changed(&self, claim: &ObjectKey) {
        if claim.name() == names::IMAGE_REPOSITORY_CLAIM {
            self.report_waiting_vms(|_| true);
        }
        for vm in names::vms_of_claim(claim.name()) {
            let vm = claim.sibling(vm);
            if self.ctx.vms.get(&vm).is_some() {
                self.changes.object(vm);
            }
        }
    }

    /// Reports all VMs that name the image of a download pod.
    fn pod_changed(&self, pod: &ObjectKey) {
        if pod.name().starts_with(images::POD_PREFIX) {
            self.report_waiting_vms(|image| image.pod_name() == pod.name());
        }
    }

    /// Reports VMs that name such an image by URL. It searches all VMs: downloads are few, and an index would cost
    /// memory for each VM.
    fn report_waiting_vms(&self, is_image: impl Fn(&images::RemoteImage) -> bool) {
        self.changes
            .all(|vm| images::remote_images(vm).iter().any(&is_image));
    }
}
