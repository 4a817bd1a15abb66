//! What is in a VM's way is told once, with one write, and taken back when it is over.

use super::fake_api::{PODS, VMS};
use super::world::{World, now, one_disk, pass, request};
use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};
use std::time::Duration;
use vm_operator::operator::controller::Outcome;
use vm_operator::operator::settings::Settings;

fn warn(world: &World, reason: &str, note: &str) {
    let pod = world.api.get(PODS, "vm").unwrap();
    let event = json!({
        "metadata": {"name": "vm.1"}, "type": "Warning", "reason": reason, "note": note, "eventTime": null,
        "regarding": {"kind": "Pod", "name": "vm", "uid": pod["metadata"]["uid"]}, "deprecatedLastTimestamp": now(),
    });
    assert!(world.ctx.caches.warnings.saw(&serde_json::from_value(event).unwrap()));
}

fn events(world: &World, reason: &str) -> Vec<Value> {
    let all = world.api.list("/apis/events.k8s.io/v1/namespaces/ns/events").into_iter();
    all.filter(|event| event["reason"] == reason).collect()
}

#[tokio::test]
async fn a_volume_that_cannot_be_mounted_is_told_with_one_write_and_one_event() {
    let mut world = World::new(one_disk());
    world.settle().await;
    world.pod_status(json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}));
    assert_eq!(world.step().await, [""; 0]);
    let note = "MountVolume.SetUp failed for volume \"pvc-1\" : mount failed: exit status 32";
    warn(&world, "FailedMount", note);
    assert_eq!(world.step().await, [request("PATCH", VMS, "vm/status")]);
    let (reason, message) = world.ready();
    assert_eq!(reason, "VolumeMountFailed");
    assert!(message.contains(note) && message.contains("kubectl describe pod vm"), "{message}");
    let told = events(&world, "VolumeMountFailed");
    assert_eq!((told.len(), &told[0]["type"]), (1, &json!("Warning")));
    assert_eq!(world.step().await, [""; 0]);

    // A new operator, to which the API server shows the same event again, writes nothing.
    world.restart_operator();
    warn(&world, "FailedMount", note);
    assert_eq!(world.step().await, [""; 0]);

    world.run();
    assert_eq!(world.step().await, [request("PATCH", VMS, "vm/status")]);
    assert_eq!(world.ready().0, "Running");
    // The next pod starts without the old one's trouble.
    world.api.remove(PODS, "vm");
    world.settle().await;
    assert_eq!(world.ready().0, "Starting");
}

fn unscheduled(world: &World, message: &str) {
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message, "lastTransitionTime": now(),
    });
    world.pod_status(json!({"phase": "Pending", "conditions": [condition]}));
}

#[tokio::test]
async fn a_pod_for_which_there_is_no_room_is_told_of_at_once_and_one_that_waits_for_its_volume_later() {
    let world = World::new(one_disk());
    world.settle().await;
    unscheduled(&world, "0/1 nodes are available: 1 Insufficient memory.");
    assert_eq!(world.step().await, [request("PATCH", VMS, "vm/status")]);
    assert_eq!(world.ready().0, "Unschedulable");

    let world = World::new(one_disk());
    world.settle().await;
    unscheduled(&world, "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.");
    assert_eq!(world.reconcile().await.unwrap(), Outcome::Recheck(Duration::from_secs(10)));
    assert_eq!((world.ready().0.as_str(), world.api.requests()), ("Starting", vec![]));
    pass(10);
    assert_eq!(world.reconcile().await.unwrap(), Outcome::Recheck(Duration::from_secs(20)));
    assert_eq!(world.api.requests(), [request("PATCH", VMS, "vm/status")]);
    assert_eq!(world.ready().0, "Starting");
    assert!(world.ready().1.contains("unbound immediate"), "{}", world.ready().1);
    assert_eq!(events(&world, "ClaimPending"), [Value::Null; 0]);
    pass(20);
    assert_eq!(world.step().await, [request("PATCH", VMS, "vm/status")]);
    assert_eq!(world.ready().0, "ClaimPending");
}

/// A pod whose image cannot be had.
async fn without_image() -> World {
    let world = World::new(one_disk());
    world.settle().await;
    let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": "not found"}});
    world
        .pod_status(json!({"phase": "Pending", "containerStatuses": [{"name": "vm", "image": "i", "state": waiting}]}));
    world.settle().await;
    assert_eq!(world.ready().0, "ImagePullFailed");
    world.api.requests();
    world
}

