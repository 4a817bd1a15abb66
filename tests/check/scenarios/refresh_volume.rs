//! A change of a running VM makes the kubelet refresh its volumes, and once more if the runner does not confirm it.

use super::fake_api::{CONFIG_MAPS, PODS, SECRETS, VMS};
use super::world::{World, one_disk, pass, request};
use serde_json::Value;
use std::time::Duration;
use vm_operator::k8s::controller::Outcome;

/// The runner confirms that generation.
fn confirm(world: &World, generation: i64) {
    world.api.change(VMS, "vm", |vm| {
        let conditions = vm["status"]["conditions"].as_array_mut().unwrap();
        conditions.retain(|condition| condition["type"] != "ConfigInSync");
        conditions.push(serde_json::json!({
            "type": "ConfigInSync", "status": "True", "reason": "Applied", "message": "",
            "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z",
        }));
    });
}

async fn running() -> World {
    let world = World::new(one_disk());
    world.settle().await;
    world.run();
    confirm(&world, 1);
    world.settle().await;
    world
}

fn recheck(outcome: &Outcome) -> Option<Duration> {
    match outcome {
        Outcome::Recheck(after) => Some(*after),
        _ => None,
    }
}

/// The pod is changed once more after 5 s by any operator, and never after that.
async fn expect_second_refresh(world: &mut World) {
    world.deliver();
    world.restart_operator();
    assert_eq!(
        recheck(&world.reconcile().await.unwrap()),
        Some(Duration::from_secs(5))
    );
    assert_eq!(world.api.requests(), [""; 0]);
    pass(5);
    assert_eq!(world.step().await, [request("PATCH", PODS, "vm")]);
    world.deliver();
    pass(1000);
    assert_eq!(world.reconcile().await.unwrap(), Outcome::Done);
    assert_eq!(world.api.requests(), [""; 0]);
}

#[tokio::test]
async fn unconfirmed_change_is_announced_once_more() {
    let mut world = running().await;
    world.edit(|machine| machine["powerdownTimeout"] = 30.into());
    assert_eq!(
        recheck(&world.reconcile().await.unwrap()),
        Some(Duration::from_secs(5))
    );
    assert!(
        world
            .api
            .requests()
            .contains(&request("PATCH", CONFIG_MAPS, "vm"))
    );
    expect_second_refresh(&mut world).await;
    world.edit(|machine| machine["powerdownTimeout"] = 40.into());
    assert_eq!(
        recheck(&world.reconcile().await.unwrap()),
        Some(Duration::from_secs(5))
    );
}

#[tokio::test]
async fn a_change_that_is_confirmed_is_announced_once() {
    let world = running().await;
    world.edit(|machine| machine["powerdownTimeout"] = 30.into());
    let generation = world.vm().metadata.generation.unwrap();
    world.step().await;
    world.deliver();
    confirm(&world, generation);
    pass(600);
    assert_eq!(world.reconcile().await.unwrap(), Outcome::Done);
    assert_eq!(world.api.requests(), [""; 0]);
}

#[tokio::test]
async fn new_password_is_announced_once_more() {
    let mut world = running().await;
    world.api.change(SECRETS, "vm-display-secret", |secret| {
        secret["metadata"]["resourceVersion"] = "700".into()
    });
    world.deliver();
    // The watch reports nothing new of the pod that the operator has changed itself.
    assert_eq!(
        world.reconcile().await.unwrap(),
        Outcome::Recheck(Duration::from_secs(5))
    );
    assert_eq!(world.api.requests(), [request("PATCH", PODS, "vm")]);
    expect_second_refresh(&mut world).await;
}

#[tokio::test]
async fn runner_without_reports_triggers_no_kubelet_refresh() {
    let world = World::new(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    world.edit(|machine| machine["powerdownTimeout"] = 30.into());
    assert_eq!(world.reconcile().await.unwrap(), Outcome::Done);
    world.deliver();
    let annotations = world.api.get(PODS, "vm").unwrap()["metadata"]["annotations"].clone();
    assert_eq!(annotations["vmoperator.jdrupes.org/poked"], Value::Null);
}
