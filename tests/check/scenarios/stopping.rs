//! A guest that shuts down: the wait and the way to end it are visible on the pod, and in the status of a VM that still exists.

use super::fake_api::{EVENTS, PODS, VMS};
use super::world::{POWERED_OFF, World, now, one_disk, request};
use serde_json::{Value, json};
use vm_operator::controllers::vm::report::publish_shutdown;

/// The events about the pod.
fn pod_events(world: &World) -> Vec<Value> {
    let mut events = world.api.list(EVENTS);
    events.retain(|event| event["regarding"]["kind"] == "Pod");
    events
}

async fn running() -> World {
    let world = World::new(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    world
}

#[tokio::test]
async fn stop_of_a_vm_is_reported_on_its_pod_once() {
    let world = running().await;
    assert_eq!(pod_events(&world), [Value::Null; 0]);
    world.edit(|machine| machine["state"] = "Stopped".into());
    world.settle().await;
    let [event] = &*pod_events(&world) else {
        panic!("{:?}", pod_events(&world))
    };
    assert_eq!(event["reason"], "Stopping");
    let note = event["note"].as_str().unwrap();
    for text in [
        "900 s to shut down",
        "kubectl exec -n ns vm -- vm-runner power-off",
    ] {
        assert!(note.contains(text), "{note}");
    }
}

#[tokio::test]
async fn deletion_of_a_vm_is_reported_on_its_pod() {
    let world = running().await;
    // As the watch of VMs does. Afterwards the operator has no VM to report about.
    publish_shutdown(&world.vm(), &world.ctx).await;
    assert_eq!(pod_events(&world).len(), 1);
    world.end(POWERED_OFF, 5);
    publish_shutdown(&world.vm(), &world.ctx).await;
    assert_eq!(
        pod_events(&world).len(),
        1,
        "a pod that has exited needs no time"
    );
}

#[tokio::test]
async fn vm_with_a_finalizer_of_another_program_stops_when_it_is_deleted() {
    let world = running().await;
    delete_with(&world, &["example.org/backup"]);
    assert!(world.step().await.contains(&request("DELETE", PODS, "vm")));
    world.settle().await;
    let (reason, message) = world.ready();
    assert_eq!(reason, "Stopping");
    for text in [
        "vm-runner power-off",
        "deletion of the VM",
        "example.org/backup",
    ] {
        assert!(message.contains(text), "{message}");
    }
    world.remove_pod();
    world.settle().await;
    let (reason, message) = world.ready();
    assert_eq!(reason, "Deleting");
    assert!(message.contains("example.org/backup"), "{message}");
    assert_eq!(world.api.get(PODS, "vm"), None);
}

#[tokio::test]
async fn deletion_that_orphans_the_pod_leaves_it_running() {
    let world = running().await;
    delete_with(&world, &["example.org/backup", "orphan"]);
    world.edit(|machine| machine["state"] = "Stopped".into());
    world.settle().await;
    assert!(world.api.get(PODS, "vm").unwrap()["metadata"]["deletionTimestamp"].is_null());
}

/// Deletes the VM, as another client. The finalizers keep the object.
fn delete_with(world: &World, finalizers: &[&str]) {
    world.api.change(VMS, "vm", |vm| {
        vm["metadata"]["deletionTimestamp"] = json!(now());
        vm["metadata"]["finalizers"] = json!(finalizers);
    });
}

#[tokio::test]
async fn stop_of_a_vm_whose_pod_has_exited_grants_no_time_to_shut_down() {
    let world = running().await;
    world.end(POWERED_OFF, 5);
    world.edit(|machine| machine["state"] = "Stopped".into());
    world.settle().await;
    let message = "pod \"vm\" has exited and is being deleted";
    assert_eq!(world.ready(), ("Stopping".to_owned(), message.to_owned()));
    assert_eq!(pod_events(&world), [Value::Null; 0]);
}

#[tokio::test]
async fn time_to_shut_down_is_not_reported_after_the_pod_has_exited() {
    let world = running().await;
    world.edit(|machine| machine["state"] = "Stopped".into());
    world.settle().await;
    assert!(world.ready().1.contains("900 s to shut down"));
    world.end(POWERED_OFF, 5);
    world.settle().await;
    let message = "pod \"vm\" has exited and is being deleted";
    assert_eq!(world.ready(), ("Stopping".to_owned(), message.to_owned()));
    world.remove_pod();
    world.settle().await;
    assert_eq!(world.ready().0, "Stopped");
}
