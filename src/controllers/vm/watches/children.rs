//! The watches of what belongs to VMs: each keeps a cache, and says which VMs are to be looked at.

use crate::api::VirtualMachine;
use crate::api::vm::names;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::images;
use crate::controllers::vm::watches::{events, failed};
use crate::k8s::store::children::{Cache, Change};
use futures::{Stream, StreamExt};
use kube::core::NamespaceResourceScope;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Watches the VMs' children into the context's caches. Gives the VMs whose children have changed since the first
/// lists were complete; the watches end when it is dropped.
pub fn children(
    ctx: &Arc<Context>,
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
    watch
        .clone()
        .follow_by_name("pods", "", |ctx| &ctx.caches.pods, Watch::pod_changed);
    watch
        .clone()
        .follow("configmaps", &of_vms, |ctx| &ctx.caches.config_maps);
    watch.clone().follow_by_name(
        "persistentvolumeclaims",
        "",
        |ctx| &ctx.caches.claims,
        Watch::claim_changed,
    );
    watch
        .clone()
        .follow("services", &of_vms, |ctx| &ctx.caches.services);
    watch.follow("secrets", &secrets, |ctx| &ctx.caches.secrets);
    let namespace = ctx.namespace.clone();
    received(receiver).map(move |vm: String| ObjectRef::new(&vm).within(&namespace))
}

fn received<T>(mut receiver: mpsc::UnboundedReceiver<T>) -> impl Stream<Item = T> {
    futures::stream::poll_fn(move |cx| receiver.poll_recv(cx))
}

#[derive(Clone)]
struct Watch {
    ctx: Arc<Context>,
    changes: mpsc::UnboundedSender<String>,
}

impl Watch {
    /// Keeps a cache in line with the cluster, from now on. The VM whose label an object has is looked at.
    fn follow<K>(self, kind: &'static str, labels: &str, cache: fn(&Context) -> &Cache<K>)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        self.follow_by_name(kind, labels, cache, |_, _| ());
    }

    /// The same; `changed` is called with the name of each object that was added, changed or deleted, too.
    fn follow_by_name<K>(
        self,
        kind: &'static str,
        labels: &str,
        cache: fn(&Context) -> &Cache<K>,
        changed: fn(&Self, &str),
    ) where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        let events = events::<K>(&self.ctx, labels);
        tokio::spawn(async move {
            let mut events = std::pin::pin!(events);
            let mut complete = false;
            while let Some(event) = self.next(&mut events).await {
                match event {
                    Ok(event) => {
                        let name = match &event {
                            Event::Apply(object) | Event::Delete(object) => {
                                object.meta().name.clone()
                            }
                            Event::Init | Event::InitApply(_) | Event::InitDone => None,
                        };
                        let change = cache(&self.ctx).watched(event);
                        let is_known = change == Change::None;
                        self.changed(change, &mut complete);
                        // Other VMs wait for the image repository, whose creation the VM that created it knows already.
                        let names = name
                            .iter()
                            .filter(|name| !is_known || *name == names::IMAGE_REPOSITORY_CLAIM);
                        names.for_each(|name| changed(&self, name));
                    }
                    Err(error) => failed(&self.ctx, kind, &error),
                }
            }
        });
    }

    /// The next event; none once nobody receives the changes any more, as the operator ends or starts again.
    async fn next<E>(&self, events: &mut (impl Stream<Item = E> + Unpin)) -> Option<E> {
        tokio::select! {
            event = events.next() => event,
            () = self.changes.closed() => None,
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
        if self
            .ctx
            .vms
            .reader()
            .get(&ObjectRef::new(vm).within(&self.ctx.namespace))
            .is_some()
        {
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
