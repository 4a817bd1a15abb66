//! (pure) The owners of objects: whether an object belongs to a VM, and to which one.

use crate::api::VirtualMachine;
use crate::api::vm::names;
use crate::controllers::vm::views::{owner_of, vm_of};
use crate::k8s::error::Error;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

/// The owner of the object by its owner references and labels, in the words of messages. None if it is unknown or the VM `except`.
#[must_use]
pub fn owner<K: Resource>(object: &K, except: &str) -> Option<String> {
    let is = |label: &str, value: &str| {
        object
            .labels()
            .get(label)
            .is_some_and(|present| present == value)
    };
    let is_fetch =
        is(names::LABEL_NAME, names::APP_FETCH) && is(names::LABEL_MANAGED_BY, names::MANAGED_BY);
    if is(names::LABEL_NAME, names::OPERATOR_APP) || is_fetch {
        return Some(OPERATOR.to_owned());
    }
    let owners = object
        .owner_references()
        .iter()
        .filter(|owner| owner.kind == VirtualMachine::kind(&()));
    let vm = owners
        .map(|owner| owner.name.clone())
        .chain(owner_of(object))
        .find(|vm| vm != except);
    vm.map(|vm| format!("VM {vm:?}"))
}

/// The operator as the owner of an object, in the words of messages.
pub const OPERATOR: &str = "the operator";

/// The next step for a VM that needs the name of an object. An object with an owner must not be deleted.
#[must_use]
pub fn next_step(owner: Option<&str>, kind: &str, name: &str) -> String {
    match owner {
        Some(owner) => {
            let disk = if kind == "PersistentVolumeClaim" {
                "give the disk of this VM another name, or "
            } else {
                ""
            };
            format!(
                "{owner} uses {kind} {name}; {disk}create this VM again with another name. The new VM gets new, empty PVCs"
            )
        }
        None => {
            let kind = kind.to_lowercase();
            format!(
                "run kubectl delete {kind} {name}, or create this VM again with another name. The new VM gets new, empty PVCs"
            )
        }
    }
}

/// Whether the object has the labels of a child of this VM, or of a previous VM with the same name.
#[must_use]
pub fn is_labelled_for<K: Resource>(object: &K, vm: &VirtualMachine) -> bool {
    let labels = object.meta().labels.as_ref();
    let app = labels.and_then(|labels| labels.get(names::LABEL_NAME));
    app.is_some_and(|app| app == names::APP_NAME) && vm_of(object) == vm.metadata.name
}

/// Checks that the VM may use and write the object: it is the VM's own, and has no other controller. Two objects cannot control it.
///
/// # Errors
/// If another object or a previous VM with the same name owns it.
pub fn check_owner<K: Resource>(
    kind: &'static str,
    object: &K,
    is_own: bool,
    vm: &VirtualMachine,
) -> Result<(), Error> {
    let name = object.name_any();
    let controls = |owner: &OwnerReference| {
        owner.controller == Some(true) && Some(&owner.uid) != vm.metadata.uid.as_ref()
    };
    if is_own && !object.owner_references().iter().any(controls) {
        return Ok(());
    }
    let next =
        orphan_next_step(object, vm).filter(|_| is_own && is_controlled_by_previous_vm(object, vm));
    match next {
        Some(next) => Err(Error::OwnedByPrevious { kind, name, next }),
        None => Err(Error::OwnedByOther {
            kind,
            owner: owner(object, &vm.name_any()),
            name,
        }),
    }
}

/// Whether a previous VM with the same name controls the object. The garbage collector will delete it.
#[must_use]
pub fn is_controlled_by_previous_vm<K: Resource>(object: &K, vm: &VirtualMachine) -> bool {
    object
        .owner_references()
        .iter()
        .any(|owner| owner.controller == Some(true) && is_previous_vm(owner, vm))
}

/// Whether the owner is a previous VM with the same name. A newer VM that the watch has not reported yet looks the same.
#[must_use]
pub fn is_previous_vm(owner: &OwnerReference, vm: &VirtualMachine) -> bool {
    let is_vm = owner.kind == VirtualMachine::kind(&())
        && owner.api_version.split('/').next() == Some(names::GROUP);
    is_vm
        && Some(&owner.name) == vm.metadata.name.as_ref()
        && Some(&owner.uid) != vm.metadata.uid.as_ref()
}

/// The removal of an object that a previous VM with the same name controls: it is in progress, or the operator will do it.
#[must_use]
pub fn orphan_next_step<K: Resource>(object: &K, vm: &VirtualMachine) -> Option<String> {
    match (
        object.meta().deletion_timestamp.is_some(),
        object.finalizers(),
    ) {
        (true, []) => Some("the object is being deleted".to_owned()),
        (true, finalizers) => Some(format!(
            "the object is being deleted, but its finalizers delay the deletion: {}. Check the controllers that remove these \
             finalizers",
            finalizers.join(", ")
        )),
        (false, _) => is_orphan(object, vm).then(|| "the operator deletes the object".to_owned()),
    }
}

/// Whether all owners of the object are previous VMs, and it is not being deleted.
#[must_use]
pub fn is_orphan<K: Resource>(object: &K, vm: &VirtualMachine) -> bool {
    let owners = object.owner_references();
    let is_orphan = !owners.is_empty() && owners.iter().all(|owner| is_previous_vm(owner, vm));
    is_orphan && object.meta().deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::vm::views::SecretView;
    use serde_json::{Value, json};

    #[test]
    fn owner_is_the_operator_or_another_vm() {
        let of = |metadata: Value| {
            let object =
                serde_json::from_value::<SecretView>(json!({"metadata": metadata})).unwrap();
            owner(&object, "vm").unwrap_or_default()
        };
        let labels = |app: &str, vm: &str| json!({"app.kubernetes.io/name": app, "app.kubernetes.io/instance": vm});
        let fetch = json!({"app.kubernetes.io/name": "vm-fetch", "app.kubernetes.io/managed-by": "vm-operator"});
        let owner =
            |kind: &str| json!([{"apiVersion": "v1", "kind": kind, "name": "x", "uid": "u"}]);
        for (metadata, expected) in [
            (json!({"labels": labels("vm-operator", "")}), OPERATOR),
            (json!({"labels": fetch}), OPERATOR),
            (
                json!({"labels": labels("vm-runner", "other")}),
                "VM \"other\"",
            ),
            (
                json!({"labels": labels("vmrunner", "other")}),
                "VM \"other\"",
            ),
            (json!({"labels": labels("vmrunner", "vm")}), ""),
            (json!({"labels": labels("web", "other")}), ""),
            (json!({}), ""),
            (json!({"ownerReferences": owner("ReplicaSet")}), ""),
            (
                json!({"labels": labels("vm-runner", "vm"), "ownerReferences": owner("VirtualMachine")}),
                "VM \"x\"",
            ),
        ] {
            assert_eq!(of(metadata.clone()), expected, "{metadata}");
        }
        assert!(next_step(None, "ConfigMap", "o").contains("kubectl delete configmap o"));
        assert!(!next_step(Some(OPERATOR), "ConfigMap", "o").contains("delete"));
    }
}
