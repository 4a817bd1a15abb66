//! What the operator knows of the cluster: the newest seen state of each object of one kind.
//!
//! Two sources feed a cache: the watch, and the answers to the operator's own writes. The second makes it read its
//! own writes: a reconcile right after another sees what that one made, though the watch has not told yet, and so
//! makes nothing twice. Which of two states is newer is told by `resourceVersion`, which API servers hand out as
//! rising numbers (defined since Kubernetes 1.35, and so in all versions with etcd).
//!
//! Objects lie here as JSON, and are decoded when they are read: a few microseconds for each of the handful that one
//! reconcile looks at. Decoded, they would take three times the memory, most of it for maps, whose smallest has room
//! for eleven entries.

use super::versions;
use super::views::trim;
use kube::Resource;
use kube::runtime::watcher::Event;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// What became of the cache by an event of the watch.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing that matters.
    None,
    /// The object is just as the operator made it.
    Known,
    /// The object of this group changed: the group is that of [`Cache::new`]'s function.
    Group(String),
    /// The whole content was listed anew: anything may have changed.
    Relisted,
}

/// The object that is there after the operator wanted to create it.
pub enum Given<V> {
    /// It was created now.
    Made(V),
    /// There was one of its name.
    There(V),
}

impl<V> Given<V> {
    /// The object.
    pub fn object(&self) -> &V {
        match self {
            Self::Made(object) | Self::There(object) => object,
        }
    }

    /// The object, however it came to be.
    pub fn into_object(self) -> V {
        match self {
            Self::Made(object) | Self::There(object) => object,
        }
    }
}

/// The objects of one kind, in groups; of most kinds a group is a VM.
pub struct Cache<K> {
    group_of: fn(&K) -> Option<String>,
    content: Mutex<Content>,
    /// Where objects are written before their size is known: each is allocated once, and leaves no hole of another size.
    scratch: Mutex<Vec<u8>>,
    ready: watch::Sender<bool>,
}

#[derive(Default)]
struct Content {
    /// By group and name.
    objects: BTreeMap<(Arc<str>, Arc<str>), Packed>,
    groups: HashMap<Arc<str>, Arc<str>>,
    /// Names that were deleted, with the version of the deletion: an answer to a write that comes after the news of
    /// the object's deletion must not bring it back.
    deleted: HashMap<String, u64>,
    /// Names and versions of what the operator has made, until the watch tells of it.
    made: HashMap<Arc<str>, u64>,
    /// What a list under way has named so far.
    listing: Vec<Arrival>,
    /// How many lists are complete.
    lists: u64,
}

/// A write that is under way, or an object that was read from the cache to be written again.
pub struct Writing<'a, K> {
    cache: &'a Cache<K>,
    /// How many lists were complete when it began.
    lists: u64,
}

impl<K: Resource + Serialize + DeserializeOwned> Writing<'_, K> {
    /// Takes in the answer.
    ///
    /// One that a new list has overtaken says nothing: the object may be gone since, and a list does not tell of
    /// deletions. Where it is not, list or watch tell of it.
    pub fn answered(self, object: K) {
        self.take_in(object, false);
    }

    /// Takes in the answer to a creation. When the watch tells of the object as it was made, that is no news.
    pub fn given(self, given: Given<K>) {
        let is_made = matches!(given, Given::Made(_));
        self.take_in(given.into_object(), is_made);
    }

    /// An answer without a version is ignored: nothing shows whether it is older than what the watch has reported. The API
    /// server answers so when it deletes a pod that has ended while another client, such as the kubelet, deletes it too.
    fn take_in(self, object: K, is_made: bool) {
        if versions::version(&object).is_none() {
            return;
        }
        let arrival = self.cache.packed(object);
        let mut content = self.cache.lock();
        let deleted_later = content.deleted.get(&*arrival.name).is_some_and(|v| *v >= arrival.object.version);
        if content.lists == self.lists && !deleted_later {
            if is_made && content.made.len() < REMEMBERED {
                content.made.insert(arrival.name.clone(), arrival.object.version);
            }
            content.insert(arrival);
        }
    }
}

/// An object that is not read at the moment.
struct Packed {
    version: u64,
    json: Box<[u8]>,
}

/// An object on its way into the content.
struct Arrival {
    name: Arc<str>,
    /// None: it is not to be kept.
    group: Option<Arc<str>>,
    object: Packed,
}

/// Deletions and creations remembered; more than could ever be overtaken by a write that is under way, or not be told yet.
const REMEMBERED: usize = 4096;

fn version<K: Resource>(object: &K) -> u64 {
    versions::version(object).unwrap_or(u64::MAX)
}

fn name<K: Resource>(object: &K) -> String {
    object.meta().name.clone().unwrap_or_default()
}

