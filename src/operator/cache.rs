//! What the operator knows of the cluster: the newest seen state of each object of one kind.
//!
//! Two sources feed a cache: the watch, and the answers to the operator's own writes. The second makes it read its
//! own writes: a reconcile right after another sees what that one made, though the watch has not told yet, and so
//! makes nothing twice. Which of two states is newer is told by `resourceVersion`, which API servers hand out as
//! rising numbers (defined since Kubernetes 1.35, and so in all versions with etcd).

use kube::Resource;
use kube::runtime::watcher::Event;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// What became of the cache by an event of the watch.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing that matters.
    None,
    /// The object of this group changed: the group is that of [`Cache::new`]'s function.
    Group(String),
    /// The whole content was listed anew: anything may have changed.
    Relisted,
}

/// The objects of one kind, in groups; of most kinds a group is a VM.
pub struct Cache<K> {
    group_of: fn(&K) -> Option<String>,
    content: Mutex<Content<K>>,
    ready: watch::Sender<bool>,
}

struct Content<K> {
    /// By group and name.
    objects: BTreeMap<(String, String), Arc<K>>,
    groups: HashMap<String, String>,
    /// Names that were deleted, with the version of the deletion: an answer to a write that comes after the news of
    /// the object's deletion must not bring it back.
    deleted: HashMap<String, u64>,
    /// What a list under way has named so far.
    listing: Option<Vec<K>>,
}

/// Deletions remembered; more than could ever be overtaken by a write that is under way.
const DELETIONS: usize = 4096;

fn version<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(u64::MAX)
}

fn name<K: Resource>(object: &K) -> String {
    object.meta().name.clone().unwrap_or_default()
}

impl<K: Resource> Cache<K> {
    /// An empty cache. Objects for which `group_of` gives nothing are not kept.
    #[must_use]
    pub fn new(group_of: fn(&K) -> Option<String>) -> Self {
        let content =
            Content { objects: BTreeMap::new(), groups: HashMap::new(), deleted: HashMap::new(), listing: None };
        Self { group_of, content: Mutex::new(content), ready: watch::Sender::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Content<K>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what the watch tells.
    pub fn watched(&self, event: Event<K>) -> Change {
        let mut content = self.lock();
        match event {
            Event::Apply(object) => match self.insert(&mut content, object) {
                Some(group) => Change::Group(group),
                None => Change::None,
            },
            Event::Delete(object) => {
                if content.deleted.len() >= DELETIONS {
                    content.deleted.clear();
                }
                content.deleted.insert(name(&object), version(&object));
                content.remove(&name(&object)).map_or(Change::None, Change::Group)
            }
            Event::Init => {
                content.listing = Some(Vec::new());
                Change::None
            }
            Event::InitApply(object) => {
                content.listing.get_or_insert_default().push(object);
                Change::None
            }
            Event::InitDone => {
                let listed = content.listing.take().unwrap_or_default();
                content.objects.clear();
                content.groups.clear();
                for object in listed {
                    self.insert(&mut content, object);
                }
                drop(content);
                self.ready.send_replace(true);
                Change::Relisted
            }
        }
    }

    /// Takes in the answer to a write of the operator's own.
    pub fn wrote(&self, object: K) {
        let mut content = self.lock();
        let deleted_later = content.deleted.get(&name(&object)).is_some_and(|v| *v >= version(&object));
        if !deleted_later {
            self.insert(&mut content, object);
        }
    }

    fn insert(&self, content: &mut Content<K>, object: K) -> Option<String> {
        let name = name(&object);
        let Some(group) = (self.group_of)(&object) else { return content.remove(&name) };
        let known = content.groups.get(&name).and_then(|g| content.objects.get(&(g.clone(), name.clone())));
        if known.is_some_and(|k| version(k.as_ref()) > version(&object)) {
            return None;
        }
        content.remove(&name);
        content.groups.insert(name.clone(), group.clone());
        content.objects.insert((group.clone(), name), Arc::new(object));
        Some(group)
    }

    /// The object of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<K>> {
        let content = self.lock();
        let group = content.groups.get(name)?;
        content.objects.get(&(group.clone(), name.to_owned())).cloned()
    }

    /// The objects of the group, by name.
    #[must_use]
    pub fn group(&self, group: &str) -> Vec<Arc<K>> {
        let content = self.lock();
        let from = (group.to_owned(), String::new());
        content.objects.range(from..).take_while(|((g, _), _)| g == group).map(|(_, object)| object.clone()).collect()
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

impl<K> Content<K> {
    fn remove(&mut self, name: &str) -> Option<String> {
        let group = self.groups.remove(name)?;
        self.objects.remove(&(group.clone(), name.to_owned()));
        Some(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::names;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn object(name: &str, vm: &str, version: u64) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.metadata.resource_version = Some(version.to_string());
        object.metadata.labels = Some(names::labels(vm));
        object
    }

    fn cache() -> Cache<ConfigMap> {
        Cache::new(|o| o.metadata.labels.as_ref()?.get(names::LABEL_INSTANCE).cloned())
    }

    fn version_of(cache: &Cache<ConfigMap>, name: &str) -> Option<u64> {
        cache.get(name).map(|o| version(o.as_ref()))
    }

    #[test]
    fn an_own_write_is_seen_before_the_watch_tells_and_older_news_does_not_undo_it() {
        let cache = cache();
        cache.wrote(object("a", "vm", 7));
        assert_eq!(cache.watched(Event::Apply(object("a", "vm", 5))), Change::None);
        assert_eq!(version_of(&cache, "a"), Some(7));
        assert_eq!(cache.watched(Event::Apply(object("a", "vm", 9))), Change::Group("vm".to_owned()));
        assert_eq!(version_of(&cache, "a"), Some(9));
    }

    #[test]
    fn an_answer_that_comes_after_the_deletion_brings_nothing_back() {
        let cache = cache();
        cache.watched(Event::Apply(object("a", "vm", 5)));
        cache.watched(Event::Delete(object("a", "vm", 6)));
        cache.wrote(object("a", "vm", 5));
        assert_eq!(version_of(&cache, "a"), None);
        cache.wrote(object("a", "vm", 8));
        assert_eq!(version_of(&cache, "a"), Some(8));
    }

    #[test]
    fn what_a_new_list_does_not_name_is_gone() {
        let cache = cache();
        for name in ["a", "b"] {
            cache.watched(Event::Apply(object(name, "vm", 1)));
        }
        cache.watched(Event::Init);
        cache.watched(Event::InitApply(object("b", "vm", 2)));
        assert_eq!(cache.len(), 2);
        assert_eq!(cache.watched(Event::InitDone), Change::Relisted);
        assert_eq!((version_of(&cache, "a"), version_of(&cache, "b")), (None, Some(2)));
        assert!(cache.is_ready());
    }

    #[test]
    fn a_group_holds_its_own_objects_even_after_one_has_moved() {
        let cache = cache();
        for (name, vm) in [("a", "vm"), ("b", "vm"), ("c", "vm-2"), ("d", "other")] {
            cache.watched(Event::Apply(object(name, vm, 1)));
        }
        cache.watched(Event::Apply(object("b", "other", 2)));
        let names = |group: &str| cache.group(group).iter().map(|o| name(o.as_ref())).collect::<Vec<_>>();
        assert_eq!(
            (names("vm"), names("vm-2"), names("other")),
            (vec!["a".into()], vec!["c".into()], vec!["b".into(), "d".into()])
        );
    }
}
