//! The watches of what belongs to VMs: each keeps a cache, and says which VMs are to be looked at.

use crate::api::VirtualMachine;
use crate::api::vm::names;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::images;
use crate::controllers::vm::watches::failed;
use crate::k8s::store::children::{Cache, Change};
use crate::k8s::tasks::Tasks;
use crate::k8s::watch::listed;
use futures::{FutureExt, Stream, StreamExt};
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Watches the VMs' children into the context's caches. Gives the VMs whose children have changed since the first
/// lists were complete.
pub fn children(
    ctx: &Arc<Context>,
    tasks: &mut Tasks,
) -> impl Stream<Item = ObjectRef<VirtualMachine>> + Send + 'static + use<> {
    let (changes, receiver) = mpsc::unbounded_channel();
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
    let ctx = ctx.clone();
    received(receiver).map(move |vm: String| ctx.key(&vm).object_ref())
}

/// For kinds whose objects have the label of their VM.
fn ignore(_: &Watch, _: &str) {}

fn received<T>(mut receiver: mpsc::UnboundedReceiver<T>) -> impl Stream<Item = T> {
    futures::stream::poll_fn(move |cx| receiver.poll_recv(cx))
}

#[derive(Clone)]
struct Watch {
    ctx: Arc<Context>,
    changes: mpsc::UnboundedSender<String>,
}

impl Watch {
    /// Keeps a cache in line with the cluster. The VM whose label an object has is reconciled. `changed` is called with the name
    /// of each object that was added, changed or deleted.
    fn follow<K>(
        &self,
        kind: &'static str,
        labels: &str,
        cache: &Arc<Cache<K>>,
        changed: fn(&Self, &str),
    ) -> impl Future<Output = ()> + Send + 'static + use<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        let (watch, cache) = (self.clone(), cache.clone());
        let labels = Some(labels.to_owned()).filter(|labels| !labels.is_empty());
        let config = watcher::Config {
            label_selector: labels,
            ..watcher::Config::default()
        };
        let api = Api::<K>::namespaced(self.ctx.cluster.client.clone(), &self.ctx.namespace);
        let events = listed(api, config, self.ctx.cluster.watch_pause);
        async move {
            let mut events = std::pin::pin!(events);
            let mut complete = false;
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => watch.take_in(event, &cache, changed, &mut complete),
                    Err(error) => failed(&watch.ctx, kind, &error),
                }
            }
        }
    }

    fn take_in<K: Resource>(
        &self,
        event: Event<K>,
        cache: &Cache<K>,
        changed: fn(&Self, &str),
        complete: &mut bool,
    ) {
        let name = match &event {
            Event::Apply(object) | Event::Delete(object) => object.meta().name.clone(),
            Event::Init | Event::InitApply(_) | Event::InitDone => None,
        };
        let change = cache.watched(event);
        let is_known = change == Change::None;
        self.changed(change, complete);
        // Other VMs wait for the image repository, whose creation the VM that created it knows already.
        let is_repository = name.as_deref() == Some(names::IMAGE_REPOSITORY_CLAIM);
        if let Some(name) = name.filter(|_| !is_known || is_repository) {
            changed(self, &name);
        }
    }

    /// A claim may have been made by the user, without a label or with that of another VM; its name has the VM's in it.
    fn claim_changed(&self, name: &str) {
        if name == names::IMAGE_REPOSITORY_CLAIM {
            self.waiting_for(|_| true);
        }
        for vm in names::vms_of_claim(name) {
            self.looked_at(vm);
        }
    }

    /// A pod that fetches an image is of all VMs that name that image.
    fn pod_changed(&self, name: &str) {
        if name.starts_with(images::POD_PREFIX) {
            self.waiting_for(|image| image.pod_name() == name);
        }
    }

    /// The VMs that name such an image by URL are looked at. They are looked for: fetches are few, and an index would
    /// cost memory for each VM.
    fn waiting_for(&self, is_meant: impl Fn(&images::Remote) -> bool) {
        for vm in self
            .ctx
            .vms
            .reader()
            .state()
            .iter()
            .filter(|vm| images::remotes(vm).iter().any(&is_meant))
        {
            drop(self.changes.send(vm.name_any()));
        }
    }

    fn looked_at(&self, vm: &str) {
        if self.ctx.vms.get(&self.ctx.key(vm)).is_some() {
            drop(self.changes.send(vm.to_owned()));
        }
    }

    fn all_changed(&self) {
        for vm in self.ctx.vms.reader().state() {
            drop(self.changes.send(vm.name_any()));
        }
    }

    fn changed(&self, change: Change, complete: &mut bool) {
        match change {
            Change::Group(vm) if !vm.is_empty() => drop(self.changes.send(vm)),
            Change::None | Change::Group(_) => {}
            // Deletions may have been missed. After the very first list the controller looks at every VM anyway.
            Change::Relisted if *complete => self.all_changed(),
            Change::Relisted => *complete = true,
        }
    }
}
