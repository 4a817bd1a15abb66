//! The pod's requests follow the VM's size.

use super::fake_api::{Fault, PODS, VMS};
use super::world::{World, change_of_size, pass, request};
use serde_json::{Value, json};
use vm_operator::k8s::controller::Outcome;

async fn running() -> World {
    let machine = json!({"state": "Running", "maximumCpus": 4, "currentCpus": 1, "maximumRam": "8Gi", "currentRam": "1Gi"});
    let world = World::new(machine);
    world.settle().await;
    world.run();
    world.settle().await;
    world
}

fn requests(world: &World) -> (String, String) {
    let requests =
        world.api.get(PODS, "vm").unwrap()["spec"]["containers"][0]["resources"]["requests"]
            .clone();
    (
        requests["cpu"].as_str().unwrap().to_owned(),
        requests["memory"].as_str().unwrap().to_owned(),
    )
}

fn note(world: &World) -> Option<(String, String)> {
    let conditions = world.vm().status.unwrap().conditions;
    let note = conditions
        .into_iter()
        .find(|c| c.type_ == "ResourcesInSync")?;
    assert_eq!(note.status, "False");
    Some((note.reason, note.message))
}

fn memory(current: u64, cpus: u64) -> String {
    // As in the plan: overcommitted, and with the share of a QEMU with a display.
    (current * 4 / 5 + ((84 + 20 + cpus) << 20) + (8 << 30) / 512).to_string()
}

#[tokio::test]
async fn requests_follow_a_live_change_of_cpus_and_memory_with_one_request() {
    let world = running().await;
    assert_eq!(requests(&world), ("500m".to_owned(), memory(1 << 30, 1)));
    world.edit(|machine| {
        machine["currentCpus"] = 3.into();
        machine["currentRam"] = "4Gi".into();
    });
    assert_eq!(world.step().await, change_of_size());
    assert_eq!(requests(&world), ("1500m".to_owned(), memory(4 << 30, 3)));
    world.deliver();
    assert_eq!(world.step().await, [""; 0]);
    assert_eq!(note(&world), None);
}

#[tokio::test]
async fn a_change_of_something_else_does_not_touch_the_requests() {
    let world = running().await;
    world.edit(|machine| machine["powerdownTimeout"] = 30.into());
    assert!(
        !world
            .step()
            .await
            .contains(&request("PATCH", PODS, "vm/resize"))
    );
}

#[tokio::test]
async fn removed_limit_remains_until_a_restart_and_is_reported() {
    let limits = json!({"memory": "16Gi", "cpu": "4"});
    let machine = json!({"state": "Running", "maximumCpus": 4, "currentCpus": 1, "maximumRam": "8Gi", "currentRam": "1Gi"});
    let world = World::with_spec(json!({"resources": {"limits": limits}, "vm": machine}));
    world.settle().await;
    world.run();
    world.settle().await;
    // The API server refuses a resize without them.
    world.api.change(VMS, "vm", |vm| {
        vm["spec"]["resources"] = json!({"limits": {"cpu": "3"}});
        vm["metadata"]["generation"] = 2.into();
    });
    let requests = world.step().await;
    let is_resize = |request: &&String| request.ends_with("/resize");
    assert_eq!(requests.iter().filter(is_resize).count(), 1, "{requests:?}");
    world.settle().await;
    let pod = world.api.get(PODS, "vm").unwrap();
    let resources = &pod["spec"]["containers"][0]["resources"];
    assert_eq!(resources["limits"], json!({"memory": "16Gi", "cpu": "3"}));
    let conditions = world.vm().status.unwrap().conditions;
    let mut conditions = conditions.iter();
    let required = conditions.find(|c| c.type_ == "RestartRequired").unwrap();
    let message = &required.message;
    assert!(
        message.contains("spec.resources.limits.memory;"),
        "{message}"
    );
    assert_eq!(note(&world), None);
}

#[tokio::test]
async fn rejected_resize_is_reported_and_retried_early_only_if_the_target_changes() {
    // An API server without the subresource, a missing permission, an impossible change.
    for code in [404, 405, 403, 422] {
        let mut world = running().await;
        world.api.reject_resizes(Some(code));
        world.edit(|machine| machine["currentCpus"] = 2.into());
        let requests = world.step().await;
        assert_eq!(
            requests.iter().filter(|r| r.ends_with("/resize")).count(),
            1,
            "{requests:?}"
        );
        let (reason, message) = note(&world).unwrap();
        assert_eq!(reason, "ResizeRefused");
        assert!(message.contains("no resize in this test"), "{message}");
        for _ in 0..2 {
            world.deliver();
            assert_eq!(world.step().await, [""; 0], "{code}");
            world.restart_operator();
        }
        assert!(note(&world).is_some());
        world.api.reject_resizes(None);
        world.edit(|machine| machine["currentCpus"] = 3.into());
        world.settle().await;
        assert_eq!(
            (self::requests(&world).0.as_str(), note(&world)),
            ("1500m", None)
        );
    }
}

