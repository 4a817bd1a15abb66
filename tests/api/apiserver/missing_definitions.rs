//! An operator as a process on an API server that knows no pools.

use crate::apiserver::leader::{FIRST, Process, address_of};
use crate::apiserver::world::{World, eventually, install, machine};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;
use std::time::Duration;
use support::real::Server;
use vm_operator::api::{VirtualMachine, VmPool, VmReport};

/// A server without the definitions of pools. No other test uses it.
async fn server_without_pools() -> &'static Server {
    let server: &'static Server = Box::leak(Box::new(Server::start_for_controllers()));
    let client = server.client().await;
    install(&client, |file| {
        file.starts_with("vms.") || file.starts_with("vmreports.")
    })
    .await;
    let vms = Api::<VirtualMachine>::all(client.clone());
    let reports = Api::<VmReport>::all(client);
    let everything = ListParams::default();
    eventually("the definitions are established", || async {
        vms.list(&everything).await.is_ok() && reports.list(&everything).await.is_ok()
    })
    .await;
    server
}

/// The number of log lines about that kind.
fn lines(operator: &Process, text: &str, kind: &str) -> usize {
    let log = operator.log();
    let found = log.lines().filter(|line| line.contains(text));
    found
        .filter(|line| line.contains(&format!("\"{kind}\"")))
        .count()
}

/// The number of requests for a list that the server has answered with 404.
async fn not_found(operator: &Process, resource: &str) -> u32 {
    let metrics = operator.get("/metrics").await;
    let series = format!(
        r#"vm_operator_api_requests_total{{verb="list",resource="{resource}",code="404"}} "#
    );
    let count = metrics.lines().find_map(|line| line.strip_prefix(&*series));
    count.map_or(0, |count| count.parse().unwrap())
}

async fn create_vm(world: &World, name: &str) {
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    let spec = json!({"pools": ["desktops"], "vm": {"state": "Running", "networks": []}});
    vms.create(&PostParams::default(), &machine(name, spec))
        .await
        .unwrap();
}

/// Missing definitions of pools keep nothing else from working, are reported once, and are noticed when they appear.
#[tokio::test]
async fn operator_without_definitions_of_pools_serves_vms_and_begins_with_pools_later() {
    let server = server_without_pools().await;
    let world = World::on(server, "no-pools").await;
    let mut operator = Process::start(&world, FIRST, &address_of(server)).await;
    eventually("the operator leads", || operator.leads()).await;
    create_vm(&world, "before").await;
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    eventually("the VM has a pod", || async {
        pods.get_opt("before").await.unwrap().is_some()
    })
    .await;
    for (resource, kind) in [("vmpools", "VmPool"), ("vmassignments", "VmAssignment")] {
        eventually("the list is requested repeatedly", || async {
            not_found(&operator, resource).await >= 4
        })
        .await;
        let unknown = format!("the API server does not know the kind {kind}; ");
        assert_eq!(lines(&operator, &unknown, kind), 1, "{}", operator.log());
        assert_eq!(lines(&operator, "a watch has failed", resource), 0);
    }
    // The shutdown does not wait for the lists.
    operator.signal("-TERM");
    let (code, log) = tokio::time::timeout(Duration::from_secs(15), operator.exited())
        .await
        .expect("the operator waits for the definitions");
    assert_eq!(code, Some(0), "{log}");

    let operator = Process::start(&world, FIRST, &address_of(server)).await;
    eventually("the operator misses the definitions", || async {
        not_found(&operator, "vmpools").await > 0 && not_found(&operator, "vmassignments").await > 0
    })
    .await;
    install(&world.client, |file| {
        file.starts_with("vmpools.") || file.starts_with("vmassignments.")
    })
    .await;
    let pools = Api::<VmPool>::namespaced(world.client.clone(), &world.namespace);
    eventually("the definition is established", || async {
        pools.list(&ListParams::default()).await.is_ok()
    })
    .await;
    let pool = json!({"apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VmPool", "metadata": {"name": "desktops"},
        "spec": {"permissions": []}});
    let pool = serde_json::from_value(pool).unwrap();
    pools.create(&PostParams::default(), &pool).await.unwrap();
    eventually("the pool counts its member", || async {
        let pool = pools.get("desktops").await.unwrap();
        pool.status.is_some_and(|status| status.members == 1)
    })
    .await;
    for kind in ["VmPool", "VmAssignment"] {
        let known = format!("the API server knows the kind {kind} now");
        assert_eq!(lines(&operator, &known, kind), 1, "{}", operator.log());
    }
}
