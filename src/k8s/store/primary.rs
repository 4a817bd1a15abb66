//! The newest known state of the objects that a controller reconciles, in a store of kube.
//!
//! As in [`Cache`](crate::k8s::store::children::Cache), the watch and the responses to the operator's own writes feed
//! it, and it never returns to an older version. Only the watch adds and removes objects.

use crate::k8s::cluster::Cluster;
use crate::k8s::key::ObjectKey;
use crate::k8s::registry::Stored;
use crate::k8s::store::Definition;
use crate::k8s::store::children::is_newer;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Resource;
use kube::runtime::reflector::store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use std::sync::{Arc, Mutex, PoisonError};

/// All objects of the kind `K`.
pub struct PrimaryStore<K: Resource<DynamicType = ()> + Clone + 'static> {
    writer: Mutex<Writer<K>>,
    reader: Store<K>,
    definition: Definition,
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> Default for PrimaryStore<K> {
    fn default() -> Self {
        let (reader, writer) = store();
        Self {
            writer: Mutex::new(writer),
            reader,
            definition: Definition::default(),
        }
    }
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> PrimaryStore<K> {
    /// The store as the loop of the controller reads it.
    #[must_use]
    pub fn reader(&self) -> Store<K> {
        self.reader.clone()
    }

    /// The object of that key.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.reader.get(&key.object_ref())
    }

    fn known(&self, object: &K) -> Option<Arc<K>> {
        self.reader.get(&ObjectRef::from_obj(object))
    }

    fn newer(&self, than: &K) -> Option<Arc<K>> {
        self.known(than).filter(|known| is_newer(&**known, than))
    }

    /// Applies a watch event.
    pub fn watched(&self, event: &Event<K>) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Apply(object) | Event::Delete(object) if self.newer(object).is_some() => {}
            Event::InitDone => {
                let before = self.reader.state();
                writer.apply_watcher_event(event);
                for object in before {
                    let listed = self.known(&object);
                    if listed.is_some_and(|listed| is_newer(&*object, &listed)) {
                        writer.apply_watcher_event(&Event::Apply(K::clone(&object)));
                    }
                }
            }
            _ => writer.apply_watcher_event(event),
        }
    }

    /// Applies the response to a write and returns it. It does not restore an object that was deleted or replaced
    /// since.
    pub fn answered(&self, object: K) -> Arc<K> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let is_next =
            |known: Arc<K>| known.meta().uid == object.meta().uid && is_newer(&object, &known);
        if self.known(&object).is_some_and(is_next) {
            writer.apply_watcher_event(&Event::Apply(object.clone()));
        }
        Arc::new(object)
    }

    /// Records whether the API server knows the kind, and logs changes. Returns whether it is unknown, which the
    /// log says once.
    pub fn note_definition<T>(&self, event: &watcher::Result<Event<T>>, cluster: &Cluster) -> bool {
        self.definition
            .note::<K, T>(event, cluster.install_command(&K::plural(&())))
    }
}

impl<K> Stored for PrimaryStore<K>
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    fn is_ready(&self) -> bool {
        self.ready().now_or_never().is_some()
    }

    fn ready(&self) -> BoxFuture<'_, ()> {
        // The writer lives as long as this store, so this cannot fail.
        async { drop(self.reader.wait_until_ready().await) }.boxed()
    }

    fn count(&self) -> usize {
        self.reader.len()
    }

    fn is_unknown(&self) -> bool {
        self.definition.is_unknown()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;
    use serde_json::json;

    fn object(uid: &str, version: u64) -> ConfigMap {
        let metadata = json!({"name": "object", "namespace": "ns", "uid": uid, "resourceVersion": version.to_string()});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    fn version_in(store: &PrimaryStore<ConfigMap>) -> Option<String> {
        store.known(&object("", 0))?.resource_version()
    }

    fn list(store: &PrimaryStore<ConfigMap>, objects: Vec<ConfigMap>) {
        store.watched(&Event::Init);
        objects
            .into_iter()
            .for_each(|object| store.watched(&Event::InitApply(object)));
        store.watched(&Event::InitDone);
    }

    #[test]
    fn the_store_never_goes_back_to_an_older_version() {
        let store = PrimaryStore::default();
        list(&store, vec![object("a", 5)]);
        store.answered(object("a", 8));
        assert_eq!(version_in(&store).as_deref(), Some("8"));
        store.watched(&Event::Apply(object("a", 7)));
        list(&store, vec![object("a", 6)]);
        store.answered(object("a", 7));
        assert_eq!(version_in(&store).as_deref(), Some("8"));
        // The response to a write arrives during a list.
        store.watched(&Event::Init);
        store.watched(&Event::InitApply(object("a", 8)));
        store.answered(object("a", 9));
        store.watched(&Event::InitDone);
        assert_eq!(version_in(&store).as_deref(), Some("9"));
        store.watched(&Event::Apply(object("b", 11)));
        store.watched(&Event::Delete(object("a", 10)));
        store.answered(object("a", 12));
        assert_eq!(
            store.known(&object("", 0)).unwrap().uid().as_deref(),
            Some("b"),
            "the answer is for a replaced object"
        );
        store.watched(&Event::Delete(object("b", 13)));
        store.answered(object("b", 12));
        assert_eq!(
            version_in(&store),
            None,
            "the answer arrives after the deletion"
        );
        list(&store, vec![object("c", 20)]);
        list(&store, Vec::new());
        assert_eq!(version_in(&store), None);
    }
}