#[tokio::test]
async fn rejected_resize_is_retried_periodically_and_reported_once() {
    // A restored role, an upgraded server, a removed policy.
    for code in [403, 404, 405, 422] {
        let mut world = running().await;
        world.api.reject_resizes(Some(code));
        world.edit(|machine| machine["currentCpus"] = 2.into());
        world.settle().await;
        let condition = note(&world).unwrap();
        assert_eq!(condition.0, "ResizeRefused");
        for restarted in [false, true] {
            if restarted {
                world.restart_operator();
            }
            let outcome = world.reconcile().await.unwrap();
            let Outcome::Recheck(after) = outcome else {
                panic!("{outcome:?}")
            };
            assert!((299..=360).contains(&after.as_secs()), "{after:?}");
            assert_eq!(world.api.requests(), [""; 0]);
            pass(361);
            assert_eq!(
                world.step().await,
                [request("PATCH", PODS, "vm/resize")],
                "its status is as it was"
            );
            assert_eq!(note(&world).as_ref(), Some(&condition));
            assert_eq!(world.step().await, [""; 0]);
        }
        world.api.reject_resizes(None);
        pass(361);
        world.settle().await;
        assert_eq!((requests(&world).0.as_str(), note(&world)), ("1000m", None));
    }
}

#[tokio::test]
async fn rejection_is_reported_after_a_failed_status_write() {
    let world = running().await;
    world.api.reject_resizes(Some(422));
    world.edit(|machine| machine["currentCpus"] = 2.into());
    // The live read of the VM, the ConfigMap, the resize, the annotations, and then the status.
    world.api.fail(4, Fault::Refused(500));
    assert!(world.reconcile().await.is_err());
    assert!(!world.api.fault_is_due());
    assert_eq!(note(&world), None);
    world.settle().await;
    assert_eq!(note(&world).unwrap().0, "ResizeRefused");
}

#[tokio::test]
async fn insufficient_node_capacity_is_reported_with_the_kubelet_message() {
    let world = running().await;
    world.edit(|machine| machine["currentCpus"] = 4.into());
    world.settle().await;
    for (reason, status) in [("Infeasible", true), ("Deferred", true), ("", false)] {
        let condition = json!({
            "type": "PodResizePending", "status": if status { "True" } else { "False" }, "reason": reason,
            "message": "Node didn't have enough capacity: cpu",
        });
        world.pod_status(json!({"phase": "Running", "conditions": [condition]}));
        world.settle().await;
        let condition = note(&world);
        assert_eq!(
            condition.as_ref().map(|(reason, _)| reason.as_str()),
            status.then_some(reason)
        );
        assert!(condition.is_none_or(|(_, message)| message.contains("enough capacity: cpu")));
    }
}

#[tokio::test]
async fn requests_set_by_another_writer_are_reported_and_not_overwritten() {
    let world = running().await;
    world.api.change(PODS, "vm", |pod| {
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "100m".into()
    });
    world.settle().await;
    assert_eq!(note(&world).unwrap().0, "Differs");
    assert_eq!(requests(&world).0, "100m");
}

#[tokio::test]
async fn resources_of_the_users_own_are_taken_as_they_are_and_followed() {
    let resources = json!({"limits": {"memory": "6Gi"}, "requests": {"cpu": "3", "memory": "5Gi"}});
    let spec = json!({"resources": resources, "vm": {"state": "Running", "currentCpus": 2, "maximumRam": "4Gi"}});
    let world = World::with_spec(spec);
    world.settle().await;
    let present = |world: &World| -> Value {
        world.api.get(PODS, "vm").unwrap()["spec"]["containers"][0]["resources"].clone()
    };
    assert_eq!(present(&world), resources);
    world.run();
    // A device cannot change while the pod exists.
    world.api.change(VMS, "vm", |vm| {
        vm["spec"]["resources"] =
            json!({"requests": {"cpu": "2", "memory": "5Gi"}, "limits": {"memory": "7Gi", "example.org/gpu": "1"}});
        vm["metadata"]["generation"] = 2.into();
    });
    world.settle().await;
    assert_eq!(
        present(&world),
        json!({"limits": {"memory": "7Gi"}, "requests": {"cpu": "2", "memory": "5Gi"}})
    );
}
