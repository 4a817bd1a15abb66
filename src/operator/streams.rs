//! (client) The watches. Each lists once, follows from there, drops what nobody reads, and comes back after errors
//! with a growing pause.

use super::backoff::pause;
use super::cache::{Cache, Change};
use super::context::Context;
use super::leader::Leadership;
use super::settings::follow::Follower;
use super::views::{EventView, RegardingView, trim};
use super::vm::{
    self,
    unreadable::{Arriving, Unreadable},
};
use crate::api::{VirtualMachine, names};
use futures::{FutureExt, Stream, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;

/// The VMs: what has changed, and all that are there.
pub struct Vms<S> {
    /// VMs that were added, changed or deleted. Names only: ten thousand are listed at once.
    pub changed: S,
    /// All VMs.
    pub store: Store<VirtualMachine>,
}

/// How the first list of a watch is had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    /// As events, one object at a time: the least memory. All servers from 1.34 on can.
    Streamed,
    /// In pages.
    Paged,
}

impl Listing {
    fn of_version(major: &str, minor: &str) -> Self {
        // Some providers write "34+".
        let number = |text: &str| text.trim_end_matches('+').parse::<u32>().unwrap_or_default();
        if (number(major), number(minor)) >= (1, 34) { Self::Streamed } else { Self::Paged }
    }

    fn config(self) -> watcher::Config {
        match self {
            Self::Streamed => watcher::Config::default().streaming_lists(),
            Self::Paged => watcher::Config::default().page_size(50),
        }
    }
}

/// Asks the server what it is until it answers, and then for how to list.
async fn listing(client: Client) -> Listing {
    for failures in 1.. {
        match client.apiserver_version().await {
            Ok(version) => return Listing::of_version(&version.major, &version.minor),
            Err(error) => {
                tracing::warn!(%error, "the API server does not answer; trying again");
                tokio::time::sleep(pause(failures).min(LONGEST_PAUSE)).await;
            }
        }
    }
    Listing::Paged
}

/// The events of all objects of a kind that have the labels; it begins anew after errors.
fn events<K>(api: Api<K>, labels: &str) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static + use<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let labels = Some(labels.to_owned()).filter(|labels| !labels.is_empty());
    let asked = futures::stream::once(listing(api.clone().into_client()));
    asked.flat_map(move |listing| {
        let config = watcher::Config { label_selector: labels.clone(), ..listing.config() };
        watcher(api.clone(), config).backoff(Short::default())
    })
}

/// The pauses of a watch, but never long: an API server that comes back, and a definition that comes at last, are seen
/// soon.
#[derive(Default)]
struct Short(watcher::DefaultBackoff);

impl Iterator for Short {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|pause| pause.min(LONGEST_PAUSE))
    }
}

impl Backoff for Short {
    fn reset(&mut self) {
        self.0.reset();
    }
}