impl<K: Resource + Serialize + DeserializeOwned> Cache<K> {
    /// An empty cache. Objects for which `group_of` gives nothing are not kept.
    #[must_use]
    pub fn new(group_of: fn(&K) -> Option<String>) -> Self {
        Self { group_of, content: Mutex::default(), scratch: Mutex::default(), ready: watch::Sender::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what the watch tells.
    pub fn watched(&self, event: Event<K>) -> Change {
        match event {
            Event::Apply(object) if self.lock().is_as_made(&object) => Change::Known,
            Event::Apply(object) => {
                let arrival = self.packed(object);
                self.lock().insert(arrival).map_or(Change::None, Change::Group)
            }
            Event::Delete(object) => {
                let mut content = self.lock();
                if content.deleted.len() >= REMEMBERED {
                    content.deleted.clear();
                }
                content.deleted.insert(name(&object), version(&object));
                content.remove(&name(&object)).map_or(Change::None, Change::Group)
            }
            Event::Init => {
                self.lock().listing.clear();
                Change::None
            }
            Event::InitApply(object) => {
                let arrival = self.packed(object);
                self.lock().listing.push(arrival);
                Change::None
            }
            Event::InitDone => {
                let mut content = self.lock();
                let listed = std::mem::take(&mut content.listing);
                content.lists += 1;
                content.objects.clear();
                content.groups.clear();
                content.made.clear();
                // Answers from before the list are not taken in any more, and what it lacks may be there all the same.
                content.deleted.clear();
                for arrival in listed {
                    content.insert(arrival);
                }
                drop(content);
                self.ready.send_replace(true);
                Change::Relisted
            }
        }
    }

    /// To be called before a write of the operator's own is sent, for its answer to be taken in.
    #[must_use]
    pub fn writing(&self) -> Writing<'_, K> {
        Writing { cache: self, lists: self.lock().lists }
    }

    fn packed(&self, mut object: K) -> Arrival {
        let name = Arc::<str>::from(name(&object));
        // Most objects have the name of their group.
        let group = (self.group_of)(&object).map(|group| if *group == *name { name.clone() } else { group.into() });
        trim(&mut object);
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        scratch.clear();
        // Views are plain data, which can always be written; one that could not be would be seen as not there.
        let json = serde_json::to_writer(&mut *scratch, &object)
            .map_or_else(|_| Box::default(), |()| scratch.as_slice().into());
        Arrival { name, group, object: Packed { version: version(&object), json } }
    }

    /// The object of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<K>> {
        let content = self.lock();
        let (name, group) = content.groups.get_key_value(name)?;
        content.objects.get(&(group.clone(), name.clone()))?.read()
    }

    /// The objects of the group, by name.
    #[must_use]
    pub fn group(&self, group: &str) -> Vec<Arc<K>> {
        let content = self.lock();
        let from = (Arc::from(group), Arc::from(""));
        let of_group = content.objects.range(from..).take_while(|((g, _), _)| **g == *group);
        of_group.filter_map(|(_, object)| object.read()).collect()
    }

    /// The objects of all groups whose names begin so.
    #[must_use]
    pub fn groups(&self, prefix: &str) -> Vec<Arc<K>> {
        let content = self.lock();
        let from = (Arc::from(prefix), Arc::from(""));
        let groups = content.objects.range(from..).take_while(|((group, _), _)| group.starts_with(prefix));
        groups.filter_map(|(_, object)| object.read()).collect()
    }

    /// How many objects are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().objects.len()
    }

    /// Whether no object is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the first list is complete.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Returns when the first list is complete.
    pub async fn ready(&self) {
        // The sender lives as long as the cache, so that this cannot fail.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }
}

impl Packed {
    fn read<K: DeserializeOwned>(&self) -> Option<Arc<K>> {
        serde_json::from_slice(&self.json).ok().map(Arc::new)
    }
}

impl Content {
    /// Whether the watch tells of the object as it was made. It does so once, at the latest when it has changed.
    fn is_as_made<K: Resource>(&mut self, object: &K) -> bool {
        let name = object.meta().name.as_deref().unwrap_or_default();
        self.made.remove(name).is_some_and(|made| made == version(object))
    }

    /// Gives the group, if anything changed.
    fn insert(&mut self, arrival: Arrival) -> Option<String> {
        let Arrival { name, group, object } = arrival;
        let Some(group) = group else { return self.remove(&name) };
        let known = self.groups.get(&name).and_then(|g| self.objects.get(&(g.clone(), name.clone())));
        if known.is_some_and(|known| known.version > object.version) {
            return None;
        }
        self.remove(&name);
        self.groups.insert(name.clone(), group.clone());
        self.objects.insert((group.clone(), name), object);
        Some(group.to_string())
    }

    fn remove(&mut self, name: &str) -> Option<String> {
        let (name, group) = self.groups.remove_entry(name)?;
        self.objects.remove(&(group.clone(), name));
        Some(group.to_string())
    }
}

#[cfg(test)]
mod tests;
