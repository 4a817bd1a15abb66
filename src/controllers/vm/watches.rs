//! (client) The watches of VMs and of their children. Each fills a store and reports the VMs to reconcile.
//! [`crate::k8s::watch`] lists, follows and recovers from errors.

use crate::api::VirtualMachine;
use crate::api::vm::names;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::images;
use crate::controllers::vm::report;
use crate::controllers::vm::views::VmView;
use crate::k8s::events;
use crate::k8s::follow::{self, Changes};
use crate::k8s::key::ObjectKey;
use crate::k8s::store::children::{Cache, Change};
use crate::k8s::tasks::Tasks;
use crate::k8s::watch::{Guarded, NamespacedObject, filter_map, listed_in};
use futures::{FutureExt, Stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::events::EventType;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use std::sync::Arc;

/// A VM, or the error and the metadata of a VM that cannot be decoded.
type Vm = Guarded<VmView>;

/// Watches VMs into [`Context::vms`]. Returns the VMs that were added, changed or deleted. A VM that cannot be decoded
/// counts as missing. An event reports it.
pub fn vms(
    ctx: &Arc<Context>,
) -> impl Stream<Item = ObjectRef<VirtualMachine>> + Send + 'static + use<> {
    let config = watcher::Config::default();
    let events = listed_in::<Vm>(&ctx.cluster, &ctx.watched_namespace(), &config);
    let (cluster, vms, ctx) = (ctx.cluster.clone(), ctx.vms.clone(), ctx.clone());
    let events = filter_map(events, move |event| decode_event(event, &ctx));
    follow::primaries(&cluster, "vms", events, vms)
}

fn decode_event(event: Event<Vm>, ctx: &Arc<Context>) -> Option<Event<VirtualMachine>> {
    Some(match event {
        Event::Init => {
            ctx.undecodable().clear();
            Event::Init
        }
        Event::InitDone => Event::InitDone,
        Event::InitApply(guarded) => Event::InitApply(decode(guarded, ctx).ok()?),
        // The previous version of the VM may be in the store.
        Event::Apply(guarded) => match decode(guarded, ctx) {
            Ok(vm) => Event::Apply(vm),
            Err(invalid) => Event::Delete(placeholder(&invalid.metadata)?),
        },
        Event::Delete(Guarded(result)) => {
            let vm = result.map_or_else(
                |invalid| placeholder(&invalid.metadata),
                |vm| Some(vm.into()),
            )?;
            ctx.undecodable().remove(&vm.name_any());
            if ctx.cluster.leadership.leads() {
                tokio::spawn(report_shutdown(vm.clone(), ctx.clone()));
            }
            Event::Delete(vm)
        }
    })
}

/// Returns the VM, or records that it cannot be decoded. The leader reports such a VM at once, a standby operator when
/// it becomes the leader.
fn decode(Guarded(result): Vm, ctx: &Arc<Context>) -> Result<VirtualMachine, Box<InvalidObject>> {
    let mut undecodable = ctx.undecodable();
    match &result {
        Ok(vm) => drop(undecodable.remove(&vm.name_any())),
        Err(invalid) => {
            undecodable.insert(
                invalid.metadata.name.clone().unwrap_or_default(),
                invalid.clone(),
            );
            if ctx.cluster.leadership.leads() {
                tokio::spawn(report_undecodable(invalid.clone(), ctx.clone()));
            }
        }
    }
    result.map(VirtualMachine::from).map_err(Box::new)
}

/// A VM with this metadata and an empty spec. Only its metadata is used.
fn placeholder(metadata: &ObjectMeta) -> Option<VirtualMachine> {
    let vm: Option<VmView> =
        serde_json::from_value(json!({"metadata": metadata, "spec": {"vm": {}}})).ok();
    vm.map(VirtualMachine::from)
}

