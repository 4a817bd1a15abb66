//! Pods that somebody else than the operator deletes: the first is replaced at once, the next ones later and later.

use super::fake_api::{PODS, VMS};
use super::world::{World, now, one_disk, pass, pod_and_status, request};
use serde_json::{Value, json};
use std::time::Duration;
use vm_operator::operator::controller::Outcome;

async fn made() -> World {
    let world = World::new(one_disk());
    world.settle().await;
    world
}

/// The guest runs from now on.
async fn runs(world: &World) {
    world.pod_status(json!({"phase": "Running"}));
    world.api.change(VMS, "vm", |vm| {
        let conditions = vm["status"]["conditions"].as_array_mut().unwrap();
        conditions.retain(|condition| condition["type"] != "Running");
        conditions.push(json!({
            "type": "Running", "status": "True", "reason": "VmStarted", "message": "", "lastTransitionTime": now(),
        }));
    });
    world.settle().await;
    assert_eq!(world.ready().0, "Running");
}

async fn lose(world: &World) {
    assert!(world.api.get(PODS, "vm").is_some());
    world.api.remove(PODS, "vm");
    world.settle().await;
}

/// Seconds until the pod is made, if none is there.
async fn waits(world: &World) -> u64 {
    if world.api.get(PODS, "vm").is_some() {
        return 0;
    }
    assert_eq!(world.ready().0, "RestartBackoff");
    match world.reconcile().await.unwrap() {
        Outcome::Recheck(left) => left.as_secs(),
        Outcome::Done => panic!("nobody looks again"),
    }
}

/// Loses the pod, and gives how long it took until there was another one.
async fn replaced(world: &World) -> u64 {
    lose(world).await;
    let left = waits(world).await;
    if left > 0 {
        pass(i64::try_from(left).unwrap() - 1);
        world.settle().await;
        assert!(world.api.get(PODS, "vm").is_none(), "before {left} s are over");
        pass(1);
        world.settle().await;
    }
    assert!(world.api.get(PODS, "vm").is_some(), "after {left} s");
    left
}

#[tokio::test]
async fn a_pod_that_others_delete_again_and_again_is_made_later_and_later() {
    let world = made().await;
    let mut pauses = Vec::new();
    for _ in 0..9 {
        pauses.push(replaced(&world).await);
    }
    assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 300, 300, 300]);
    let restarts = world.vm().status.unwrap().restarts.unwrap();
    assert_eq!((restarts.attempts, restarts.reason.as_str()), (9, "PodDeleted"));
}

#[tokio::test]
async fn the_pause_is_told_once_with_when_it_ends_and_who_deletes_the_pod() {
    let world = made().await;
    assert_eq!(replaced(&world).await, 0);
    let reason = json!([{
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
        "message": "Taint manager: deleting due to NoExecute taint",
    }]);
    world.api.change(PODS, "vm", |pod| {
        pod["metadata"]["deletionTimestamp"] = json!(now());
        pod["status"] = json!({"phase": "Running", "conditions": reason});
    });
    world.settle().await;
    assert_eq!(world.ready().0, "Stopping");
    world.api.remove(PODS, "vm");
    world.deliver();
    assert_eq!(world.step().await, [request("PATCH", VMS, "vm/status")]);
    let (reason, message) = world.ready();
    let until = now().checked_add(k8s_openapi::jiff::SignedDuration::from_secs(10)).unwrap().to_string();
    assert_eq!(reason, "RestartBackoff");
    for words in ["2 times", "NoExecute taint", until.as_str(), "restartRequest"] {
        assert!(message.contains(words), "{words:?} in {message:?}");
    }
    // Nothing more is written before the pod is made, and then that it starts.
    for _ in 0..3 {
        assert_eq!(world.reconcile().await.unwrap(), Outcome::Recheck(Duration::from_secs(10)));
        assert_eq!(world.api.requests(), [""; 0]);
    }
    pass(10);
    assert_eq!(world.step().await, {
        let mut expected = pod_and_status();
        expected.sort();
        expected
    });
}

#[tokio::test]
async fn who_has_run_for_ten_minutes_is_replaced_at_once_again() {
    let world = made().await;
    assert_eq!((replaced(&world).await, replaced(&world).await), (0, 10));
    runs(&world).await;
    pass(599);
    assert_eq!(replaced(&world).await, 20);
    runs(&world).await;
    pass(600);
    assert_eq!((replaced(&world).await, replaced(&world).await), (0, 10));
}

#[tokio::test]
async fn a_new_operator_goes_on_from_what_was_told() {
    let mut world = made().await;
    assert_eq!((replaced(&world).await, replaced(&world).await), (0, 10));
    lose(&world).await;
    assert_eq!(waits(&world).await, 20);
    pass(15);
    world.restart_operator();
    world.settle().await;
    assert_eq!(waits(&world).await, 5);
    pass(5);
    world.settle().await;
    assert_eq!(replaced(&world).await, 40);
    // While the pod is there, too; and one that goes while no operator is there is not counted.
    world.restart_operator();
    world.settle().await;
    assert_eq!(replaced(&world).await, 80);
    world.api.remove(PODS, "vm");
    world.restart_operator();
    world.settle().await;
    assert_eq!(replaced(&world).await, 160);
}

#[tokio::test]
async fn who_asks_for_a_restart_or_stops_the_vm_does_not_wait() {
    let world = made().await;
    assert_eq!(replaced(&world).await, 0);
    lose(&world).await;
    assert_eq!(waits(&world).await, 10);
    world.edit(|machine| machine["restartRequest"] = 1.into());
    world.settle().await;
    assert_eq!(world.ready().0, "Starting");
    lose(&world).await;
    assert_eq!(waits(&world).await, 20);
    world.edit(|machine| machine["state"] = "Stopped".into());
    world.settle().await;
    assert_eq!((world.ready().0.as_str(), world.vm().status.unwrap().restarts), ("Stopped", None));
    world.edit(|machine| machine["state"] = "Running".into());
    world.settle().await;
    assert_eq!(replaced(&world).await, 0);
}

#[tokio::test]
async fn pods_that_the_operator_deletes_itself_are_replaced_at_once() {
    let world = made().await;
    for n in 1..5 {
        world.edit(|machine| machine["restartRequest"] = n.into());
        world.settle().await;
        lose(&world).await;
        assert_eq!(waits(&world).await, 0, "restart {n}");
    }
    // One that has not run yet, and is made differently now.
    for image in ["example.org/a:1", "example.org/b:1", "example.org/c:1"] {
        world.api.change(VMS, "vm", |vm| {
            vm["spec"]["image"] = json!({"source": image});
            vm["metadata"]["generation"] = (vm["metadata"]["generation"].as_i64().unwrap() + 1).into();
        });
        world.settle().await;
        assert_ne!(world.api.get(PODS, "vm").unwrap()["metadata"]["deletionTimestamp"], Value::Null);
        lose(&world).await;
        assert_eq!(waits(&world).await, 0, "{image}");
    }
    assert_eq!(world.vm().status.unwrap().restarts, None);
}
