//! A VM that ends again and again: `Ready` retains the cause during all starts, and a change of the spec starts the VM at once.

use super::fake_api::{EVENTS, PODS, VMS};
use super::world::{CRASHED, World, now, one_disk, pass};
use serde_json::json;
use std::time::Duration;
use vm_operator::k8s::controller::Outcome;

/// Lets the VM run and crash that often in a row, each time at the end of the backoff. The last pod exists.
async fn crash(world: &World, times: u32) {
    for attempt in 1..=times {
        if attempt > 1 {
            pass(300);
            world.settle().await;
            world.remove_pod();
            world.settle().await;
        }
        world.end(CRASHED, 5);
        world.settle().await;
    }
}

/// The pod runs, and its runner reports it in place of the previous runner's report.
fn run(world: &World) {
    world.run();
    world.api.change(VMS, "vm", |vm| {
        let conditions = vm["status"]["conditions"].as_array_mut().unwrap();
        conditions.last_mut().unwrap()["lastTransitionTime"] = json!(now());
    });
}

fn has_cause(world: &World, text: &str) {
    let (reason, message) = world.ready();
    assert_eq!(reason, "RestartBackoff", "{message}");
    for text in [text, "QemuCrashed: signal 9"] {
        assert!(message.contains(text), "{message}");
    }
}

#[tokio::test]
async fn cause_of_a_crash_loop_is_retained_during_each_start() {
    let mut world = World::new(one_disk());
    world.settle().await;
    for attempt in 1..=3 {
        run(&world);
        world.settle().await;
        assert_eq!(world.ready().0, "Running");
        world.end(CRASHED, 5);
        world.settle().await;
        let in_progress =
            format!("starts it again as pod \"vm\" (consecutive restarts: {attempt})");
        has_cause(&world, &format!(" s (consecutive restarts: {attempt})"));
        pass(300);
        world.step().await;
        has_cause(&world, &in_progress);
        // The pod has exited, and its deletion takes a moment.
        world.settle().await;
        has_cause(&world, &in_progress);
        world.restart_operator();
        world.settle().await;
        has_cause(&world, &in_progress);
        world.remove_pod();
        world.settle().await;
        assert!(world.api.get(PODS, "vm").is_some());
        has_cause(&world, &in_progress);
    }
    let crashes = world.api.list(EVENTS).into_iter();
    let crashes = crashes.filter(|event| event["reason"] == "RestartBackoff");
    assert_eq!(crashes.count(), 3);
}

#[tokio::test]
async fn corrected_field_starts_a_vm_in_a_crash_loop_at_once() {
    let world = World::new(one_disk());
    world.settle().await;
    crash(&world, 6).await;
    pass(1);
    world.settle().await;
    has_cause(&world, "after 32 s (consecutive restarts: 6)");
    let before = now();
    world.edit(|machine| machine["cpuModel"] = "max".into());
    world.settle().await;
    assert_eq!(world.ready().0, "Starting");
    world.remove_pod();
    world.settle().await;
    assert!(world.api.get(PODS, "vm").is_some());
    assert_eq!(now(), before);
    assert_eq!(world.vm().status.unwrap().restarts, None);
    // A new row of exits begins.
    world.end(CRASHED, 5);
    world.settle().await;
    has_cause(&world, "after 1 s (consecutive restarts: 1)");
}

#[tokio::test]
async fn running_vm_retains_the_cause_while_its_exits_are_counted() {
    let mut world = World::new(one_disk());
    world.settle().await;
    crash(&world, 2).await;
    pass(300);
    world.settle().await;
    world.remove_pod();
    world.settle().await;
    run(&world);
    world.settle().await;
    let with_cause =
        "the VM is running; consecutive restarts: 2; cause of the last stop: QemuCrashed: signal 9";
    let running = |message: &str| ("Running".to_owned(), message.to_owned());
    assert_eq!(world.ready(), running(with_cause));
    pass(599);
    world.restart_operator();
    world.settle().await;
    assert_eq!(world.ready(), running(with_cause));
    let recheck = world.reconcile().await.unwrap();
    assert_eq!(recheck, Outcome::Recheck(Duration::from_secs(1)));
    // After ten minutes the next exit begins a new row.
    pass(1);
    world.settle().await;
    assert_eq!(world.ready(), running("the VM is running"));
    assert_eq!(world.vm().status.unwrap().restarts.unwrap().attempts, 2);
}

#[tokio::test]
async fn requested_restart_does_not_name_an_earlier_exit() {
    let world = World::new(one_disk());
    world.settle().await;
    crash(&world, 1).await;
    pass(300);
    world.settle().await;
    world.remove_pod();
    world.settle().await;
    run(&world);
    pass(3600);
    world.settle().await;
    world.edit(|machine| machine["restartRequest"] = 1.into());
    world.settle().await;
    assert_eq!(world.ready().0, "Stopping");
    world.remove_pod();
    world.settle().await;
    let (reason, message) = world.ready();
    assert_eq!(reason, "Starting");
    assert!(!message.contains("QemuCrashed"), "{message}");
}
