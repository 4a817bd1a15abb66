//! The newest known state of the objects that a controller reconciles, in the store from which kube's controller reads them.
//!
//! As in [`Cache`](crate::k8s::store::children::Cache), the watch and the answers to the operator's own writes feed it, and it never goes back to an
//! older version. Only the watch adds and removes objects.

use crate::k8s::key::ObjectKey;
use crate::k8s::registry::Stored;
use crate::k8s::store::children::is_newer;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Resource;
use kube::runtime::reflector::store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// All objects of the kind `K`.
pub struct PrimaryStore<K: Resource<DynamicType = ()> + Clone + 'static> {
    writer: Mutex<Writer<K>>,
    reader: Store<K>,
    /// Whether the API server does not know the kind.
    is_unknown: AtomicBool,
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> Default for PrimaryStore<K> {
    fn default() -> Self {
        let (reader, writer) = store();
        Self {
            writer: Mutex::new(writer),
            reader,
            is_unknown: AtomicBool::new(false),
        }
    }
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> PrimaryStore<K> {
    /// The store as kube's controller reads it.
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

    /// Takes in an event of the watch.
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

    /// Takes in the answer to a write and returns it. An object that was deleted or replaced since is not brought back.
    pub fn answered(&self, object: K) -> Arc<K> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let is_next =
            |known: Arc<K>| known.meta().uid == object.meta().uid && is_newer(&object, &known);
        if self.known(&object).is_some_and(is_next) {
            writer.apply_watcher_event(&Event::Apply(object.clone()));
        }
        Arc::new(object)
    }

    /// Remembers whether the API server knows the kind, and logs when that changes.
    pub fn note_definition<T>(&self, event: &watcher::Result<Event<T>>) {
        // A list begins before its first page is requested.
        if matches!(event, Ok(Event::Init)) {
            return;
        }
        let is_unknown = match event {
            Err(
                watcher::Error::InitialListFailed(kube::Error::Api(status))
                | watcher::Error::WatchStartFailed(kube::Error::Api(status)),
            ) => status.code == 404,
            _ => false,
        };
        let kind = K::kind(&());
        if self.is_unknown.swap(is_unknown, Ordering::Relaxed) == is_unknown {
            return;
        }
        if is_unknown {
            tracing::error!(%kind, "the API server does not know the kind; install its definition: kubectl apply -f crds/");
        } else {
            tracing::info!(%kind, "the API server knows the kind now");
        }
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
        // The writer lives as long as this store, so that this cannot fail.
        async { drop(self.reader.wait_until_ready().await) }.boxed()
    }

    fn count(&self) -> usize {
        self.reader.len()
    }

    fn is_unknown(&self) -> bool {
        self.is_unknown.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;
    use serde_json::json;

    fn vm(uid: &str, version: u64) -> ConfigMap {
        let metadata = json!({"name": "vm", "namespace": "ns", "uid": uid, "resourceVersion": version.to_string()});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    fn version_in(store: &PrimaryStore<ConfigMap>) -> Option<String> {
        store.known(&vm("", 0))?.resource_version()
    }

    fn list(store: &PrimaryStore<ConfigMap>, vms: Vec<ConfigMap>) {
        store.watched(&Event::Init);
        vms.into_iter()
            .for_each(|vm| store.watched(&Event::InitApply(vm)));
        store.watched(&Event::InitDone);
    }

    #[test]
    fn the_store_never_goes_back_to_an_older_version() {
        let store = PrimaryStore::default();
        list(&store, vec![vm("a", 5)]);
        store.answered(vm("a", 8));
        assert_eq!(version_in(&store).as_deref(), Some("8"));
        store.watched(&Event::Apply(vm("a", 7)));
        list(&store, vec![vm("a", 6)]);
        store.answered(vm("a", 7));
        assert_eq!(version_in(&store).as_deref(), Some("8"));
        // A write is answered while a list is read.
        store.watched(&Event::Init);
        store.watched(&Event::InitApply(vm("a", 8)));
        store.answered(vm("a", 9));
        store.watched(&Event::InitDone);
        assert_eq!(version_in(&store).as_deref(), Some("9"));
        store.watched(&Event::Apply(vm("b", 11)));
        store.watched(&Event::Delete(vm("a", 10)));
        store.answered(vm("a", 12));
        assert_eq!(
            store.known(&vm("", 0)).unwrap().uid().as_deref(),
            Some("b"),
            "the answer is for a replaced VM"
        );
        store.watched(&Event::Delete(vm("b", 13)));
        store.answered(vm("b", 12));
        assert_eq!(
            version_in(&store),
            None,
            "the answer arrives after the deletion"
        );
        list(&store, vec![vm("c", 20)]);
        list(&store, Vec::new());
        assert_eq!(version_in(&store), None);
    }
}
