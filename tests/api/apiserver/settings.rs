//! The operator process follows changes of its configuration file.

use crate::apiserver::leader::{FIRST, Leases, Process, server_address};
use crate::apiserver::world::{World, eventually, machine};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::json;
use vm_operator::api::VirtualMachine;

/// The image of a new VM's pod.
async fn image_of_new_vm(world: &World, name: &str) -> String {
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    let spec = json!({"nodeSelector": {"no-such": "node"}, "vm": {"state": "Running"}});
    vms.create(&PostParams::default(), &machine(name, spec))
        .await
        .unwrap();
    eventually("there is a pod", || async {
        pods.get_opt(name).await.unwrap().is_some()
    })
    .await;
    let pod = pods.get(name).await.unwrap();
    pod.spec.unwrap().containers.remove(0).image.unwrap()
}

#[tokio::test]
async fn changed_file_is_used_by_the_same_process_and_an_invalid_one_changes_nothing() {
    let world = World::new("settings").await;
    let leases = Leases::watch(&world);
    let operator = Process::start(&world, FIRST, &server_address()).await;
    eventually("it leads", || operator.leads()).await;
    let default = image_of_new_vm(&world, "a").await;

    let is_valid = async |value: &str| {
        operator
            .get("/metrics")
            .await
            .contains(&format!("settings_valid {value}"))
    };
    operator.configure(
        &world,
        json!({"cpuOvercommit": "none", "runnerImage": {"source": "registry.example/a"}}),
    );
    eventually("the metric shows an invalid file", || is_valid("0")).await;
    assert!(
        operator.log().contains("/Reconciler.cpuOvercommit"),
        "{}",
        operator.log()
    );
    assert_eq!(image_of_new_vm(&world, "b").await, default);
    assert_eq!(leases.holders(), [FIRST]);

    operator.configure(
        &world,
        json!({"runnerImage": {"source": "registry.example/b"}}),
    );
    // The Lease is released as at shutdown, so that the operator leads again without waiting for its expiry.
    eventually("it leads again", || async {
        leases.holders() == [FIRST, "", FIRST] && operator.leads().await
    })
    .await;
    assert!(is_valid("1").await);
    assert_eq!(image_of_new_vm(&world, "c").await, "registry.example/b");
    let answer = operator.get("/readyz").await;
    assert!(answer.contains("200 OK"), "{answer}");
}
