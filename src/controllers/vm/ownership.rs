//! (pure) The owners of objects by their labels: whether an object belongs to a VM, and to which one.

use crate::api::VirtualMachine;
use crate::api::vm::names;
use crate::controllers::vm::views::{owner_of, vm_of};
use crate::k8s::error::Error;
use crate::k8s::ownership;
use crate::k8s::store::trim::Labelled;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

/// The owner of the object by its owner references and labels, in the words of messages. None if it is unknown or the VM `except`.
#[must_use]
pub fn owner<K: Resource + Labelled>(object: &K, except: &str) -> Option<String> {
    let is = |label: &str, value: &str| object.label(label) == Some(value);
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

/// The program or VM that uses the object, in the words of messages. None for a child of the VM `except` or of its predecessor: only such
/// an object may be deleted, because other programs can need it.
#[must_use]
pub fn user<K: Resource + Labelled>(object: &K, except: &str) -> Option<String> {
    let is_vm = |owner: &OwnerReference| owner.kind == VirtualMachine::kind(&());
    let is_child = owner_of(object).is_some() || object.owner_references().iter().any(is_vm);
    owner(object, except).or_else(|| (!is_child).then(|| "another program".to_owned()))
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
                "create this VM again with another name, which gets new, empty PVCs, or run kubectl delete {kind} {name} if no VM uses it"
            )
        }
    }
}

/// Whether the object has the labels of a child of this VM, or of a previous VM with the same name.
#[must_use]
pub fn is_labelled_for(object: &impl Labelled, vm: &VirtualMachine) -> bool {
    object.label(names::LABEL_NAME) == Some(names::APP_NAME) && vm_of(object) == vm.metadata.name
}

/// Checks that the VM may use and write the object, see [`ownership::check_owner`].
///
/// # Errors
/// If another object or a previous VM with the same name owns it.
pub fn check_owner<K: Resource + Labelled>(
    kind: &'static str,
    object: &K,
    is_own: bool,
    vm: &VirtualMachine,
) -> Result<(), Error> {
    ownership::check_owner(kind, object, is_own, vm, || user(object, &vm.name_any()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::views::SecretView;
    use serde_json::{Value, json};

    #[test]
    fn user_is_the_operator_another_vm_or_another_program() {
        let of = |metadata: Value| {
            let object =
                serde_json::from_value::<SecretView>(json!({"metadata": metadata})).unwrap();
            user(&object, "vm").unwrap_or_default()
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
            (json!({"labels": labels("web", "other")}), "another program"),
            (json!({}), "another program"),
            (
                json!({"ownerReferences": owner("ReplicaSet")}),
                "another program",
            ),
            (
                json!({"ownerReferences": owner("VirtualMachine")}),
                "VM \"x\"",
            ),
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
