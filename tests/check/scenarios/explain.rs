//! A blocking condition is reported once, with one write, and removed when it is over.

use super::fake_api::{CLAIMS, EVENTS, PODS, VMS, request_paths};
use super::world::{World, now, one_disk, pass, request};
use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};
use std::time::Duration;
use vm_operator::k8s::controller::Outcome;
use vm_operator::settings::Settings;

fn warn(world: &World, object: &Value, reason: &str, note: &str) {
    let uid = &object["metadata"]["uid"];
    world.api.put(
        EVENTS,
        json!({
            "metadata": {"name": format!("{reason}.1")}, "type": "Warning", "reason": reason, "note": note, "eventTime": null,
            "regarding": {"uid": uid},
        }),
    );
}

fn events(world: &World, reason: &str) -> Vec<Value> {
    world
        .api
        .list(EVENTS)
        .into_iter()
        .filter(|event| event["reason"] == reason)
        .collect()
}

fn has_condition(world: &World, condition: &Value) {
    world.pod_status(json!({"phase": "Pending", "conditions": [condition]}));
}

#[tokio::test]
async fn volume_mount_failure_is_reported_with_one_write_and_one_event() {
    let mut world = World::new(one_disk());
    world.settle().await;
    has_condition(
        &world,
        &json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now()}),
    );
    let pod = world.api.get(PODS, "vm").unwrap();
    let note = "MountVolume.SetUp failed for volume \"pvc-1\" : mount failed: exit status 32";
    warn(&world, &pod, "FailedMount", note);
    warn(&world, &pod, "DNSConfigForming", "is no reason");
    pass(9);
    assert_eq!(
        world.reconcile().await.unwrap(),
        Outcome::Recheck(Duration::from_secs(10))
    );
    assert_eq!(
        request_paths(&world.api),
        [""; 0],
        "a normal start costs no request"
    );
    pass(1);
    world.reconcile().await.unwrap();
    assert_eq!(
        request_paths(&world.api)[..2],
        [format!("GET {EVENTS}"), request("PATCH", VMS, "vm/status")]
    );
    let (reason, message) = world.ready();
    assert_eq!(reason, "VolumeMountFailed");
    assert!(
        message.contains(note) && message.contains("kubectl describe pod vm"),
        "{message}"
    );
    let found = events(&world, "VolumeMountFailed");
    assert_eq!((found.len(), &found[0]["type"]), (1, &json!("Warning")));
    assert_eq!(world.step().await, [""; 0]);

    // A new operator finds the same event and writes nothing.
    world.restart_operator();
    assert_eq!(world.step().await, [""; 0]);

    world.run();
    world.reconcile().await.unwrap();
    assert_eq!(
        request_paths(&world.api)[0],
        request("PATCH", VMS, "vm/status"),
        "no event is listed"
    );
    assert_eq!(world.ready().0, "Running");
    // The next pod starts without the condition of the old one.
    world.api.remove(PODS, "vm");
    world.settle().await;
    assert_eq!(world.ready().0, "Starting");
}

fn unscheduled(world: &World, message: &str) {
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message, "lastTransitionTime": now(),
    });
    has_condition(world, &condition);
}

#[tokio::test]
async fn pod_without_a_node_is_explained_and_one_that_waits_for_a_volume_after_the_delay() {
    let world = World::new(one_disk());
    world.settle().await;
    unscheduled(
        &world,
        "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
    );
    assert_eq!(
        world.reconcile().await.unwrap(),
        Outcome::Recheck(Duration::from_secs(10))
    );
    assert_eq!(
        (world.ready().0.as_str(), request_paths(&world.api)),
        ("Starting", vec![])
    );
    world.api.change(CLAIMS, "vm-system-disk", |claim| {
        claim["status"] = json!({"phase": "Pending"})
    });
    let claim = world.api.get(CLAIMS, "vm-system-disk").unwrap();
    world.deliver();
    pass(10);
    assert_eq!(world.step().await, [request("PATCH", VMS, "vm/status")]);
    assert_eq!(world.ready().0, "ClaimPending");
    warn(&world, &claim, "ProvisioningFailed", "no such class");
    pass(10);
    assert_eq!(world.step().await, [request("PATCH", VMS, "vm/status")]);
    assert_eq!(world.ready().0, "ProvisioningFailed");
    unscheduled(&world, "0/1 nodes are available: 1 Insufficient memory.");
    assert_eq!(world.step().await, [request("PATCH", VMS, "vm/status")]);
    assert_eq!(world.ready().0, "Unschedulable");
}

/// A pod with an image that cannot be pulled.
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

/// The terminating pod is removed.
async fn ends(world: &World) {
    assert!(world.api.get(PODS, "vm").unwrap()["metadata"]["deletionTimestamp"].is_string());
    world.api.remove(PODS, "vm");
    world.settle().await;
}

fn image(world: &World) -> Value {
    world.api.get(PODS, "vm").unwrap()["spec"]["containers"][0]["image"].clone()
}

#[tokio::test]
async fn pod_that_never_ran_is_recreated_when_vm_or_settings_are_fixed() {
    let world = without_image().await;
    world.api.change(VMS, "vm", |vm| {
        vm["spec"]["image"] = json!({"source": "registry.example/runner:2"});
        vm["metadata"]["generation"] = 2.into();
    });
    world.reconcile().await.unwrap();
    assert!(
        world
            .api
            .requests()
            .contains(&request("DELETE", PODS, "vm"))
    );
    assert_eq!(world.ready().0, "Starting");
    ends(&world).await;
    assert_eq!(image(&world), "registry.example/runner:2");

    let mut world = without_image().await;
    let mut settings = Settings::default();
    settings.reconciler.runner_image.source = "registry.example/runner:3".to_owned();
    world.ctx.settings = settings;
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
    let is_deleted = |world: &World| {
        world.api.get(PODS, "vm").unwrap()["metadata"]["deletionTimestamp"].is_string()
    };
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

    // The taint manager deletes the pod, and no kubelet can stop it.
    world.api.change(PODS, "vm", |pod| {
        pod["metadata"]["deletionTimestamp"] = json!(now().checked_add(SignedDuration::from_secs(915)).unwrap());
        let target = json!({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"});
        pod["status"]["conditions"].as_array_mut().unwrap().push(target);
    });
    world.deliver();
    assert_eq!(world.step().await, [request("PATCH", VMS, "vm/status")]);
    assert_eq!(
        world.vm().status.unwrap().restarts.unwrap().reason,
        "PodDeleted"
    );
    for _ in 0..5 {
        pass(600);
        world.settle().await;
        assert_eq!(world.ready().0, "NodeUnreachable");
    }
    let requests = world.step().await;
    assert_eq!(
        requests, [""; 0],
        "nothing is forced, and no second pod is created"
    );

    // The administrator declares the node out of service. Kubernetes removes the pod.
    world.api.remove(PODS, "vm");
    world.deliver();
    let requests = world.step().await;
    assert!(
        requests.contains(&request("POST", PODS, "vm")),
        "{requests:?}"
    );
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
    assert_eq!(
        world.reconcile().await.unwrap(),
        Outcome::Recheck(Duration::from_secs(10))
    );
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
