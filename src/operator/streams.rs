//! (client) The watches. Each lists once, follows from there, drops what nobody reads, and comes back after errors
//! with a growing pause.

use super::cache::{Cache, Change};
use super::context::Context;
use super::views::trim;
use crate::api::{VirtualMachine, names};
use futures::{Stream, StreamExt};
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The VMs: what has changed, and all that are there.
pub struct Vms<S> {
    /// VMs that were added or changed.
    pub stream: S,
    /// All VMs.
    pub store: Store<VirtualMachine>,
}

/// Watches VMs.
#[must_use]
pub fn vms(
    client: &Client,
    namespace: &str,
) -> Vms<impl Stream<Item = Result<VirtualMachine, watcher::Error>> + Send + 'static> {
    let (store, writer) = reflector::store();
    let api = Api::<VirtualMachine>::namespaced(client.clone(), namespace);
    let stream = watcher(api, watcher::Config::default().streaming_lists())
        .default_backoff()
        .modify(trim)
        .reflect(writer)
        // Deleted ones too: they have to be forgotten.
        .touched_objects();
    Vms { stream, store }
}

/// Watches the VMs' children into the context's caches. Gives the VMs whose children have changed since the first
/// lists were complete; the watches end when it is dropped.
pub fn children(
    ctx: &Arc<Context>,
    vms: &Store<VirtualMachine>,
) -> impl Stream<Item = ObjectRef<VirtualMachine>> + Send + 'static + use<> {
    let (changes, receiver) = mpsc::unbounded_channel();
    let of_vms = format!("{}={}", names::LABEL_NAME, names::APP_NAME);
    let secrets = format!("{of_vms},{}={}", names::LABEL_COMPONENT, names::COMPONENT_DISPLAY_SECRET);
    let watch = Watch { ctx: ctx.clone(), vms: vms.clone(), changes };
    watch.clone().follow("pods", "", |ctx| &ctx.caches.pods);
    watch.clone().follow("configmaps", &of_vms, |ctx| &ctx.caches.config_maps);
    watch.clone().follow("persistentvolumeclaims", "", |ctx| &ctx.caches.claims);
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
    vms: Store<VirtualMachine>,
    changes: mpsc::UnboundedSender<String>,
}

impl Watch {
    /// Keeps a cache in line with the cluster, from now on.
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
        let config = watcher::Config::default().streaming_lists();
        let config = if labels.is_empty() { config } else { config.labels(labels) };
        let api = Api::<K>::namespaced(self.ctx.client.clone(), &self.ctx.namespace);
        tokio::spawn(async move {
            let mut events = std::pin::pin!(watcher(api, config).default_backoff());
            let mut complete = false;
            // Ends with the operator: then nobody listens any more.
            while let Some(event) = events.next().await.filter(|_| !self.changes.is_closed()) {
                match event {
                    Ok(event) => self.changed(cache(&self.ctx).watched(event.modify(trim)), &mut complete),
                    Err(error) => {
                        self.ctx.metrics.watch_restarts.inc();
                        tracing::warn!(kind, %error, "watch failed; beginning anew");
                    }
                }
            }
        });
    }

    fn changed(&self, change: Change, complete: &mut bool) {
        match change {
            Change::Group(vm) if !vm.is_empty() => drop(self.changes.send(vm)),
            Change::None | Change::Group(_) => {}
            // Deletions may have been missed. After the very first list the controller looks at every VM anyway.
            Change::Relisted if *complete => {
                for vm in self.vms.state() {
                    drop(self.changes.send(vm.name_any()));
                }
            }
            Change::Relisted => *complete = true,
        }
    }
}
