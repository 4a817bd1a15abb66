//! A guest that does not work while its VM runs: `Ready` is `False` with the cause, until the guest continues.

use super::fake_api::{EVENTS, VMS};
use super::world::{World, now, one_disk, request};
use serde_json::{Value, json};

/// The part of the runner: it reports a condition.
fn report(world: &World, type_: &str, status: &str, reason: &str) {
    world.api.change(VMS, "vm", |vm| {
        let conditions = vm["status"]["conditions"].as_array_mut().unwrap();
        conditions.retain(|condition| condition["type"] != type_);
        conditions.push(json!({
            "type": type_, "status": status, "reason": reason, "message": "the problem", "lastTransitionTime": now(),
        }));
    });
}

/// Type and reason of the events about the VM.
fn events(world: &World) -> Vec<(Value, Value)> {
    let events = world.api.list(EVENTS).into_iter();
    events
        .map(|event| (event["type"].clone(), event["reason"].clone()))
        .collect()
}

#[tokio::test]
async fn vm_whose_disk_is_full_is_not_ready_until_its_guest_continues() {
    let world = World::new(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    report(&world, "StorageHealthy", "False", "DiskFull");
    let status = request("PATCH", VMS, "vm/status");
    assert!(world.step().await.contains(&status));
    assert_eq!(world.ready().0, "DiskFull");
    assert!(events(&world).contains(&(json!("Warning"), json!("DiskFull"))));
    assert_eq!(world.step().await, [""; 0]);
    report(&world, "StorageHealthy", "True", "Healthy");
    assert!(world.step().await.contains(&status));
    assert_eq!(world.ready().0, "Running");
}

#[tokio::test]
async fn vm_whose_qemu_hangs_is_not_ready_until_qemu_answers() {
    let world = World::new(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    report(&world, "QemuResponsive", "False", "QemuSilent");
    world.step().await;
    assert_eq!(world.ready().0, "QemuSilent");
    assert!(events(&world).contains(&(json!("Warning"), json!("QemuSilent"))));
    report(&world, "QemuResponsive", "True", "Responsive");
    world.step().await;
    assert_eq!(world.ready().0, "Running");
}
