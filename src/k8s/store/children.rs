//! The newest known state of each object of one kind.
//!
//! Two sources feed a cache: the watch, and the responses to the operator's own writes. The second source makes the
//! operator read its own writes: the next reconcile sees an object that was just created, even before the watch reports
//! it. The cache never returns to an older state: it keeps the object with the higher `resourceVersion`. Kubernetes
//! defines since 1.35 that resource versions are increasing numbers. With etcd they always were.

use crate::k8s::cluster::Cluster;
use crate::k8s::key::ObjectKey;
use crate::k8s::registry::Stored;
use crate::k8s::store::Definition;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Resource;
use kube::runtime::watcher::{self, Event};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The effect of a watch event on the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// No change: the object was known in this version or a newer one.
    None,
    /// The object of this group changed. [`Cache::new`] has the function that gives the group.
    Group(ObjectKey),
    /// A new list has replaced the content: anything may have changed.
    Relisted,
}

/// The objects of one kind, in groups. A group is the key of the primary object that the objects belong to. Objects that concern
/// several primary objects share a made-up key, such as their namespace, and their changes are reported for all primary objects.
pub struct Cache<K> {
    group_of: fn(&K) -> Option<ObjectKey>,
    content: Mutex<Content<K>>,
    ready: watch::Sender<bool>,
    definition: Definition,
}

struct Content<K> {
    /// The objects by group and key.
    objects: BTreeMap<(ObjectKey, ObjectKey), Arc<K>>,
    groups: HashMap<ObjectKey, ObjectKey>,
    /// Keys of deleted objects with the version of the deletion. The response to a write that arrives after the
    /// deletion must not restore the object.
    deleted: HashMap<ObjectKey, u64>,
    /// Objects of a list that is not complete yet.
    listing: Vec<K>,
    /// Number of complete lists.
    lists: u64,
}

/// A write in progress.
pub struct Writing<'a, K> {
    cache: &'a Cache<K>,
    /// The number of complete lists when the write started.
    lists: u64,
}

impl<K: Resource> Writing<'_, K> {
    /// Applies the response to the cache and returns it.
    ///
    /// A response is ignored if a new list was completed after the write had started: the object may have been deleted
    /// since, and a list does not report deletions. If the object still exists, the list or the watch reports it. A
    /// response without a version is ignored, too. The API server returns one when a finished pod is deleted while the
    /// kubelet deletes it.
    pub fn answered(self, object: K) -> Arc<K> {
        let object = Arc::new(object);
        let Some(version) = version(&*object) else {
            return object;
        };
        let mut content = self.cache.lock();
        let deleted_later = content
            .deleted
            .get(&ObjectKey::of(&*object))
            .is_some_and(|deleted| *deleted >= version);
        if content.lists == self.lists && !deleted_later {
            content.insert(object.clone(), self.cache.group_of);
        }
        object
    }
}

/// The number of deletions that are remembered. It is larger than the number of concurrent writes.
const DELETIONS_MAX: usize = 4096;

/// The version of the object, if it is a number.
pub fn version<K: Resource>(object: &K) -> Option<u64> {
    object.meta().resource_version.as_deref()?.parse().ok()
}

/// Whether both versions are known and the first is higher.
pub fn is_newer<K: Resource>(object: &K, than: &K) -> bool {
    version(object)
        .zip(version(than))
        .is_some_and(|(object, than)| object > than)
}

