//! (pure) Whose an object is that has a name which a VM needs.

use super::views::owner_of;
use crate::api::{VirtualMachine, names};
use kube::{Resource, ResourceExt};

/// Whose an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The operator needs it.
    Operator,
    /// That VM's.
    Vm(String),
    /// Nobody's that is known here.
    Unknown,
}

impl Whose {
    /// By labels and owner, where it is not that VM's.
    #[must_use]
    pub fn of<K: Resource>(object: &K, not: &str) -> Self {
        let label = |name: &str| object.labels().get(name).map(String::as_str);
        let app = label(names::LABEL_NAME).unwrap_or_default();
        if app == names::OPERATOR_APP
            || app == names::APP_FETCH && label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY)
        {
            return Self::Operator;
        }
        let owners = object.owner_references().iter().filter(|owner| owner.kind == VirtualMachine::kind(&()));
        let mut vms = owner_of(object).into_iter().chain(owners.map(|owner| owner.name.clone()));
        vms.find(|vm| vm != not).map_or(Self::Unknown, Self::Vm)
    }

    /// What is to be done about it: `else_` is what there is to do besides another name.
    #[must_use]
    pub fn next_step(&self, kind: &str, name: &str, else_: &str) -> String {
        match self {
            Self::Operator => format!("leave it, as the operator needs it, and give the VM another name{else_}"),
            Self::Vm(vm) => format!("leave it to VM {vm:?}, and give this VM or its disk another name{else_}"),
            Self::Unknown => {
                format!("remove it ({}), or give the VM or its disk another name{else_}", removal(kind, name))
            }
        }
    }
}

/// The command that removes an object.
#[must_use]
pub fn removal(kind: &str, name: &str) -> String {
    format!("kubectl delete {} {name}", kind.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::views::SecretView;
    use serde_json::{Value, json};

    fn of(metadata: Value) -> Whose {
        Whose::of(&serde_json::from_value::<SecretView>(json!({"metadata": metadata})).unwrap(), "vm")
    }

    #[test]
    fn an_object_is_the_operators_a_vms_or_nobodys() {
        let labels = |labels: Value| of(json!({"name": "o", "labels": labels}));
        assert_eq!(labels(json!({"app.kubernetes.io/name": "vm-operator"})), Whose::Operator);
        let fetch = json!({"app.kubernetes.io/name": "vm-fetch", "app.kubernetes.io/managed-by": "vm-operator"});
        assert_eq!(labels(fetch), Whose::Operator);
        for app in ["vm-runner", "vmrunner"] {
            let of_vm = json!({"app.kubernetes.io/name": app, "app.kubernetes.io/instance": "other"});
            assert_eq!(labels(of_vm), Whose::Vm("other".to_owned()));
        }
        let of_this = json!({"app.kubernetes.io/name": "vmrunner", "app.kubernetes.io/instance": "vm"});
        assert_eq!(labels(of_this), Whose::Unknown, "left by an old release of the reference");
        let other_app = json!({"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "other"});
        assert_eq!((labels(other_app), labels(json!({}))), (Whose::Unknown, Whose::Unknown));
        let owner = |kind: &str| json!([{"apiVersion": "v1", "kind": kind, "name": "x", "uid": "u"}]);
        assert_eq!(of(json!({"ownerReferences": owner("VirtualMachine")})), Whose::Vm("x".to_owned()));
        assert_eq!(of(json!({"ownerReferences": owner("ReplicaSet")})), Whose::Unknown);
        let labels = json!({"app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": "vm"});
        let both = of(json!({"labels": labels, "ownerReferences": owner("VirtualMachine")}));
        assert_eq!(both, Whose::Vm("x".to_owned()), "by its owner, though it has this VM's labels");
    }

    #[test]
    fn only_what_is_nobodys_is_to_be_removed() {
        let removed = |whose: Whose| whose.next_step("ConfigMap", "o", "").contains("kubectl delete configmap o");
        assert!(removed(Whose::Unknown));
        assert!(!removed(Whose::Operator) && !removed(Whose::Vm("x".to_owned())));
    }
}