/// The longest pause before a watch begins anew, but for a part that is left to chance.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Watches VMs, as soon as the API server knows what they are. Those that cannot be read are told of on themselves.
#[must_use]
pub fn vms(ctx: &Arc<Context>) -> Vms<impl Stream<Item = ObjectRef<VirtualMachine>> + Send + 'static> {
    let (store, writer) = reflector::store();
    let api = Api::<Arriving>::namespaced(ctx.client.clone(), &ctx.namespace);
    let (unreadable, arrived) = mpsc::unbounded_channel();
    tokio::spawn(report_unreadable(ctx.clone(), arrived));
    let asked = futures::stream::once(listing(ctx.client.clone()));
    let events = asked.flat_map(move |listing| watcher(api.clone(), listing.config()).backoff(Short::default()));
    let ctx = ctx.clone();
    let stream = events
        .modify(trim)
        .filter_map(move |event| {
            note_definition(&ctx, event.as_ref().err());
            let event = match event {
                Ok(event) => vm::unreadable::readable(event, |it| drop(unreadable.send(it))).map(Ok),
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

fn failed(ctx: &Context, kind: &'static str, error: &watcher::Error) {
    ctx.metrics.watch_restarts.inc();
    tracing::warn!(kind, %error, "watch failed; beginning anew");
}

/// Remembers whether the API server knows VMs, and says once that it does not.
fn note_definition(ctx: &Context, error: Option<&watcher::Error>) {
    let missing = matches!(
        error,
        Some(watcher::Error::InitialListFailed(kube::Error::Api(status)) | watcher::Error::WatchStartFailed(kube::Error::Api(status)))
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
    watch.clone().follow_by_name("persistentvolumeclaims", "", |ctx| &ctx.caches.claims, Watch::claim_changed);
    watch.clone().follow_settings();
    watch.clone().follow_warnings();
    watch.clone().follow("services", &of_vms, |ctx| &ctx.caches.services);
    watch.follow("secrets", &secrets, |ctx| &ctx.caches.secrets);
    let namespace = ctx.namespace.clone();
    received(receiver).map(move |vm: String| ObjectRef::new(&vm).within(&namespace))
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
        () = leadership.elected() => {}
        // Watches do not end before the operator does.
        () = changes.then(|()| futures::future::pending()) => {}
    }
    let all = store.state().into_iter().map(|vm| ObjectRef::from_obj(vm.as_ref()));
    (Vms { changed: futures::stream::iter(all).chain(changed), store }, children)
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
        let events = events(Api::<K>::namespaced(self.ctx.client.clone(), &self.ctx.namespace), labels);
        tokio::spawn(async move {
            let mut events = std::pin::pin!(events);
            let mut complete = false;
            // Ends with the operator: then nobody listens any more.
            while let Some(event) = events.next().await.filter(|_| !self.changes.is_closed()) {
                match event {
                    Ok(event) => {
                        let name = match &event {
                            Event::Apply(object) | Event::Delete(object) => object.meta().name.clone(),
                            Event::Init | Event::InitApply(_) | Event::InitDone => None,
                        };
                        self.changed(cache(&self.ctx).watched(event.modify(trim)), &mut complete);
                        name.iter().for_each(|name| changed(&self, name));
                    }
                    Err(error) => failed(&self.ctx, kind, &error),
                }
            }
        });
    }

    /// Takes in each version of the operator's ConfigMap, from now on; all VMs are looked at where it changes
    /// something.
    fn follow_settings(self) {
        let Some(home) = self.ctx.home.clone() else { return };
        let config = watcher::Config::default().fields(&format!("metadata.name={}", names::OPERATOR_CONFIG_MAP));
        let events =
            watcher(Api::<ConfigMap>::namespaced(self.ctx.client.clone(), &home), config).backoff(Short::default());
        tokio::spawn(async move {
            let mut events = std::pin::pin!(events);
            let mut follower = Follower::default();
            while let Some(event) = events.next().await.filter(|_| !self.changes.is_closed()) {
                let changed = match event {
                    Ok(Event::Apply(config_map) | Event::InitApply(config_map)) => {
                        follower.saw(Some(&config_map), &self.ctx).await
                    }
                    Ok(Event::Delete(_)) => follower.saw(None, &self.ctx).await,
                    Ok(Event::Init | Event::InitDone) => false,
                    Err(error) => {
                        failed(&self.ctx, "configmaps of the operator", &error);
                        false
                    }
                };
                if changed {
                    self.all_changed();
                }
            }
        });
    }

    /// Keeps the warnings about pods and claims, from now on.
    fn follow_warnings(self) {
        let api = Api::<EventView>::namespaced(self.ctx.client.clone(), &self.ctx.namespace);
        let asked = futures::stream::once(listing(self.ctx.client.clone()));
        let events = asked.flat_map(move |listing| {
            // The server can tell warnings from the rest, but not whose objects they are about.
            watcher(api.clone(), listing.config().fields("type=Warning")).backoff(Short::default())
        });
        tokio::spawn(async move {
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.next().await.filter(|_| !self.changes.is_closed()) {
                match event {
                    Ok(Event::Apply(event) | Event::InitApply(event)) => {
                        if self.ctx.caches.warnings.saw(&event) {
                            self.warned(&event.regarding);
                        }
                    }
                    Ok(Event::InitDone) => self.ctx.caches.warnings.listed(),
                    // An event that the API server forgets says nothing; what it was about does.
                    Ok(Event::Init | Event::Delete(_)) => {}
                    Err(error) => failed(&self.ctx, "events", &error),
                }
            }
        });
    }

    /// The VMs that an object belongs to are looked at.
    fn warned(&self, regarding: &RegardingView) {
        let Some(name) = &regarding.name else { return };
        if regarding.kind.as_deref() == Some("Pod") {
            return self.looked_at(name);
        }
        if name == names::IMAGE_REPOSITORY_CLAIM {
            return self.all_changed();
        }
        self.claim_changed(name);
    }

    /// A claim may have been made by the user, without a label or with that of another VM; its name has the VM's in it.
    fn claim_changed(&self, name: &str) {
        for vm in names::vms_of_claim(name) {
            self.looked_at(vm);
        }
    }

    fn looked_at(&self, vm: &str) {
        if self.vms.get(&ObjectRef::new(vm).within(&self.ctx.namespace)).is_some() {
            drop(self.changes.send(vm.to_owned()));
        }
    }

    fn all_changed(&self) {
        for vm in self.vms.state() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_streamed_where_the_server_surely_can() {
        for (minor, listing) in
            [("34", Listing::Streamed), ("35+", Listing::Streamed), ("33", Listing::Paged), ("", Listing::Paged)]
        {
            assert_eq!(Listing::of_version("1", minor), listing, "{minor}");
        }
    }
}