/// Logs and publishes which field of a VM cannot be decoded. Objects that were stored under another definition can be
/// undecodable; the API server rejects new ones.
async fn report_undecodable(invalid: InvalidObject, ctx: Arc<Context>) {
    let InvalidObject { error, metadata } = invalid;
    let name = metadata.name.as_deref().unwrap_or_default();
    // The error of the watch lacks the path of the field.
    let vm = ctx
        .writer()
        .find::<VirtualMachine, Value>(name)
        .await
        .ok()
        .flatten();
    let located = vm.and_then(|vm| serde_path_to_error::deserialize::<_, VmView>(&vm).err());
    let problem = located.map_or(error, |error| {
        format!("{}: {}", error.path(), error.inner())
    });
    let namespace = &ctx.namespace;
    let message = format!(
        "the operator cannot decode the VM object: {problem}; correct the VM (kubectl edit vm {name} -n {namespace}), or apply the \
         CRDs of the operator's version (kubectl apply -f crds/). Until then the operator does not change the VM's pod"
    );
    tracing::warn!(vm = name, "{message}");
    let Some(vm) = placeholder(&metadata).map(|vm| vm.object_ref(&())) else {
        return;
    };
    events::publish(
        &ctx.cluster,
        &vm,
        EventType::Warning,
        "Unreadable",
        &message,
    )
    .await;
}

/// Reports that the guest of a deleted VM shuts down.
async fn report_shutdown(vm: VirtualMachine, ctx: Arc<Context>) {
    report::publish_shutdown(&vm, &ctx).await;
}

/// Reports all VMs that cannot be decoded.
pub fn report_all_undecodable(ctx: &Arc<Context>) {
    for invalid in ctx.undecodable().values() {
        tokio::spawn(report_undecodable(invalid.clone(), ctx.clone()));
    }
}

/// Watches the VMs' children into the context's stores. Returns the VMs with children that have changed since the
/// first lists were complete.
pub fn children(
    ctx: &Arc<Context>,
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
    let mut spawn = |kind: &str, task| tasks.spawn(format!("watch of {kind}"), task);
    let pods = watch.follow("pods", "", &caches.pods, ChildWatch::pod_changed);
    spawn("pods", pods.boxed());
    let maps = watch.follow("configmaps", &of_vms, &caches.config_maps, ignore);
    spawn("configmaps", maps.boxed());
    let kind = "persistentvolumeclaims";
    let claims = watch.follow(kind, "", &caches.claims, ChildWatch::claim_changed);
    spawn(kind, claims.boxed());
    let services = watch.follow("services", &of_vms, &caches.services, ignore);
    spawn("services", services.boxed());
    let secrets = watch.follow("secrets", &secrets, &caches.secrets, ignore);
    spawn("secrets", secrets.boxed());
    let reports = watch.follow("vmreports", "", &caches.reports, ignore);
    spawn("vmreports", reports.boxed());
    changed
}

/// For kinds with objects that name their VM.
fn ignore(_: &ChildWatch, _: &ObjectKey) {}

#[derive(Clone)]
struct ChildWatch {
    ctx: Arc<Context>,
    changes: Changes<VirtualMachine>,
}

impl ChildWatch {
    /// Watches a kind into its store. Reports the VM that the object's label names. `changed` is called with the key of
    /// each object that was added, changed or deleted.
    fn follow<K: NamespacedObject>(
        &self,
        kind: &'static str,
        labels: &str,
        cache: &Arc<Cache<K>>,
        changed: fn(&Self, &ObjectKey),
    ) -> impl Future<Output = ()> + Send + 'static + use<K> {
        let (watch, cluster) = (self.clone(), &self.ctx.cluster);
        let labels = Some(labels.to_owned()).filter(|labels| !labels.is_empty());
        let config = watcher::Config {
            label_selector: labels,
            ..watcher::Config::default()
        };
        let events = listed_in::<K>(cluster, &self.ctx.watched_namespace(), &config);
        let on_change = move |key, change| watch.changed(key, change, changed);
        follow::children(cluster.clone(), kind, events, cache.clone(), on_change)
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
