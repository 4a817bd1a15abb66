//! The watch of VMs: what has changed, and waiting for the lead.

use super::super::backoff::pause;
use super::super::context::Context;
use super::super::leader::Leadership;
use super::super::views::trim;
use super::super::vm::{
    self,
    unreadable::{Arriving, Unreadable},
};
use super::failed;
use super::listed::listed;
use crate::api::VirtualMachine;
use futures::{FutureExt, Stream, StreamExt};
use kube::Resource;
use kube::api::Api;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, reflector, watcher};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

/// The VMs: what has changed, and all that are there.
pub struct Vms<S> {
    /// VMs that were added, changed or deleted. Names only: ten thousand are listed at once.
    pub changed: S,
    /// All VMs.
    pub store: Store<VirtualMachine>,
}

/// Watches VMs, as soon as the API server knows what they are. Those that cannot be read are told of on themselves.
#[must_use]
pub fn vms(ctx: &Arc<Context>) -> Vms<impl Stream<Item = ObjectRef<VirtualMachine>> + Send + 'static> {
    let (store, writer) = reflector::store();
    let api = Api::<Arriving>::namespaced(ctx.client.clone(), &ctx.namespace);
    let (unreadable, arrived) = mpsc::unbounded_channel();
    tokio::spawn(report_unreadable(ctx.clone(), arrived));
    let events = listed(api, watcher::Config::default(), ctx.watch_pause);
    let ctx = ctx.clone();
    let stream = events
        .modify(trim)
        .filter_map(move |event| {
            note_definition(&ctx, &event);
            let event = match event {
                Ok(event) => vm::unreadable::readable(event, |it| drop(unreadable.send(it))).map(|event| {
                    if let Event::Apply(vm) | Event::InitApply(vm) = &event {
                        ctx.versions.saw(vm);
                    }
                    Ok(event)
                }),
                // The controller would let all that it listens to pause, on top of the pause of this watch.
                Err(error) => {
                    failed(&ctx, "vms", &error);
                    None
                }
            };
            futures::future::ready(event)
        })
        .reflect(writer);
    Vms { changed: in_store(stream), store }
}

/// The objects that were added, changed or deleted, each when the store shows it so. A list comes into the store as a
/// whole at its end: whoever looks there for an object of a list that is under way sees what was before, and would miss
/// what has changed.
fn in_store<K: Resource<DynamicType = ()> + Send + 'static>(
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
) -> impl Stream<Item = ObjectRef<K>> + Send + 'static {
    let mut listed = Vec::new();
    events.flat_map(move |event| {
        let objects = match event {
            Ok(Event::Apply(object) | Event::Delete(object)) => vec![ObjectRef::from_obj(&object)],
            Ok(Event::Init) => {
                listed.clear();
                Vec::new()
            }
            Ok(Event::InitApply(object)) => {
                listed.push(ObjectRef::from_obj(&object));
                Vec::new()
            }
            Ok(Event::InitDone) => std::mem::take(&mut listed),
            // Was told of where it came from.
            Err(_) => Vec::new(),
        };
        futures::stream::iter(objects)
    })
}

/// Remembers whether the API server knows VMs, and says once that it does not.
fn note_definition(ctx: &Context, event: &watcher::Result<Event<Arriving>>) {
    // A list begins before its first page is asked for.
    if matches!(event, Ok(Event::Init)) {
        return;
    }
    let missing = matches!(
        event,
        Err(watcher::Error::InitialListFailed(kube::Error::Api(status)) | watcher::Error::WatchStartFailed(kube::Error::Api(status)))
            if status.code == 404
    );
    if ctx.definition_missing.swap(missing, Ordering::Relaxed) != missing {
        match missing {
            true => tracing::error!("the API server does not know VirtualMachines; kubectl apply -f crds/; waiting"),
            false => tracing::info!("the API server knows VirtualMachines now"),
        }
    }
}

/// Tells of each VM that cannot be read, one after another.
async fn report_unreadable(ctx: Arc<Context>, mut arrived: mpsc::UnboundedReceiver<Unreadable>) {
    // Who waits for the lead has to remember the last of each.
    let mut last = HashMap::new();
    loop {
        tokio::select! {
            biased;
            vm = arrived.recv() => match vm {
                Some(vm) => drop(last.insert(vm.metadata.name.clone(), vm)),
                None => return,
            },
            () = ctx.leadership.elected() => break,
        }
    }
    for vm in last.into_values() {
        say_unreadable(&ctx, &vm).await;
    }
    while let Some(vm) = arrived.recv().await {
        say_unreadable(&ctx, &vm).await;
    }
}

async fn say_unreadable(ctx: &Context, vm: &Unreadable) {
    // A few times: whatever changes the object sends it here again.
    for failures in 1..5 {
        match vm::unreadable::report(vm, ctx).await {
            Ok(()) => break,
            Err(error) => tracing::warn!(%error, "cannot say on a VM that it cannot be read"),
        }
        tokio::time::sleep(pause(failures)).await;
    }
}

/// Keeps the stores up to date without acting on a change, until this operator leads. Then all VMs are looked at once.
pub async fn stand_by<S, T>(
    vms: Vms<S>,
    mut children: T,
    leadership: &Leadership,
) -> (Vms<impl Stream<Item = ObjectRef<VirtualMachine>> + Send + 'static + use<S, T>>, T)
where
    S: Stream<Item = ObjectRef<VirtualMachine>> + Send + 'static,
    T: Stream<Item = ObjectRef<VirtualMachine>> + Send + Unpin + 'static,
{
    let Vms { changed, store } = vms;
    let mut changed = Box::pin(changed);
    let changes = futures::stream::select(changed.by_ref(), children.by_ref()).map(drop).collect::<()>();
    tokio::select! {
        biased;
        () = leadership.elected() => {}
        // Watches do not end before the operator does.
        () = changes.then(|()| futures::future::pending()) => {}
    }
    let all = store.state().into_iter().map(|vm| ObjectRef::from_obj(vm.as_ref()));
    (Vms { changed: futures::stream::iter(all).chain(changed), store }, children)
}
