//! The newest known state of all VMs, in the store from which kube's controller reads them.
//!
//! As in [`Cache`](crate::k8s::store::children::Cache), the watch and the answers to the operator's own writes feed it, and it never goes back to an
//! older version. Only the watch adds and removes VMs.

use crate::api::VirtualMachine;
use crate::k8s::store::children::is_newer;
use kube::ResourceExt;
use kube::runtime::reflector::store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use std::sync::{Arc, Mutex, PoisonError};

/// All VMs.
pub struct VmStore {
    writer: Mutex<Writer<VirtualMachine>>,
    reader: Store<VirtualMachine>,
}

impl Default for VmStore {
    fn default() -> Self {
        let (reader, writer) = store();
        Self {
            writer: Mutex::new(writer),
            reader,
        }
    }
}

impl VmStore {
    /// The store as kube's controller reads it.
    #[must_use]
    pub fn reader(&self) -> Store<VirtualMachine> {
        self.reader.clone()
    }

    fn known(&self, vm: &VirtualMachine) -> Option<Arc<VirtualMachine>> {
        self.reader.get(&ObjectRef::from_obj(vm))
    }

    fn newer(&self, than: &VirtualMachine) -> Option<Arc<VirtualMachine>> {
        self.known(than).filter(|known| is_newer(&**known, than))
    }

    /// Takes in an event of the watch.
    pub fn watched(&self, event: &Event<VirtualMachine>) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Apply(vm) | Event::Delete(vm) if self.newer(vm).is_some() => {}
            Event::InitDone => {
                let before = self.reader.state();
                writer.apply_watcher_event(event);
                for vm in before {
                    if self
                        .known(&vm)
                        .is_some_and(|listed| is_newer(&*vm, &listed))
                    {
                        writer.apply_watcher_event(&Event::Apply(VirtualMachine::clone(&vm)));
                    }
                }
            }
            _ => writer.apply_watcher_event(event),
        }
    }

    /// Takes in the answer to a write and returns it. A VM that was deleted or replaced since is not brought back.
    pub fn answered(&self, vm: VirtualMachine) -> Arc<VirtualMachine> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let is_next = |known: Arc<VirtualMachine>| known.uid() == vm.uid() && is_newer(&vm, &known);
        if self.known(&vm).is_some_and(is_next) {
            writer.apply_watcher_event(&Event::Apply(vm.clone()));
        }
        Arc::new(vm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vm(uid: &str, version: u64) -> VirtualMachine {
        let metadata = json!({"name": "vm", "namespace": "ns", "uid": uid, "resourceVersion": version.to_string()});
        let (api_version, kind) = ("vmoperator.jdrupes.org/v1", "VirtualMachine");
        serde_json::from_value(
            json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": {"vm": {}}}),
        )
        .unwrap()
    }

    fn version_in(store: &VmStore) -> Option<String> {
        store.known(&vm("", 0))?.resource_version()
    }

    fn list(store: &VmStore, vms: Vec<VirtualMachine>) {
        store.watched(&Event::Init);
        vms.into_iter()
            .for_each(|vm| store.watched(&Event::InitApply(vm)));
        store.watched(&Event::InitDone);
    }

    #[test]
    fn the_store_never_goes_back_to_an_older_version() {
        let store = VmStore::default();
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
