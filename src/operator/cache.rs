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
    /// The object of this group changed: the group is that of [`Cache::new`]'s function.
    Group(String),
    /// The whole content was listed anew: anything may have changed.
    Relisted,
}

/// The objects of one kind, in groups; of most kinds a group is a VM.
pub struct Cache<K> {
    group_of: fn(&K) -> Option<String>,
    content: Mutex<Content>,
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
        let arrival = self.cache.packed(object);
        let mut content = self.cache.lock();
        let deleted_later = content.deleted.get(&*arrival.name).is_some_and(|v| *v >= arrival.object.version);
        if content.lists == self.lists && !deleted_later {
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

/// Deletions remembered; more than could ever be overtaken by a write that is under way.
const DELETIONS: usize = 4096;

fn version<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(u64::MAX)
}

fn name<K: Resource>(object: &K) -> String {
    object.meta().name.clone().unwrap_or_default()
}

impl<K: Resource + Serialize + DeserializeOwned> Cache<K> {
    /// An empty cache. Objects for which `group_of` gives nothing are not kept.
    #[must_use]
    pub fn new(group_of: fn(&K) -> Option<String>) -> Self {
        Self { group_of, content: Mutex::default(), ready: watch::Sender::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what the watch tells.
    pub fn watched(&self, event: Event<K>) -> Change {
        match event {
            Event::Apply(object) => {
                let arrival = self.packed(object);
                self.lock().insert(arrival).map_or(Change::None, Change::Group)
            }
            Event::Delete(object) => {
                let mut content = self.lock();
                if content.deleted.len() >= DELETIONS {
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
        // Views are plain data, which can always be written; one that could not be would be seen as not there.
        let json = serde_json::to_vec(&object).unwrap_or_default().into_boxed_slice();
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
mod tests {
    use super::*;
    use crate::api::names;
    use crate::operator::views::{ClaimView, ConfigMapView, PodView, SecretView, ServiceView};
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::{Value, json};
    use std::fmt::Debug;

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
        cache.writing().answered(object("a", "vm", 7));
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
        cache.writing().answered(object("a", "vm", 5));
        assert_eq!(version_of(&cache, "a"), None);
        cache.writing().answered(object("a", "vm", 8));
        assert_eq!(version_of(&cache, "a"), Some(8));
    }

    /// Else the operator would know a pod for ever that is not there, and its VM would never start.
    #[test]
    fn an_answer_that_a_new_list_has_overtaken_brings_nothing_back() {
        let cache = cache();
        let writing = cache.writing();
        // It is made at 5 and deleted at 6; the connection of the watch is cut meanwhile, and the past forgotten.
        cache.watched(Event::Init);
        cache.watched(Event::InitDone);
        writing.answered(object("a", "vm", 5));
        assert_eq!(version_of(&cache, "a"), None);
        cache.writing().answered(object("a", "vm", 8));
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
        assert_eq!(cache.groups("vm").iter().map(|o| name(o.as_ref())).collect::<Vec<_>>(), ["a", "c"]);
    }

    /// What is read of an object that has come in as `object`.
    fn read<K: Resource + Serialize + DeserializeOwned>(object: &Value) -> Arc<K> {
        let cache = Cache::<K>::new(|_| Some("vm".to_owned()));
        cache.watched(Event::Apply(serde_json::from_value(object.clone()).unwrap()));
        cache.get("a").unwrap()
    }

    #[test]
    fn nothing_that_the_operator_reads_is_lost_while_an_object_lies_here() {
        let meta = json!({
            "name": "a", "uid": "u", "resourceVersion": "7", "generation": 2, "labels": {"l": "1"}, "annotations": {"a": "2"},
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
            "ownerReferences": [{"apiVersion": "v", "kind": "k", "name": "o", "uid": "ou", "controller": true}],
            "finalizers": ["example.org/hold"],
        });
        fn same<K: Resource + Serialize + DeserializeOwned + Debug>(object: &Value) {
            let came: K = serde_json::from_value(object.clone()).unwrap();
            assert_eq!(format!("{:?}", read::<K>(object)), format!("{came:?}"));
        }
        let condition = json!({"type": "t", "status": "s", "reason": "r", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let waiting = json!({"reason": "r", "message": "m"});
        let terminated = json!({
            "exitCode": 3, "reason": "r", "message": "m", "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z",
        });
        let state = json!({"waiting": waiting, "terminated": terminated});
        let resources = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}});
        same::<PodView>(&json!({
            "metadata": meta,
            "spec": {"containers": [{"name": "c", "resources": resources}], "terminationGracePeriodSeconds": 30},
            "status": {
                "phase": "p", "reason": "r", "message": "m", "conditions": [condition],
                "containerStatuses": [{"name": "c", "image": "i", "state": state}],
            },
        }));
        same::<ClaimView>(&json!({
            "metadata": meta,
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeMode": "Block", "volumeAttributesClassName": "a",
                "resources": {"requests": {"storage": "1Gi"}},
            },
            "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}},
        }));
        same::<ServiceView>(&json!({
            "metadata": meta, "spec": {"type": "t", "selector": {"a": "b"}, "ports": [{"name": "n", "port": 1, "targetPort": "t"}]},
        }));
        same::<SecretView>(&json!({"metadata": meta}));
        let config = "/Runner:\n  cloudInit:\n    metaData:\n      instance-id: of-the-reference\n";
        let config_map = json!({"metadata": meta, "data": {names::CONFIG_FILE: config, names::LOGGING_FILE: ".level=FINE", "other": "x"}});
        same::<ConfigMapView>(&config_map);
        assert_eq!(
            read::<ConfigMapView>(&config_map).config.references_instance_id.as_deref(),
            Some("of-the-reference")
        );
        same::<ConfigMapView>(&json!({"metadata": meta}));
    }

    #[test]
    fn what_holds_a_pod_back_is_kept_and_what_holds_every_claim_is_not() {
        let of = |finalizers: Value| json!({"metadata": {"name": "a", "finalizers": finalizers}});
        let held = read::<PodView>(&of(json!(["example.org/hold"])));
        assert_eq!(held.metadata.finalizers.as_deref(), Some(&["example.org/hold".to_owned()][..]));
        let claim = read::<ClaimView>(&of(json!(["kubernetes.io/pvc-protection"])));
        assert_eq!(claim.metadata.finalizers, None);
    }
}
