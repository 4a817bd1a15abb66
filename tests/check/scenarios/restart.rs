//! Restarts: requested, carried out once, and required.

use super::fake_api::{Fault, PODS, VMS};
use super::world::{CRASHED, World, one_disk, request};
use serde_json::{Value, json};

async fn running() -> World {
    let world = World::new(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    world
}

fn uid(world: &World) -> Option<Value> {
    world
        .api
        .get(PODS, "vm")
        .map(|pod| pod["metadata"]["uid"].clone())
}

fn required(world: &World) -> Option<String> {
    let conditions = world.vm().status.unwrap().conditions;
    let condition = conditions
        .into_iter()
        .find(|c| c.type_ == "RestartRequired")?;
    assert_eq!(condition.status, "True");
    Some(condition.message)
}

#[tokio::test]
async fn a_restart_that_is_asked_for_is_carried_out_once() {
    let mut world = running().await;
    let first = uid(&world);
    world.edit(|machine| machine["restartRequest"] = 1.into());
    let requests = world.step().await;
    assert!(
        requests.contains(&request("DELETE", PODS, "vm")),
        "{requests:?}"
    );
    assert_eq!(world.vm().status.unwrap().observed_restart_request, None);
    world.settle().await;
    world.api.remove(PODS, "vm");
    world.settle().await;
    let second = uid(&world);
    assert!(second.is_some() && second != first);
    assert_eq!(world.vm().status.unwrap().observed_restart_request, Some(1));
    world.run();
    world.settle().await;
    world.restart_operator();
    assert_eq!(world.step().await, [""; 0]);
    assert_eq!(uid(&world), second);
}

#[tokio::test]
async fn a_restart_is_carried_out_once_whichever_request_fails_and_though_the_operator_restarts() {
    for fault in [Fault::Refused(500), Fault::Refused(409), Fault::AnswerLost] {
        for k in 0.. {
            let mut world = running().await;
            world.edit(|machine| machine["restartRequest"] = 1.into());
            world.api.fail(k, fault);
            let mut pods = std::collections::BTreeSet::new();
            for _ in 0..12 {
                world.deliver();
                let _ = world.reconcile().await;
                world.restart_operator();
                pods.extend(uid(&world).map(|uid| uid.to_string()));
                // The kubelet stops a deleted pod.
                if world
                    .api
                    .get(PODS, "vm")
                    .is_some_and(|pod| !pod["metadata"]["deletionTimestamp"].is_null())
                {
                    world.api.remove(PODS, "vm");
                }
            }
            assert_eq!(pods.len(), 2, "{fault:?} at {k}");
            assert_eq!(world.vm().status.unwrap().observed_restart_request, Some(1));
            if world.api.fault_is_due() {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_restart_that_is_asked_for_does_not_wait_for_the_pause_after_a_crash() {
    let world = running().await;
    for _ in 0..5 {
        world.end(CRASHED, 5);
        world.settle().await;
        super::world::pass(400);
        world.settle().await;
        world.api.remove(PODS, "vm");
        world.settle().await;
    }
    world.end(CRASHED, 5);
    world.settle().await;
    assert_eq!(world.ready().0, "RestartBackoff");
    world.edit(|machine| machine["restartRequest"] = 7.into());
    world.settle().await;
    world.api.remove(PODS, "vm");
    world.settle().await;
    assert_eq!(world.ready().0, "Starting");
    assert_eq!(world.vm().status.unwrap().observed_restart_request, Some(7));
}

#[tokio::test]
async fn a_restart_of_a_stopped_vm_is_its_next_start() {
    let mut machine = one_disk();
    machine["state"] = "Stopped".into();
    let world = World::new(machine);
    world.edit(|machine| machine["restartRequest"] = 2.into());
    world.settle().await;
    assert_eq!(world.vm().status.unwrap().observed_restart_request, Some(2));
    world.edit(|machine| machine["state"] = "Running".into());
    world.settle().await;
    world.run();
    world.settle().await;
    assert_eq!(world.ready().0, "Running");
}

#[tokio::test]
async fn an_unusable_spec_is_no_reason_to_end_a_vm_that_runs() {
    let world = running().await;
    world.edit(|machine| {
        machine["restartRequest"] = 1.into();
        machine["maximumRam"] = "lots".into();
    });
    world.settle().await;
    assert_eq!(
        world.api.get(PODS, "vm").unwrap()["metadata"]["deletionTimestamp"],
        Value::Null
    );
}

#[tokio::test]
async fn changes_that_need_a_restart_are_named_and_applied_at_restart() {
    let world = running().await;
    world.api.change(PODS, "vm", |pod| {
        pod["spec"]["terminationGracePeriodSeconds"] = 915.into()
    });
    world.edit(|machine| {
        machine["maximumRam"] = "4Gi".into();
        machine["firmware"] = "bios".into();
        machine["powerdownTimeout"] = 1000.into();
    });
    world.settle().await;
    let message = required(&world).unwrap();
    for field in [
        "spec.vm.maximumRam",
        "spec.vm.firmware",
        "spec.vm.powerdownTimeout (a node drain",
    ] {
        assert!(message.contains(field), "{message}");
    }
    assert!(
        !message.contains("spec.vm.cpuModel") && world.api.get(PODS, "vm").is_some(),
        "{message}"
    );
    assert_eq!(world.ready().0, "Running");
    world.edit(|machine| machine["restartRequest"] = 1.into());
    world.settle().await;
    world.api.remove(PODS, "vm");
    world.settle().await;
    assert_eq!(required(&world), None);
}

#[tokio::test]
async fn live_changes_and_equivalent_values_need_no_restart() {
    let world = running().await;
    world.edit(|machine| {
        machine["maximumRam"] = "1000M".into();
        machine["currentCpus"] = 1.into();
        machine["currentRam"] = "512Mi".into();
        machine["powerdownTimeout"] = 30.into();
        machine["resetRequest"] = 4.into();
        machine["display"] = json!({"loggedInUser": "me", "spice": {"server": "example.org"}});
    });
    world.settle().await;
    assert_eq!(required(&world), None);
    // Neither a pod of the Java VM-Operator nor one of another version, which knows other fields.
    for annotation in [
        Value::Null,
        json!("{}"),
        json!("{\"spec.vm.unheardOf\":\"00\"}"),
    ] {
        world.api.change(PODS, "vm", |pod| {
            pod["metadata"]["annotations"]["vmoperator.jdrupes.org/started-with"] =
                annotation.clone();
            if annotation.is_null() {
                let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
                annotations.remove("vmoperator.jdrupes.org/started-with");
            }
        });
        world.settle().await;
        assert_eq!(required(&world), None, "{annotation}");
    }
}

#[tokio::test]
async fn a_cd_that_is_changed_needs_no_restart_and_another_drive_does() {
    let world = World::new(json!({"state": "Running", "disks": [{"cdrom": {"image": ""}}]}));
    world.settle().await;
    world.run();
    world.settle().await;
    world.edit(|machine| machine["disks"][0]["cdrom"]["image"] = "a.iso".into());
    world.settle().await;
    assert_eq!(required(&world), None);
    world.edit(|machine| {
        machine["disks"]
            .as_array_mut()
            .unwrap()
            .push(json!({"cdrom": {"image": ""}}))
    });
    world.settle().await;
    assert!(required(&world).unwrap().contains("spec.vm.disks"));
    assert_eq!(world.api.list(VMS).len(), 1);
}
