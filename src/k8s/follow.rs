//! (client) Applies watch events to the stores, and reports the primary objects to reconcile.

use crate::k8s::cluster::Cluster;
use crate::k8s::key::ObjectKey;
use crate::k8s::store::children::{Cache, Change};
use crate::k8s::store::primary::PrimaryStore;
use crate::k8s::tasks::Tasks;
use crate::k8s::watch::{NamespacedObject, Namespaces, is_unreadable, listed_in};
use futures::{Stream, StreamExt};
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Applies the events of primary objects to their store. Returns the keys of added, changed and deleted objects, each
/// after the store has the change. The stream has keys only, because a list can have ten thousand objects.
pub fn primaries<K, S>(
    cluster: &Cluster,
    resource: &'static str,
    events: S,
    store: Arc<PrimaryStore<K>>,
) -> impl Stream<Item = ObjectRef<K>> + Send + 'static + use<K, S>
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    S: Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
{
    let cluster = cluster.clone();
    let mut listed = Vec::new();
    events.flat_map(move |event| {
        let is_reported = store.note_definition(&event, &cluster);
        let changed = match event {
            Ok(event) => {
                store.watched(&event);
                changed_by(event, &mut listed)
            }
            Err(_) if is_reported => Vec::new(),
            Err(error) => {
                failed(&cluster, resource, &error);
                Vec::new()
            }
        };
        futures::stream::iter(changed)
    })
}

/// The objects that have changed. A list replaces the content of the store as a whole at its end.
fn changed_by<K>(event: Event<K>, listed: &mut Vec<ObjectRef<K>>) -> Vec<ObjectRef<K>>
where
    K: Resource<DynamicType = ()>,
{
    match event {
        Event::Apply(object) | Event::Delete(object) => return vec![ObjectRef::from_obj(&object)],
        Event::Init => listed.clear(),
        Event::InitApply(object) => listed.push(ObjectRef::from_obj(&object)),
        Event::InitDone => return std::mem::take(listed),
    }
    Vec::new()
}

/// Applies the events of children to their cache. `changed` gets each change and the key of the added, changed or
/// deleted object. The first list is no change: the controller reconciles all primary objects after it.
pub async fn children<K: Resource<DynamicType = ()>>(
    cluster: Cluster,
    resource: &'static str,
    events: impl Stream<Item = watcher::Result<Event<K>>>,
    cache: Arc<Cache<K>>,
    changed: impl Fn(Option<ObjectKey>, Change),
) {
    let mut events = std::pin::pin!(events);
    let mut is_complete = false;
    while let Some(event) = events.next().await {
        let is_reported = cache.note_definition(&event, &cluster);
        let event = match event {
            Ok(event) => event,
            Err(_) if is_reported => continue,
            Err(error) => {
                failed(&cluster, resource, &error);
                continue;
            }
        };
        let key = match &event {
            Event::Apply(object) | Event::Delete(object) => Some(ObjectKey::of(object)),
            Event::Init | Event::InitApply(_) | Event::InitDone => None,
        };
        let change = cache.watched(event);
        let is_first = change == Change::Relisted && !std::mem::replace(&mut is_complete, true);
        if !is_first {
            changed(key, change);
        }
    }
}

/// Starts a task that watches the objects of a kind with these labels into the cache. Without labels, it watches all objects. `changed` is
/// that of [`children`].
pub fn spawn_children<K: NamespacedObject>(
    cluster: &Cluster,
    namespaces: &Namespaces,
    tasks: &mut Tasks,
    resource: &'static str,
    labels: &str,
    cache: &Arc<Cache<K>>,
    changed: impl Fn(Option<ObjectKey>, Change) + Send + 'static,
) {
    let config = watcher::Config {
        label_selector: Some(labels.to_owned()).filter(|labels| !labels.is_empty()),
        ..watcher::Config::default()
    };
    let events = listed_in::<K>(cluster, namespaces, &config);
    let watch = children(cluster.clone(), resource, events, cache.clone(), changed);
    tasks.spawn(format!("watch of {resource}"), watch);
}

fn failed(cluster: &Cluster, resource: &'static str, error: &watcher::Error) {
    if is_unreadable(error) {
        return tracing::warn!(kind = resource, %error, "cannot decode a changed object from the API server; the operator ignores this change. Correct the field that the error names");
    }
    cluster.metrics.watch_restarts.inc();
    tracing::warn!(kind = resource, %error, "a watch has failed; the operator lists the objects again");
}

/// Reports primary objects with changed children.
pub struct Changes<K: Resource<DynamicType = ()> + Clone + 'static> {
    store: Arc<PrimaryStore<K>>,
    sender: mpsc::UnboundedSender<ObjectKey>,
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> Clone for Changes<K> {
    fn clone(&self) -> Self {
        let (store, sender) = (self.store.clone(), self.sender.clone());
        Self { store, sender }
    }
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> Changes<K> {
    /// Reports objects of that store. The returned stream yields them.
    pub fn new(store: Arc<PrimaryStore<K>>) -> (Self, impl Stream<Item = ObjectRef<K>> + use<K>) {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let changed = futures::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        let changed = changed.map(|key: ObjectKey| key.object_ref());
        (Self { store, sender }, changed)
    }

    /// Reports one object.
    pub fn object(&self, key: ObjectKey) {
        // The send fails only while the process exits.
        drop(self.sender.send(key));
    }

    /// Reports all objects for which `is_meant` returns true.
    pub fn all(&self, is_meant: impl Fn(&K) -> bool) {
        for object in self.store.reader().state() {
            if is_meant(&object) {
                self.object(ObjectKey::of(&*object));
            }
        }
    }

    /// Reports the object of the changed group. After a new list it reports all objects, because deletions may have
    /// been missed.
    pub fn of(&self, change: Change) {
        match change {
            Change::Group(key) => self.object(key),
            Change::Relisted => self.all(|_| true),
            Change::None => {}
        }
    }
}
