//! The watches of the VMs' children: each fills a cache and reports the VMs to reconcile.

use crate::api::VirtualMachine;
use crate::api::vm::names;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::images;
use crate::k8s::follow::{self, Changes};
use crate::k8s::key::ObjectKey;
use crate::k8s::store::children::{Cache, Change};
use crate::k8s::tasks::Tasks;
use crate::k8s::watch::{NamespacedObject, listed_in};
use futures::{FutureExt, Stream};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use std::sync::Arc;

/// Watches the VMs' children into the context's caches. Returns the VMs whose children have changed since the first
/// lists were complete.
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
    let watch = Watch {
        ctx: ctx.clone(),
        changes,
    };
    let caches = &ctx.caches;
    let mut follow = |kind: &str, task| tasks.spawn(format!("watch of {kind}"), task);
    let pods = watch.follow("pods", "", &caches.pods, Watch::pod_changed);
    follow("pods", pods.boxed());
    let maps = watch.follow("configmaps", &of_vms, &caches.config_maps, ignore);
    follow("configmaps", maps.boxed());
    let kind = "persistentvolumeclaims";
    let claims = watch.follow(kind, "", &caches.claims, Watch::claim_changed);
    follow(kind, claims.boxed());
    let services = watch.follow("services", &of_vms, &caches.services, ignore);
    follow("services", services.boxed());
    let secrets = watch.follow("secrets", &secrets, &caches.secrets, ignore);
    follow("secrets", secrets.boxed());
    changed
}

/// For kinds whose objects have the label of their VM.
fn ignore(_: &Watch, _: &ObjectKey) {}

#[derive(Clone)]
struct Watch {
    ctx: Arc<Context>,
    changes: Changes<VirtualMachine>,
}

impl Watch {
    /// Keeps a cache in line with the cluster. The VM that an object's label names is reconciled. `changed` is called with the key
    /// of each object that was added, changed or deleted.
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
        // Claims of no VM are in the group without a name.
        if !matches!(&change, Change::Group(vm) if vm.name().is_empty()) {
            self.changes.of(change);
        }
        // Other VMs wait for the image repository, whose creation the VM that created it knows already.
        let is_meant = |key: &ObjectKey| !is_known || key.name() == names::IMAGE_REPOSITORY_CLAIM;
        if let Some(key) = key.filter(is_meant) {
            changed(self, &key);
        }
    }

    /// A user may have created a claim without a label or with that of another VM; the claim's name contains the VM's name.
    fn claim_changed(&self, claim: &ObjectKey) {
        if claim.name() == names::IMAGE_REPOSITORY_CLAIM {
            self.waiting_for(|_| true);
        }
        for vm in names::vms_of_claim(claim.name()) {
            let vm = claim.sibling(vm);
            if self.ctx.vms.get(&vm).is_some() {
                self.changes.object(vm);
            }
        }
    }

    /// A pod that downloads an image belongs to all VMs that name this image.
    fn pod_changed(&self, pod: &ObjectKey) {
        if pod.name().starts_with(images::POD_PREFIX) {
            self.waiting_for(|image| image.pod_name() == pod.name());
        }
    }

    /// VMs that name such an image by URL are reconciled. All VMs are searched: downloads are few, and an index would cost memory
    /// for each VM.
    fn waiting_for(&self, is_meant: impl Fn(&images::Remote) -> bool) {
        self.changes
            .all(|vm| images::remotes(vm).iter().any(&is_meant));
    }
}