/// The pod that is to go is gone.
async fn ends(world: &World) {
    assert!(world.api.get(PODS, "vm").unwrap()["metadata"]["deletionTimestamp"].is_string());
    world.api.remove(PODS, "vm");
    world.settle().await;
}

fn image(world: &World) -> Value {
    world.api.get(PODS, "vm").unwrap()["spec"]["containers"][0]["image"].clone()
}

#[tokio::test]
async fn a_pod_that_has_not_run_is_made_anew_when_the_vm_or_the_settings_are_mended() {
    let world = without_image().await;
    world.api.change(VMS, "vm", |vm| {
        vm["spec"]["image"] = json!({"source": "registry.example/runner:2"});
        vm["metadata"]["generation"] = 2.into();
    });
    world.reconcile().await.unwrap();
    assert!(world.api.requests().contains(&request("DELETE", PODS, "vm")));
    assert_eq!(world.ready().0, "Starting");
    ends(&world).await;
    assert_eq!(image(&world), "registry.example/runner:2");

    let world = without_image().await;
    let mut settings = Settings::default();
    settings.reconciler.runner_image.source = "registry.example/runner:3".to_owned();
    world.ctx.set_settings(settings);
    world.settle().await;
    ends(&world).await;
    assert_eq!(image(&world), "registry.example/runner:3");
}

#[tokio::test]
async fn a_pod_that_has_not_run_is_kept_where_nothing_of_it_changes() {
    let mut world = without_image().await;
    world.edit(|machine| machine["currentCpus"] = 1.into());
    world.restart_operator();
    world.settle().await;
    assert_eq!(world.ready().0, "ImagePullFailed");
    let is_deleted = |world: &World| world.api.get(PODS, "vm").unwrap()["metadata"]["deletionTimestamp"].is_string();
    assert!(!is_deleted(&world));
    world.edit(|machine| machine["powerdownTimeout"] = 30.into());
    world.settle().await;
    assert!(is_deleted(&world));
}

#[tokio::test]
async fn a_vm_on_a_lost_node_waits_and_comes_back_elsewhere_once_its_pod_is_really_gone() {
    let world = World::new(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    let lost = json!([{"type": "Ready", "status": "False"}]);
    world.pod_status(json!({"phase": "Running", "conditions": lost}));
    assert_eq!(world.step().await, [request("PATCH", VMS, "vm/status")]);
    assert_eq!(world.ready().0, "NodeUnreachable");

    // The taint manager deletes the pod, and no kubelet is there to end it.
    world.api.change(PODS, "vm", |pod| {
        pod["metadata"]["deletionTimestamp"] = json!(now().checked_add(SignedDuration::from_secs(915)).unwrap());
        let target = json!({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"});
        pod["status"]["conditions"].as_array_mut().unwrap().push(target);
    });
    world.deliver();
    assert_eq!(world.step().await, [""; 0], "its state stays what it was");
    for _ in 0..5 {
        pass(600);
        world.settle().await;
        assert_eq!(world.ready().0, "NodeUnreachable");
    }
    let requests = world.step().await;
    assert_eq!(requests, [""; 0], "nothing is forced, and no second pod is made");

    // The administrator has said that the node is off; Kubernetes removes the pod.
    world.api.remove(PODS, "vm");
    world.deliver();
    let requests = world.step().await;
    assert!(requests.contains(&request("POST", PODS, "vm")), "{requests:?}");
    assert_eq!(world.ready().0, "Starting");
}

#[tokio::test]
async fn a_pod_that_does_not_end_is_explained_when_its_time_is_over() {
    let world = World::new(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    world.edit(|machine| machine["state"] = "Stopped".into());
    world.settle().await;
    world.api.change(PODS, "vm", |pod| {
        pod["metadata"]["deletionTimestamp"] = json!(now());
    });
    world.deliver();
    assert_eq!(world.reconcile().await.unwrap(), Outcome::Recheck(Duration::from_secs(10)));
    assert_eq!(world.ready().0, "Stopping");
    world.api.requests();
    pass(10);
    assert_eq!(world.step().await, [request("PATCH", VMS, "vm/status")]);
    assert_eq!(world.ready().0, "TerminationOverdue");
    assert_eq!(world.step().await, [""; 0]);
    world.api.remove(PODS, "vm");
    world.settle().await;
    assert_eq!(world.ready().0, "Stopped");
}
