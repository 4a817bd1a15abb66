//! VMs that join and leave pools. The controller stores only the VMs that concern pools.

use super::later::run;
use super::{NAMESPACE, create};
use kube::api::Patch;
use serde_json::{Value, json};
use std::time::Duration;
use support::components;
use support::memory::Server;
use vm_operator::api::pool::names;
use vm_operator::k8s::registry::Stored;

fn api(server: &Server, kind: &str) -> kube::Api<kube::api::DynamicObject> {
    components::api(&server.client(NAMESPACE), kind, Some(NAMESPACE))
}

async fn set_pools(server: &Server, vm: &str, pools: Value) {
    let patch = Patch::Merge(json!({"spec": {"pools": pools}}));
    let vms = api(server, "VirtualMachine");
    vms.patch(vm, &Default::default(), &patch).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
}

/// A server with the pool `p`, an assignment for the user anna, and the VM `vm`, which belongs to these pools.
async fn server(pools: Value) -> Server {
    let server = super::server();
    let vm = json!({"pools": pools, "vm": {"state": "Stopped"}});
    create(&server, "VirtualMachine", "vm", vm).await;
    create(&server, "VmPool", "p", json!({"permissions": []})).await;
    let assignment = json!({"pool": "p", "user": "anna"});
    create(
        &server,
        "VmAssignment",
        &names::assignment("p", "anna"),
        assignment,
    )
    .await;
    server
}

async fn user(server: &Server) -> Value {
    let vm = api(server, "VirtualMachine").get("vm").await.unwrap();
    vm.data["status"]["assignment"]["user"].clone()
}

#[tokio::test(start_paused = true)]
async fn vm_is_stored_from_its_first_pool_until_its_last_user_leaves() {
    let server = server(json!([])).await;
    let running = run(&server);
    let stored = || running.ctx.vms.count();
    running.ctx.stores_ready().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((stored(), user(&server).await), (0, Value::Null));

    set_pools(&server, "vm", json!(["p"])).await;
    assert_eq!((stored(), user(&server).await), (1, json!("anna")));
    // The user keeps a VM that leaves the pool.
    set_pools(&server, "vm", json!([])).await;
    assert_eq!((stored(), user(&server).await), (1, json!("anna")));
    let assignments = api(&server, "VmAssignment");
    let name = names::assignment("p", "anna");
    assignments
        .delete(&name, &Default::default())
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((stored(), user(&server).await), (0, Value::Null));
    running.task.abort();
}

/// For example after a backup was restored, or after two changes of the VM while no operator ran.
#[tokio::test(start_paused = true)]
async fn assignment_of_a_vm_that_has_left_all_pools_ends() {
    let server = server(json!(["p"])).await;
    let first = run(&server);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(user(&server).await, json!("anna"));
    first.task.abort();

    let vms = api(&server, "VirtualMachine");
    let free = json!({"status": {"assignment": {"pool": null, "user": null, "uid": null}}});
    let free = Patch::Merge(free);
    vms.patch_status("vm", &Default::default(), &free)
        .await
        .unwrap();
    set_pools(&server, "vm", json!([])).await;
    let assignments = api(&server, "VmAssignment");
    let name = names::assignment("p", "anna");
    assert!(assignments.get_opt(&name).await.unwrap().is_some());
    let second = run(&server);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(assignments.get_opt(&name).await.unwrap().is_none());
    second.task.abort();
}

#[tokio::test(start_paused = true)]
async fn vm_that_has_left_its_pool_restarts_at_the_end_of_its_assignment() {
    let server = server(json!(["p"])).await;
    let pools = api(&server, "VmPool");
    let rules = json!({"spec": {"onRelease": "Restart"}});
    let rules = Patch::Merge(rules);
    pools.patch("p", &Default::default(), &rules).await.unwrap();
    let running = run(&server);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(user(&server).await, json!("anna"));
    set_pools(&server, "vm", json!([])).await;
    let assignments = api(&server, "VmAssignment");
    let name = names::assignment("p", "anna");
    assignments
        .delete(&name, &Default::default())
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(user(&server).await, Value::Null);
    let vms = api(&server, "VirtualMachine");
    let vm = vms.get("vm").await.unwrap();
    assert_eq!(vm.data["spec"]["vm"]["restartRequest"], 1, "{:#}", vm.data);
    // The VM controller has restarted the VM.
    let done = Patch::Merge(json!({"status": {"observedRestartRequest": 1}}));
    vms.patch_status("vm", &Default::default(), &done)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(running.ctx.vms.count(), 0);
    running.task.abort();
}
