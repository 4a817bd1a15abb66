//! Reports of runners: their creation, and their copies in the VM's status.

use super::fake_api::{EVENTS, Fault, PODS, REPORTS, VMS, request_paths};
use super::world::{World, now, one_disk, pass, request};
use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};
use std::time::Duration;
use vm_operator::k8s::controller::Outcome;

/// UID of the VM's pod, which is the name of its report.
fn pod_uid(world: &World) -> String {
    let pod = world.api.get(PODS, "vm").unwrap();
    pod["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// The status of a report in that phase.
fn in_phase(reason: &str) -> Value {
    let is_running = reason != "RunnerStarted" && reason != "VmStopped";
    let condition = |type_: &str, is_true: bool| {
        let status = if is_true { "True" } else { "False" };
        json!({"type": type_, "status": status, "reason": reason, "message": "m", "lastTransitionTime": now()})
    };
    let others = ["VmopAgentConnected", "UserLoggedIn", "ConsoleConnected"];
    let conditions = [
        condition("Running", is_running),
        condition("Booted", reason == "VmBooted"),
    ];
    let others = others.map(|type_| condition(type_, false));
    let conditions: Vec<Value> = conditions.into_iter().chain(others).collect();
    json!({
        "cpus": 1, "ram": "1Gi", "runnerVersion": "1", "consoleClient": "", "displayPasswordSerial": 0, "boots": 0,
        "resets": 0, "consoleConnections": 0, "conditions": conditions,
    })
}

/// The runner of the pod with that UID reports.
fn report_of(world: &World, uid: &str, status: Value) {
    world
        .api
        .change(REPORTS, uid, |report| report["status"] = status);
    world.deliver();
}

fn report(world: &World, status: Value) {
    report_of(world, &pod_uid(world), status);
}

/// A VM with a running pod, before the first report.
async fn with_pod() -> World {
    let world = World::new(one_disk());
    world.settle().await;
    world.pod_status(json!({"phase": "Running", "podIP": "10.1.2.3"}));
    world.settle().await;
    world
}

/// The reasons of the events since the start of the world.
fn events(world: &World) -> Vec<String> {
    let mut events = world.api.list(EVENTS);
    events.sort_by_key(|event| {
        let version = event["metadata"]["resourceVersion"].as_str().unwrap();
        version.parse::<u64>().unwrap()
    });
    let reasons = events.iter().map(|event| event["reason"].as_str().unwrap());
    reasons.map(str::to_owned).collect()
}

fn status_write() -> String {
    request("PATCH", VMS, "vm/status")
}

fn cpus(world: &World) -> i64 {
    world.vm().status.unwrap().cpus
}

#[tokio::test]
async fn a_report_is_created_with_the_pod_and_belongs_to_it() {
    let world = with_pod().await;
    let uid = pod_uid(&world);
    let report = world.api.get(REPORTS, &uid).unwrap();
    let owner =
        json!({"apiVersion": "v1", "kind": "Pod", "name": "vm", "uid": uid, "controller": true});
    assert_eq!(report["metadata"]["ownerReferences"], json!([owner]));
    assert_eq!(report["spec"], json!({"vm": "vm"}));
    assert_eq!(report["status"], Value::Null);
}

#[tokio::test]
async fn a_missing_report_is_created_also_while_the_spec_is_invalid() {
    let world = with_pod().await;
    let uid = pod_uid(&world);
    for is_invalid in [false, true] {
        if is_invalid {
            world.edit(|machine| machine["maximumRam"] = "lots".into());
            world.settle().await;
        }
        world.api.remove(REPORTS, &uid).unwrap();
        world.deliver();
        assert_eq!(world.step().await, [request("POST", REPORTS, "POD")]);
        world.settle().await;
    }
}

#[tokio::test]
async fn a_failed_creation_of_a_report_is_retried() {
    for fault in [Fault::Refused(503), Fault::Refused(403), Fault::AnswerLost] {
        let world = with_pod().await;
        let uid = pod_uid(&world);
        world.api.remove(REPORTS, &uid).unwrap();
        world.deliver();
        world.api.fail(0, fault);
        assert!(world.reconcile().await.is_err(), "{fault:?}");
        world.settle().await;
        assert!(world.api.get(REPORTS, &uid).is_some(), "{fault:?}");
    }
}

#[tokio::test]
async fn a_pod_of_the_java_vm_operator_gets_no_report_and_its_status_stays_that_of_its_runner() {
    let world = with_pod().await;
    let uid = pod_uid(&world);
    world.api.change(PODS, "vm", |pod| {
        pod["spec"]["serviceAccountName"] = "vm-runner".into();
    });
    report(&world, in_phase("VmBooted"));
    world.settle().await;
    assert_eq!(cpus(&world), 0);
    world.run();
    world.settle().await;
    assert_eq!((cpus(&world), world.ready().0), (1, "Running".to_owned()));
    world.api.remove(REPORTS, &uid).unwrap();
    world.settle().await;
    assert_eq!(world.api.get(REPORTS, &uid), None);
}

#[tokio::test]
async fn a_start_is_one_write_with_ready_and_one_event() {
    let world = with_pod().await;
    report(&world, in_phase("VmStarted"));
    assert_eq!(world.step().await, [status_write()]);
    assert_eq!((cpus(&world), world.ready().0), (1, "Running".to_owned()));
    let status = world.vm().status.unwrap();
    assert_eq!(status.pod_ip.as_deref(), Some("10.1.2.3"));
    assert_eq!(world.step().await, [""; 0]);
    let started: Vec<_> = events(&world).into_iter().skip(1).collect();
    assert_eq!(started, ["VmStarted"]);
}

#[tokio::test]
async fn a_runner_that_reports_a_hundred_times_a_second_causes_one_write_a_second() {
    let world = with_pod().await;
    let mut writes = 0;
    for n in 1..=300_i64 {
        let mut status = in_phase("VmStarted");
        status["cpus"] = n.into();
        report(&world, status);
        writes += world.step().await.len();
        if n % 100 == 0 {
            assert_eq!(writes as i64, n / 100);
            pass(1);
        }
    }
    assert_eq!(cpus(&world), 201);
    // The newest report is not lost.
    assert_eq!(world.step().await, [status_write()]);
    assert_eq!(cpus(&world), 300);
}

#[tokio::test]
async fn a_report_that_comes_too_early_is_copied_when_it_is_due() {
    let world = with_pod().await;
    report(&world, in_phase("VmStarted"));
    world.step().await;
    report(&world, in_phase("VmBooted"));
    assert_eq!(
        world.reconcile().await.unwrap(),
        Outcome::Recheck(Duration::from_secs(1))
    );
    let mut ballooned = in_phase("VmStarted");
    ballooned["ram"] = "700Mi".into();
    report(&world, ballooned);
    assert_eq!(
        world.reconcile().await.unwrap(),
        Outcome::Recheck(Duration::from_secs(15))
    );
    assert_eq!(world.api.requests(), [""; 0]);
    pass(15);
    assert_eq!(world.step().await, [status_write()]);
    assert_eq!(world.vm().status.unwrap().ram, "700Mi");
}

#[tokio::test]
async fn the_report_of_a_pod_that_was_deleted_by_force_is_ignored() {
    let world = with_pod().await;
    let old = pod_uid(&world);
    report(&world, in_phase("VmBooted"));
    world.settle().await;
    world.remove_pod();
    world.settle().await;
    pass(10);
    world.settle().await;
    assert_ne!(pod_uid(&world), old, "there is a new pod");
    world.pod_status(json!({"phase": "Running"}));
    pass(10);
    // The old runner still runs and reports.
    report_of(&world, &old, in_phase("VmBooted"));
    world.settle().await;
    assert_eq!((cpus(&world), world.ready().0), (0, "Starting".to_owned()));
    report(&world, in_phase("VmStarted"));
    world.settle().await;
    assert_eq!((cpus(&world), world.ready().0), (1, "Running".to_owned()));
}

#[tokio::test]
async fn an_operator_that_was_away_for_an_hour_copies_once_with_the_times_of_the_runner() {
    let mut world = with_pod().await;
    let started = now();
    let mut status = in_phase("VmBooted");
    (
        status["boots"],
        status["resets"],
        status["consoleConnections"],
    ) = (9.into(), 8.into(), 7.into());
    pass(3600);
    world.restart_operator();
    report(&world, status);
    assert_eq!(world.step().await, [status_write()]);
    let running = world.vm().status.unwrap().conditions;
    let running = running.iter().find(|c| c.type_ == "Running").unwrap();
    assert_eq!(running.last_transition_time.0, started);
    let before = events(&world);
    assert_eq!(
        before[1..],
        ["VmStarted", "VmBooted", "ConsoleConnected", "Running"]
    );
    // Another restart repeats neither write nor event.
    world.restart_operator();
    pass(10);
    assert_eq!(request_paths(&world.api), [""; 0]);
    world.step().await;
    assert_eq!(request_paths(&world.api), [""; 0]);
    assert_eq!(events(&world), before);
}

#[tokio::test]
async fn a_lost_answer_to_a_copy_repeats_no_event() {
    let world = with_pod().await;
    report(&world, in_phase("VmStarted"));
    world.api.fail(0, Fault::AnswerLost);
    assert!(world.reconcile().await.is_err());
    pass(10);
    world.settle().await;
    assert_eq!(world.ready().0, "Running");
    let started = events(&world);
    let started = started.iter().filter(|reason| *reason == "VmStarted");
    assert!(started.count() <= 1);
}

#[tokio::test]
async fn a_report_is_copied_although_another_object_cannot_be_written() {
    let world = with_pod().await;
    world
        .api
        .remove(super::fake_api::CONFIG_MAPS, "vm")
        .unwrap();
    report(&world, in_phase("VmBooted"));
    let is_creation = format!("POST {}", super::fake_api::CONFIG_MAPS);
    world.api.reject_creation(Some((&is_creation, 503, "away")));
    assert!(world.reconcile().await.is_err());
    assert_eq!(cpus(&world), 1);
}

#[tokio::test]
async fn the_condition_ready_is_never_lost_by_a_copy() {
    let world = with_pod().await;
    for phase in ["RunnerStarted", "VmStarted", "VmBooted", "VmTerminating"] {
        report(&world, in_phase(phase));
        pass(2);
        world.settle().await;
        let running = phase != "RunnerStarted";
        let ready = if running { "Running" } else { "Starting" };
        assert_eq!(world.ready().0, ready, "{phase}");
    }
    world.end(super::world::CRASHED, 5);
    world.settle().await;
    assert_eq!(world.ready().0, "RestartBackoff");
    assert_eq!(cpus(&world), 0);
    pass(60);
    world.settle().await;
    world.remove_pod();
    world.settle().await;
    // The cause of the exit remains until the VM runs.
    assert_eq!(world.ready().0, "RestartBackoff");
}

#[tokio::test]
async fn the_clock_of_a_node_that_is_ahead_causes_one_copy() {
    let world = with_pod().await;
    let mut status = in_phase("VmStarted");
    let ahead = now().checked_add(SignedDuration::from_hours(1)).unwrap();
    status["conditions"][0]["lastTransitionTime"] = json!(ahead);
    report(&world, status);
    assert_eq!(world.step().await, [status_write()]);
    let running = world.vm().status.unwrap().conditions;
    let running = running.iter().find(|c| c.type_ == "Running").unwrap();
    assert_eq!(running.last_transition_time.0, now());
    pass(100);
    assert_eq!(world.step().await, [""; 0]);
}
