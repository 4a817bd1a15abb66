//! Pod deletions by others: each counts as an exit, and the backoff before the next start grows.

use super::fake_api::{PODS, VMS};
use super::world::{World, now, one_disk, pass, request};
use serde_json::{Value, json};
use vm_operator::k8s::controller::Outcome;

async fn created() -> World {
    let world = World::new(one_disk());
    world.settle().await;
    world
}

/// Deletes the pod with its grace period, as another client.
async fn delete(world: &World, conditions: Value) {
    world.api.change(PODS, "vm", |pod| {
        pod["metadata"]["deletionTimestamp"] = json!(now());
        pod["status"] = json!({"phase": "Running", "conditions": conditions});
    });
    world.settle().await;
}

async fn is_gone(world: &World) {
    world.api.remove(PODS, "vm");
    world.settle().await;
}

/// Deletes the pod. Returns the time until there is another one.
async fn replaced_after(world: &World) -> u64 {
    delete(world, json!([])).await;
    is_gone(world).await;
    if world.api.get(PODS, "vm").is_some() {
        return 0;
    }
    assert_eq!(world.ready().0, "RestartBackoff");
    let Outcome::Recheck(left) = world.reconcile().await.unwrap() else {
        panic!("no reconcile is requested")
    };
    pass(i64::try_from(left.as_secs()).unwrap());
    world.settle().await;
    assert!(world.api.get(PODS, "vm").is_some());
    left.as_secs()
}

#[tokio::test]
async fn a_pod_that_others_delete_again_and_again_is_created_later_and_later() {
    let mut world = created().await;
    let mut delays = Vec::new();
    for n in 0..10 {
        delays.push(replaced_after(&world).await);
        // The status records it.
        if n == 4 {
            world.restart_operator();
        }
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
    let restarts = world.vm().status.unwrap().restarts.unwrap();
    assert_eq!(
        (restarts.attempts, restarts.reason.as_str()),
        (10, "PodDeleted")
    );
}

#[tokio::test]
async fn status_names_the_deleter_of_the_pod_and_the_time_of_the_next_pod() {
    let world = created().await;
    let reason = json!([{
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
        "message": "Taint manager: deleting due to NoExecute taint",
    }]);
    delete(&world, reason).await;
    assert_eq!(world.ready().0, "Stopping");
    let until = now()
        .checked_add(k8s_openapi::jiff::SignedDuration::from_secs(1))
        .unwrap()
        .to_string();
    is_gone(&world).await;
    let (reason, message) = world.ready();
    assert_eq!(reason, "RestartBackoff");
    for text in [
        "consecutive restarts: 1",
        "NoExecute",
        until.as_str(),
        "restartRequest",
    ] {
        assert!(message.contains(text), "{text:?} in {message:?}");
    }
    assert_eq!(world.step().await, [""; 0]);
}

#[tokio::test]
async fn a_restart_request_ends_the_delay() {
    let world = created().await;
    replaced_after(&world).await;
    delete(&world, json!([])).await;
    is_gone(&world).await;
    assert_eq!(world.ready().0, "RestartBackoff");
    world.edit(|machine| machine["restartRequest"] = 1.into());
    world.settle().await;
    assert!(world.api.get(PODS, "vm").is_some());
}

#[tokio::test]
async fn pods_that_the_operator_deletes_itself_are_replaced_at_once() {
    let world = created().await;
    for n in 1..5 {
        world.edit(|machine| machine["restartRequest"] = n.into());
        world.settle().await;
        assert_ne!(
            world.api.get(PODS, "vm").unwrap()["metadata"]["deletionTimestamp"],
            Value::Null
        );
        is_gone(&world).await;
        assert!(world.api.get(PODS, "vm").is_some(), "restart {n}");
    }
    // A pod that has not run yet, and has a changed template.
    for image in ["example.org/a:1", "example.org/b:1"] {
        world.api.change(VMS, "vm", |vm| {
            vm["spec"]["image"] = json!({"source": image});
            vm["metadata"]["generation"] =
                (vm["metadata"]["generation"].as_i64().unwrap() + 1).into();
        });
        world.settle().await;
        assert_ne!(
            world.api.get(PODS, "vm").unwrap()["metadata"]["deletionTimestamp"],
            Value::Null
        );
        is_gone(&world).await;
        assert!(world.api.get(PODS, "vm").is_some(), "{image}");
    }
    assert_eq!(world.vm().status.unwrap().restarts, None);
}

#[tokio::test]
async fn a_pod_that_vanishes_at_once_is_replaced_at_once() {
    let world = created().await;
    world.api.remove(PODS, "vm");
    world.deliver();
    assert!(world.step().await.contains(&request("POST", PODS, "vm")));
    assert_eq!(
        world.api.get(VMS, "vm").unwrap()["status"]["restarts"],
        Value::Null
    );
}

#[tokio::test]
async fn first_start_after_a_drain_has_the_cause() {
    let world = created().await;
    let reason = json!([{
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
    }]);
    delete(&world, reason).await;
    is_gone(&world).await;
    pass(1);
    world.settle().await;
    let (reason, message) = world.ready();
    assert_eq!(reason, "Starting");
    assert!(
        message.contains("PodDeleted: Evicted: Eviction API: evicting"),
        "{message}"
    );
    world.run();
    world.settle().await;
    assert_eq!(world.ready().1, "the VM is running");
}
