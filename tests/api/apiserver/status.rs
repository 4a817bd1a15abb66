//! The owners of status fields.

use crate::apiserver::world::{World, machine};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use vm_operator::api::VirtualMachine;
use vm_operator::api::conditions::is_true;
use vm_operator::api::vm::conditions;
use vm_operator::api::vm::names;

#[tokio::test]
async fn b21_operator_and_runner_write_their_own_conditions_and_only_to_the_vm_they_mean() {
    let world = World::new("managers").await;
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    let vm = vms
        .create(&PostParams::default(), &machine("vm", json!({"vm": {}})))
        .await
        .unwrap();
    let apply = async |manager: &str, type_: &str, version: &Option<String>| {
        let condition = json!({
            "type": type_, "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let (api, kind) = ("vmoperator.jdrupes.org/v1", "VirtualMachine");
        let metadata = match version {
            Some(version) => json!({"name": "vm", "resourceVersion": version}),
            None => json!({"name": "vm"}),
        };
        let body = json!({"apiVersion": api, "kind": kind, "metadata": metadata, "status": {"conditions": [condition]}});
        vms.patch_status(
            "vm",
            &PatchParams::apply(manager).force(),
            &Patch::Apply(&body),
        )
        .await
    };
    let first = vm.resource_version();
    apply(names::MANAGER_OPERATOR, conditions::READY, &first)
        .await
        .unwrap();
    apply(names::MANAGER_RUNNER, conditions::RUNNING, &None)
        .await
        .unwrap();
    let vm = apply(names::MANAGER_OPERATOR, conditions::READY, &None)
        .await
        .unwrap();
    let conditions = vm.status.unwrap().conditions;
    assert_eq!(conditions.len(), 6, "{conditions:?}");
    for type_ in [conditions::READY, conditions::RUNNING] {
        assert!(is_true(&conditions, type_), "{type_}");
    }
    // A changed object and a newer VM with the same name are not written by mistake.
    let error = apply(names::MANAGER_RUNNER, conditions::RUNNING, &first).await;
    assert!(matches!(error, Err(kube::Error::Api(status)) if status.code == 409));
}
