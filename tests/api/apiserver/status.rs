//! The owners of status fields.

use crate::apiserver::world::{World, machine};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use vm_operator::api::VirtualMachine;
use vm_operator::api::conditions::is_true;
use vm_operator::api::vm::conditions;
use vm_operator::api::vm::names;
use vm_operator::controllers::vm;
use vm_operator::controllers::vm::context::VmController;
use vm_operator::k8s::cluster::Cluster;
use vm_operator::settings::Settings;

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

    // One patch takes over the status that earlier versions of the operator have applied as these two managers.
    apply("other", "Foreign", &None).await.unwrap();
    let before = vms.get("vm").await.unwrap();
    let mut status = before.status.clone().unwrap();
    let all = &mut status.conditions;
    all.retain(|it| it.type_ != conditions::READY);
    let is_running = |it: &&mut Condition| it.type_ == conditions::RUNNING;
    all.iter_mut().find(is_running).unwrap().reason = "After".to_owned();
    let cluster = Cluster::new(world.client.clone(), vm::MANAGER);
    let ctx = VmController::new(cluster, world.namespace.clone(), Settings::default());
    vm::status::write(&before, &status, &ctx).await.unwrap();
    let after = vms.get("vm").await.unwrap();
    assert_eq!(after.status.as_ref(), Some(&status));
    let managed = json!(after.managed_fields());
    let owners = |type_: &str, field: &str| -> Vec<String> {
        let key = format!("k:{{\"type\":\"{type_}\"}}");
        let path = format!("/fieldsV1/f:status/f:conditions/{key}/{field}");
        let all = managed.as_array().unwrap().iter();
        all.filter(|entry| entry.pointer(&path).is_some())
            .map(|entry| format!("{} {}", entry["manager"], entry["operation"]).replace('"', ""))
            .collect()
    };
    assert_eq!(owners("Ready", "f:type"), [""; 0]);
    assert_eq!(owners("Running", "f:reason"), ["vm-operator Update"]);
    // Equal fields keep their managers.
    assert_eq!(owners("Running", "f:status"), ["vm-runner Apply"]);
    assert_eq!(owners("Foreign", "f:reason"), ["other Apply"]);
    let error = vm::status::write(&before, &status, &ctx).await.unwrap_err();
    assert_eq!(error.code(), Some(409));
}
