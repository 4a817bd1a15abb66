//! Where the time of a start went: what is handed in of it, and what a collector gets.

use super::fake_api::VMS;
use super::world::{World, context, now, one_disk, pass};
use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::post;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use vm_operator::operator::settings::Settings;
use vm_operator::operator::trace::export::{self, Receiver};
use vm_operator::operator::trace::{Cause, Trace};

/// Nobody is there; it is enough that one is named.
const NOBODY: &str = "http://127.0.0.1:9";

fn settings(endpoint: &str) -> Settings {
    let text = format!("/Manager: {{/Controller: {{/Reconciler: {{openTelemetry: {{endpoint: \"{endpoint}\"}}}}}}}}");
    Settings::parse(&text, "f").unwrap().0
}

fn traced(machine: Value) -> (World, Receiver) {
    let mut world = World::new(machine);
    let (traces, handed_in) = export::channel();
    world.ctx.traces = Some(traces);
    world.ctx.set_settings(settings(NOBODY));
    (world, handed_in)
}

/// The runner says that the guest is there, in its conditions.
fn runner_says(world: &World, type_: &str, times: &str) {
    world.api.change(VMS, "vm", |vm| {
        let conditions = vm["status"]["conditions"].as_array_mut().unwrap();
        conditions.retain(|condition| condition["type"] != type_ && condition["type"] != "Running");
        for type_ in [type_, "Running"] {
            let message = format!("said; ms from the runner's start: {times}");
            conditions.push(json!({
                "type": type_, "status": "True", "reason": "Said", "message": message, "lastTransitionTime": now(),
            }));
        }
    });
}

fn seconds(trace: &Trace) -> Vec<(&'static str, f64)> {
    trace.steps.iter().map(|step| (step.name, step.millis() / 1000.0)).collect()
}

#[tokio::test]
async fn a_start_is_told_from_the_change_to_the_booted_guest() {
    let (world, mut traces) = traced(one_disk());
    world.api.change(VMS, "vm", |vm| vm["metadata"]["creationTimestamp"] = json!(now()));
    pass(5);
    world.ctx.saw(&world.vm());
    pass(2);
    world.settle().await;
    pass(3);
    world.pod_status(json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}));
    world.settle().await;
    pass(10);
    let scheduled = json!([{"type": "PodScheduled", "status": "True"}]);
    world.pod_status(json!({"phase": "Running", "conditions": scheduled}));
    runner_says(&world, "Running", "QEMU 500, monitor 1500, guest 2000");
    world.settle().await;
    let trace = traces.try_recv().unwrap();
    assert_eq!((trace.vm.as_str(), trace.cause, trace.unseen), ("vm", Some(Cause::Created), Some(5)));
    assert_eq!(
        seconds(&trace),
        [
            ("queue", 2.0),
            ("objects", 0.0),
            ("pod", 0.0),
            ("schedule", 3.0),
            ("container", 8.0),
            ("qemu", 0.5),
            ("monitor", 1.0),
            ("guest", 0.5),
        ]
    );
    let kinds: Vec<&str> = trace.objects.iter().map(|part| part.name).collect();
    assert_eq!(kinds, ["config_map", "secret", "claims"]);
    let pod_uid = world.api.get(super::fake_api::PODS, "vm").unwrap()["metadata"]["uid"].clone();
    assert_eq!(trace.pod_uid, pod_uid);

    pass(20);
    runner_says(&world, "Booted", "QEMU 500, monitor 1500, guest 2000, boot 9000");
    world.settle().await;
    let booted = traces.try_recv().unwrap();
    assert_eq!((booted.pod_uid, booted.cause, booted.steps[0].millis()), (trace.pod_uid, None, 7000.0));
    pass(1);
    world.settle().await;
    assert!(traces.try_recv().is_err(), "it is told once");
}

#[tokio::test]
async fn a_vm_that_is_stopped_and_started_is_told_from_the_second_change_on() {
    let (world, mut traces) = traced(json!({"state": "Stopped"}));
    world.ctx.saw(&world.vm());
    world.settle().await;
    pass(100);
    world.edit(|machine| machine["state"] = "Running".into());
    world.ctx.saw(&world.vm());
    pass(4);
    world.settle().await;
    pass(5);
    world.pod_status(json!({"phase": "Running"}));
    runner_says(&world, "Running", "");
    world.settle().await;
    let trace = traces.try_recv().unwrap();
    assert_eq!((trace.cause, seconds(&trace)[0]), (Some(Cause::Changed), ("queue", 4.0)));
    assert_eq!(*seconds(&trace).last().unwrap(), ("container", 5.0), "all of it, where the runner tells no times");
}

#[tokio::test]
async fn an_operator_without_a_collector_and_one_that_finds_a_vm_running_hand_in_nothing() {
    let (mut world, mut traces) = traced(one_disk());
    world.ctx.set_settings(Settings::default());
    world.settle().await;
    world.run();
    world.settle().await;
    assert!(traces.try_recv().is_err());
    world.restart_operator();
    let (sender, mut traces) = export::channel();
    world.ctx.traces = Some(sender);
    world.ctx.set_settings(settings(NOBODY));
    world.ctx.saw(&world.vm());
    world.settle().await;
    assert!(traces.try_recv().is_err(), "it has seen no start");
}

/// A collector that answers with that status, and what it is sent.
async fn collector(status: Arc<AtomicU16>) -> (String, mpsc::UnboundedReceiver<Value>) {
    let (told, requests) = mpsc::unbounded_channel();
    let take = move |body: Bytes| async move {
        told.send(serde_json::from_slice(&body).unwrap()).unwrap();
        StatusCode::from_u16(status.load(Ordering::Relaxed)).unwrap()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().route("/v1/traces", post(take));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, requests)
}

fn names(request: &Value) -> Vec<&str> {
    let spans = request["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
    spans.iter().map(|span| span["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_collector_gets_each_trace_and_one_that_refuses_keeps_nobody_from_going_on() {
    let status = Arc::new(AtomicU16::new(200));
    let (endpoint, mut requests) = collector(status.clone()).await;
    let mut world = World::new(one_disk());
    let (traces, handed_in) = export::channel();
    world.ctx.traces = Some(traces.clone());
    world.ctx.set_settings(settings(&endpoint));
    let sending = context(&world.api);
    sending.set_settings(settings(&endpoint));
    tokio::spawn(export::forever(Arc::new(sending), handed_in));
    world.settle().await;
    world.run();
    world.settle().await;
    let mut next = async || tokio::time::timeout(Duration::from_secs(10), requests.recv()).await.unwrap().unwrap();
    let request = next().await;
    let expected = ["start", "queue", "objects", "pod", "container", "config_map", "secret", "claims"];
    assert_eq!(names(&request), expected);
    let attributes = &request["resourceSpans"][0]["resource"]["attributes"];
    assert_eq!(attributes[0], json!({"key": "service.name", "value": {"stringValue": "vm-operator"}}));

    let again = |vm: &str| Trace {
        vm: vm.to_owned(),
        pod_uid: vm.to_owned(),
        cause: None,
        unseen: None,
        steps: Vec::new(),
        objects: Vec::new(),
    };
    status.store(503, Ordering::Relaxed);
    traces.send(again("lost")).await.unwrap();
    next().await;
    status.store(200, Ordering::Relaxed);
    traces.send(again("kept")).await.unwrap();
    assert_eq!(names(&next().await), [""; 0]);
}