impl<K: Resource> Cache<K> {
    /// An empty cache. It ignores objects without a group.
    #[must_use]
    pub fn new(group_of: fn(&K) -> Option<ObjectKey>) -> Self {
        let content = Content {
            objects: BTreeMap::new(),
            groups: HashMap::new(),
            deleted: HashMap::new(),
            listing: Vec::new(),
            lists: 0,
        };
        Self {
            group_of,
            content: Mutex::new(content),
            ready: watch::Sender::new(false),
            definition: Definition::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Content<K>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a watch event.
    pub fn watched(&self, event: Event<K>) -> Change {
        let mut content = self.lock();
        match event {
            Event::Apply(object) => content
                .insert(Arc::new(object), self.group_of)
                .map_or(Change::None, Change::Group),
            Event::Delete(object) => {
                let key = ObjectKey::of(&object);
                // The event of a previous object with this name can arrive after the answer to the creation of the next one.
                if content
                    .known(&key)
                    .is_some_and(|known| is_newer(&**known, &object))
                {
                    return Change::None;
                }
                if content.deleted.len() >= DELETIONS_MAX {
                    content.deleted.clear();
                }
                let version = version(&object).unwrap_or(u64::MAX);
                content.deleted.insert(key.clone(), version);
                content.remove(&key).map_or(Change::None, Change::Group)
            }
            Event::Init => {
                content.listing.clear();
                Change::None
            }
            Event::InitApply(object) => {
                content.listing.push(object);
                Change::None
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut content.listing);
                let newest =
                    listed
                        .into_iter()
                        .map(|object| match content.known(&ObjectKey::of(&object)) {
                            Some(known) if is_newer(&**known, &object) => known.clone(),
                            _ => Arc::new(object),
                        });
                let newest: Vec<_> = newest.collect();
                content.lists += 1;
                content.objects.clear();
                content.groups.clear();
                // Responses to writes from before the list are ignored from now on.
                content.deleted.clear();
                for object in newest {
                    content.insert(object, self.group_of);
                }
                drop(content);
                self.ready.send_replace(true);
                Change::Relisted
            }
        }
    }

    /// Records whether the API server knows the kind, and logs changes. Returns whether it is unknown, which the
    /// log says once.
    pub fn note_definition(&self, event: &watcher::Result<Event<K>>, cluster: &Cluster) -> bool
    where
        K: Resource<DynamicType = ()>,
    {
        self.definition
            .note::<K, K>(event, cluster.install_command(&K::plural(&())))
    }

    /// Must be called before sending a write, if the store should apply its response.
    #[must_use]
    pub fn writing(&self) -> Writing<'_, K> {
        Writing {
            cache: self,
            lists: self.lock().lists,
        }
    }

    /// The object of that key.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.lock().known(key).cloned()
    }

    /// The objects of the group, by key.
    #[must_use]
    pub fn group(&self, group: &ObjectKey) -> Vec<Arc<K>> {
        self.while_group(group, |found| found == group)
    }

    /// The objects of all groups of the namespace with names that begin with that name.
    #[must_use]
    pub fn groups(&self, prefix: &ObjectKey) -> Vec<Arc<K>> {
        self.while_group(prefix, |found| found.begins_with(prefix))
    }

    fn while_group(&self, first: &ObjectKey, is_meant: impl Fn(&ObjectKey) -> bool) -> Vec<Arc<K>> {
        let content = self.lock();
        let from = (first.clone(), ObjectKey::new("", ""));
        let objects = content.objects.range(from..);
        let meant = objects.take_while(|((group, _), _)| is_meant(group));
        meant.map(|(_, object)| object.clone()).collect()
    }

    /// The number of known objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().objects.len()
    }

    /// Whether no object is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Resource + Send + Sync> Stored for Cache<K> {
    fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    fn ready(&self) -> BoxFuture<'_, ()> {
        // The sender lives as long as the cache, so this cannot fail.
        async { drop(self.ready.subscribe().wait_for(|ready| *ready).await) }.boxed()
    }

    fn count(&self) -> usize {
        self.len()
    }

    fn is_unknown(&self) -> bool {
        self.definition.is_unknown()
    }
}

impl<K: Resource> Content<K> {
    fn known(&self, key: &ObjectKey) -> Option<&Arc<K>> {
        let (key, group) = self.groups.get_key_value(key)?;
        self.objects.get(&(group.clone(), key.clone()))
    }

    /// Inserts the object unless this version or a newer one is known. Returns the group if the content changed.
    fn insert(
        &mut self,
        object: Arc<K>,
        group_of: fn(&K) -> Option<ObjectKey>,
    ) -> Option<ObjectKey> {
        let key = ObjectKey::of(&*object);
        let known = self.known(&key).and_then(|known| version(&**known));
        if known
            .zip(version(&*object))
            .is_some_and(|(known, version)| known >= version)
        {
            return None;
        }
        let before = self.remove(&key);
        let Some(group) = group_of(&object) else {
            return before;
        };
        // Most objects have the name of their group. The two keys then share the text.
        let group = if group == key { key.clone() } else { group };
        self.groups.insert(key.clone(), group.clone());
        self.objects.insert((group.clone(), key), object);
        Some(group)
    }

    /// Removes the object and returns its group.
    fn remove(&mut self, key: &ObjectKey) -> Option<ObjectKey> {
        let (key, group) = self.groups.remove_entry(key)?;
        self.objects.remove(&(group.clone(), key));
        Some(group)
    }
}

#[cfg(test)]
mod tests;
