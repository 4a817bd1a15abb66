//! (client) The write of a VM's status: one merge patch by one field manager.
//!
//! The patch has the version of the VM from which the status was computed. If the VM has changed or was replaced since, the API server
//! answers 409, and the next reconcile decides again. So the patch can replace the list of conditions as a whole, and conditions of other
//! programs remain in it.
//!
//! Earlier versions of the operator applied two parts of the status as the managers `vm-operator` and `vm-runner`. A patch takes the fields
//! that it changes or removes from both. They keep equal fields in `managedFields`, which has no effect: only an apply removes the fields of
//! its manager, and the operator applies no status of a VM any more.

use crate::api::VirtualMachine;
use crate::api::vm::VirtualMachineStatus;
use crate::api::vm::conditions;
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::views::VmView;
use crate::k8s::error::Error;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::sync::Arc;

/// The VM's status, as the next write begins with it: default conditions of the definition have a time.
#[must_use]
pub fn present(vm: &VirtualMachine) -> VirtualMachineStatus {
    let mut status = vm.status.clone().unwrap_or_default();
    if let Some(created) = &vm.metadata.creation_timestamp {
        conditions::date_defaults(&mut status.conditions, created.0);
    }
    status
}

/// Changes the status of that version of the VM. Returns the VM as written.
///
/// # Errors
/// If the request fails, or the VM has another version.
pub async fn write(
    vm: &VirtualMachine,
    status: &VirtualMachineStatus,
    ctx: &VmController,
) -> Result<Arc<VirtualMachine>, Error> {
    let (name, body) = (vm.name_any(), patch(vm, status));
    ctx.scope
        .writer()
        .merge_status::<VirtualMachine, VmView>(&ctx.vms, &name, &body)
        .await
}

/// The version is the only precondition: the API server does not compare the UID in a write to a status.
fn patch(vm: &VirtualMachine, status: &VirtualMachineStatus) -> Value {
    let before = vm.status.clone().unwrap_or_default();
    json!({
        "metadata": {"resourceVersion": vm.resource_version()},
        "status": difference(&json!(before), &json!(status)),
    })
}

/// The merge patch (RFC 7396) that changes one value into another. A missing field is null in it.
fn difference(before: &Value, after: &Value) -> Value {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return after.clone();
    };
    let names = before.keys().chain(after.keys());
    let changed = names.filter(|name| before.get(*name) != after.get(*name));
    let value = |name: &String| {
        let [before, after] = [before, after].map(|map| map.get(name).unwrap_or(&Value::Null));
        (name.clone(), difference(before, after))
    };
    changed.map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::vm::fixtures::vm;

    #[test]
    fn patch_contains_the_version_and_only_differences_with_removed_fields() {
        let mut vm = vm(json!({}));
        let mut status = vm.status.clone().unwrap();
        let osinfo = |value: Value| value.as_object().cloned();
        status.osinfo = osinfo(json!({"id": "a", "name": "A"}));
        (status.node_name, status.cpus) = (Some("node".to_owned()), 2);
        vm.status = Some(status.clone());
        status.osinfo = osinfo(json!({"id": "b"}));
        status.node_name = None;
        let changed = json!({"osinfo": {"id": "b", "name": null}, "nodeName": null});
        let expected = json!({"metadata": {"resourceVersion": "10"}, "status": changed});
        assert_eq!(patch(&vm, &status), expected);
    }
}
