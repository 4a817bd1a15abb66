//! A change of a running VM is announced until the runner confirms it.

use super::fake_api::{CONFIG_MAPS, PODS, SECRETS, VMS};
use super::world::{World, one_disk, pass, request, set_clock};
use serde_json::Value;
use std::time::Duration;
use vm_operator::operator::controller::Outcome;

/// The runner tells that it has followed that generation.
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

/// After each of these pauses, in seconds, the pod is changed, and never after the last.
async fn announced_again_after(world: &mut World, pauses: &[u64]) {
    for pause in pauses {
        world.deliver();
        // Neither before its time nor twice, whichever operator it is.
        world.restart_operator();
        let outcome = world.reconcile().await.unwrap();
        assert_eq!(recheck(&outcome), Some(Duration::from_secs(*pause)));
        assert_eq!(world.api.requests(), [""; 0]);
        pass(i64::try_from(*pause).unwrap());
        assert_eq!(world.step().await, [request("PATCH", PODS, "vm")], "after {pause} s");
    }
    world.deliver();
    pass(1000);
    assert_eq!(world.reconcile().await.unwrap(), Outcome::Done);
    assert_eq!(world.api.requests(), [""; 0]);
}

#[tokio::test]
async fn a_change_that_is_not_confirmed_is_announced_again_after_growing_pauses_and_not_for_ever() {
    let mut world = running().await;
    world.edit(|machine| machine["powerdownTimeout"] = 30.into());
    let outcome = world.reconcile().await.unwrap();
    assert_eq!(recheck(&outcome), Some(Duration::from_secs(1)));
    assert!(world.api.requests().contains(&request("PATCH", CONFIG_MAPS, "vm")));
    announced_again_after(&mut world, &[1, 2, 4, 8, 16, 32, 60, 60]).await;
    // The next change is announced anew.
    world.edit(|machine| machine["powerdownTimeout"] = 40.into());
    assert_eq!(recheck(&world.reconcile().await.unwrap()), Some(Duration::from_secs(1)));
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
async fn what_nothing_confirms_is_announced_twice_more() {
    let mut world = running().await;
    world.api.change(SECRETS, "vm-display-secret", |secret| secret["metadata"]["resourceVersion"] = "700".into());
    world.deliver();
    assert_eq!(world.step().await, [request("PATCH", PODS, "vm")]);
    announced_again_after(&mut world, &[1, 2]).await;
}

#[tokio::test]
async fn a_runner_that_tells_nothing_is_not_waited_for() {
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

#[tokio::test]
async fn a_clock_that_was_ahead_and_is_set_right_does_not_put_off_the_next_announcement() {
    let mut world = running().await;
    world.edit(|machine| machine["powerdownTimeout"] = 30.into());
    world.settle().await;
    set_clock(-3600);
    world.restart_operator();
    assert_eq!(world.step().await, [request("PATCH", PODS, "vm")]);
    announced_again_after(&mut world, &[2, 4, 8, 16, 32, 60, 60]).await;
}
