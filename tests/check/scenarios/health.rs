//! The health of a VM by the rules of kstatus (Flux, Argo CD) and `kubectl wait`.

use super::fake_api::{Fault, PODS, VMS};
use super::world::{World, now, one_disk};
use serde_json::{Value, json};

#[derive(Debug, PartialEq)]
enum Health {
    InProgress,
    Current,
}

/// kstatus for unknown kinds: a status of an older generation is ignored, then `Ready` counts.
fn health(vm: &Value) -> Health {
    let observed = &vm["status"]["observedGeneration"];
    if !observed.is_null() && *observed != vm["metadata"]["generation"] {
        return Health::InProgress;
    }
    match ready(vm) {
        Some(ready) if ready["status"] != "True" => Health::InProgress,
        _ => Health::Current,
    }
}

fn ready(vm: &Value) -> Option<&Value> {
    vm["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == "Ready")
}

/// `kubectl wait --for=condition=Ready`.
fn is_waited_for(vm: &Value) -> bool {
    ready(vm).is_some_and(|ready| {
        let of = &ready["observedGeneration"];
        ready["status"] == "True"
            && (of.is_null() || of.as_i64() >= vm["metadata"]["generation"].as_i64())
    })
}

fn seen(world: &World) -> (Health, bool) {
    let vm = world.api.get(VMS, "vm").unwrap();
    (health(&vm), is_waited_for(&vm))
}

const NOT_YET: (Health, bool) = (Health::InProgress, false);
const DONE: (Health, bool) = (Health::Current, true);

#[test]
fn a_vm_is_not_taken_for_healthy_before_the_operator_has_seen_it() {
    // A new VM with the defaults of the definition.
    let status =
        serde_json::to_value(vm_operator::api::vm::VirtualMachineStatus::default()).unwrap();
    let vm = json!({"metadata": {"generation": 1}, "status": status});
    assert_eq!((health(&vm), is_waited_for(&vm)), NOT_YET);
}

#[tokio::test]
async fn health_follows_the_vm_and_is_never_that_of_an_older_spec() {
    let world = World::new(one_disk());
    world.settle().await;
    assert_eq!(seen(&world), NOT_YET);
    world.run();
    world.settle().await;
    assert_eq!(seen(&world), DONE);

    world.edit(|machine| machine["maximumRam"] = "2Gi".into());
    assert_eq!(seen(&world), NOT_YET, "no reconcile of the new spec yet");
    world.settle().await;
    assert_eq!(seen(&world), DONE);

    // While the API server is unavailable, the status makes no claim about the new spec.
    world.edit(|machine| machine["maximumRam"] = "3Gi".into());
    world.api.fail(0, Fault::Refused(503));
    assert!(world.reconcile().await.is_err());
    assert_eq!(seen(&world), NOT_YET);
    world.settle().await;

    world.edit(|machine| machine["maximumRam"] = "lots".into());
    world.settle().await;
    assert_eq!(seen(&world), NOT_YET);
    let vm = world.api.get(VMS, "vm").unwrap();
    let ready = ready(&vm).unwrap();
    assert_eq!(
        (&ready["reason"], &ready["observedGeneration"]),
        (&json!("InvalidSpec"), &vm["metadata"]["generation"])
    );

    world.edit(|machine| {
        machine["maximumRam"] = "3Gi".into();
        machine["state"] = "Stopped".into();
    });
    world.settle().await;
    assert_eq!(seen(&world), NOT_YET);
    world.api.remove(PODS, "vm");
    world.settle().await;
    assert_eq!(seen(&world), DONE);
}

#[tokio::test]
async fn a_crash_is_unhealthy_until_the_vm_runs_again() {
    let world = World::new(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    world.end(super::world::CRASHED, 5);
    world.settle().await;
    assert_eq!(seen(&world), NOT_YET);
    let vm = world.api.get(VMS, "vm").unwrap();
    assert_eq!(ready(&vm).unwrap()["lastTransitionTime"], json!(now()));
}
