//! Two VMs that generate the same name of a PVC.

use super::fake_api::{CLAIMS, PODS, VMS};
use super::world::{World, request};
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use std::sync::Arc;
use vm_operator::api::VirtualMachine;
use vm_operator::controllers::vm::reconcile;

const CLAIM: &str = "vm-block-system-disk";

fn disk(name: &str) -> Value {
    json!({"state": "Running", "disks": [{"volumeClaimTemplate": {"metadata": {"name": name}}}]})
}

/// The VM `vm` with the disk `block-system`, and the VM `vm-block` with the disk `system`, which was created on that day.
fn world(day: u8) -> World {
    let world = World::new(disk("block-system"));
    world.api.change(VMS, "vm", |vm| {
        vm["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z".into();
    });
    let mut other = world.api.get(VMS, "vm").unwrap();
    let created = format!("2026-01-0{day}T00:00:00Z");
    other["metadata"] = json!({"name": "vm-block", "namespace": "ns", "uid": "other-uid", "generation": 1, "creationTimestamp": created});
    other["spec"]["vm"] = disk("system");
    world.api.put(VMS, other);
    world
}

fn vm(world: &World, name: &str) -> VirtualMachine {
    serde_json::from_value(world.api.get(VMS, name).unwrap()).unwrap()
}

/// Reconciles both VMs until nothing changes.
async fn settle(world: &World) {
    for _ in 0..8 {
        for name in ["vm", "vm-block"] {
            world.ctx.vms.watched(&Event::Init);
            for name in ["vm", "vm-block"] {
                world.ctx.vms.watched(&Event::InitApply(vm(world, name)));
            }
            world.ctx.vms.watched(&Event::InitDone);
            world.deliver();
            let _ = reconcile(Arc::new(vm(world, name)), &world.ctx).await;
        }
    }
}

fn reasons(world: &World) -> [String; 2] {
    ["vm", "vm-block"].map(|name| {
        let conditions = vm(world, name).status.unwrap().conditions;
        let ready = conditions.into_iter().find(|it| it.type_ == "Ready");
        ready.unwrap().reason
    })
}

#[tokio::test]
async fn name_without_a_claim_belongs_to_the_older_vm() {
    for (day, expected) in [
        (1, ["InvalidSpec", "Starting"]),
        (3, ["Starting", "InvalidSpec"]),
    ] {
        let world = world(day);
        settle(&world).await;
        assert_eq!(reasons(&world), expected);
        let owner = if day == 1 { "vm-block" } else { "vm" };
        let claim = world.api.get(CLAIMS, CLAIM).unwrap();
        assert_eq!(
            claim["metadata"]["labels"]["app.kubernetes.io/instance"],
            owner
        );
    }
}

#[tokio::test]
async fn claim_belongs_to_the_vm_of_its_labels_also_if_that_does_not_exist() {
    let labels =
        |vm: &str| json!({"app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": vm});
    for (owner, expected) in [
        ("vm", ["Starting", "InvalidSpec"]),
        ("deleted", ["InvalidSpec", "InvalidSpec"]),
    ] {
        let world = world(1);
        let metadata = json!({"name": CLAIM, "namespace": "ns", "labels": labels(owner)});
        world.api.put(CLAIMS, json!({"metadata": metadata}));
        settle(&world).await;
        assert_eq!(reasons(&world), expected, "{owner}");
    }
}

#[tokio::test]
async fn claim_that_was_replaced_for_another_vm_is_found_by_a_live_read() {
    let world = world(1);
    let other = vm(&world, "vm-block");
    settle(&world).await;
    world.api.remove(PODS, "vm-block");
    world.deliver();
    let labels = json!({"app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": "vm"});
    world.api.remove(CLAIMS, CLAIM);
    let metadata = json!({"name": CLAIM, "namespace": "ns", "labels": labels});
    world.api.put(CLAIMS, json!({"metadata": metadata}));
    world.api.requests();
    let present = vm(&world, &other.metadata.name.unwrap());
    assert!(reconcile(Arc::new(present), &world.ctx).await.is_err());
    let requests = world.api.requests();
    assert!(
        requests.contains(&request("GET", CLAIMS, CLAIM)),
        "{requests:?}"
    );
    assert!(
        !requests.contains(&request("POST", PODS, "vm-block")),
        "{requests:?}"
    );
}

#[tokio::test]
async fn name_of_a_lost_claim_remains_with_the_vm_that_has_used_it() {
    let world = world(1);
    let labels = json!({"app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": "vm"});
    let metadata = json!({"name": CLAIM, "namespace": "ns", "labels": labels});
    world.api.put(CLAIMS, json!({"metadata": metadata}));
    settle(&world).await;
    world.api.remove(PODS, "vm");
    world.api.remove(CLAIMS, CLAIM);
    settle(&world).await;
    assert_eq!(reasons(&world), ["DataMissing", "InvalidSpec"]);
    assert_eq!(world.api.get(CLAIMS, CLAIM), None);
    let restored = json!({"name": CLAIM, "namespace": "ns"});
    world.api.put(CLAIMS, json!({"metadata": restored}));
    settle(&world).await;
    assert_eq!(reasons(&world), ["Starting", "InvalidSpec"]);
}

#[tokio::test]
async fn claim_of_a_removed_disk_can_be_given_to_another_vm() {
    let world = world(1);
    world.api.put(
        CLAIMS,
        json!({"metadata": {"name": CLAIM, "namespace": "ns"}}),
    );
    settle(&world).await;
    assert_eq!(reasons(&world), ["InvalidSpec", "Starting"]);
    world.api.change(VMS, "vm-block", |vm| {
        vm["spec"]["vm"]["disks"] = json!([]);
        vm["metadata"]["generation"] = 2.into();
    });
    settle(&world).await;
    assert_eq!(
        reasons(&world)[0],
        "InvalidSpec",
        "vm-block has used the PVC"
    );
    let labels = json!({"app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": "vm"});
    world
        .api
        .change(CLAIMS, CLAIM, |claim| claim["metadata"]["labels"] = labels);
    world.api.remove(PODS, "vm-block");
    settle(&world).await;
    assert_eq!(reasons(&world), ["Starting"; 2]);
    let pod = world.api.get(PODS, "vm-block").unwrap();
    settle(&world).await;
    assert_eq!(world.api.get(PODS, "vm-block"), Some(pod));
}
