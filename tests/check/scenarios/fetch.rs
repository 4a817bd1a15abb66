//! CD images by URL: downloaded once for all VMs, and inserted when they exist.

mod drives;
mod pods;

use super::fake_api::{CLAIMS, CONFIG_MAPS, EVENTS, PODS, VMS};
use super::world::{World, now, pass, pod_and_status, request};
use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use vm_operator::api::VirtualMachine;
use vm_operator::api::runner::fetch;
use vm_operator::controllers::vm::fetch::sweep::sweep;
use vm_operator::controllers::vm::reconcile;
use vm_operator::settings::Settings;

pub const URL: &str = "https://example.org/debian.iso";
const OTHER: &str = "https://example.org/drivers.iso";
const CLAIM: &str = "vmop-image-repository";
pub const FETCHED: &str = r#"{"reason":"Fetched","bytes":4096}"#;

pub fn pod_of(url: &str) -> String {
    fetch::pod_name(url, None)
}

pub fn path_of(url: &str) -> String {
    format!(
        "/var/local/vmop-image-repository/{}",
        fetch::file_name(url, None)
    )
}

/// A VM that boots from the CD.
pub fn boots_from(url: &str) -> Value {
    json!({"state": "Running", "disks": [
        {"volumeClaimTemplate": {"metadata": {"name": "system"}}, "bootindex": 1},
        {"cdrom": {"image": url}, "bootindex": 0},
    ]})
}

/// A VM with another boot device.
pub fn has_besides(url: &str) -> Value {
    json!({"state": "Running", "disks": [
        {"volumeClaimTemplate": {"metadata": {"name": "system"}}, "bootindex": 0}, {"cdrom": {"image": url}},
    ]})
}

fn fetch_runs(world: &World, url: &str, log: &str) {
    world.api.change(PODS, &pod_of(url), |pod| {
        pod["status"] = json!({"phase": "Running"})
    });
    world.api.log(&pod_of(url), log);
    world.deliver();
}

pub fn fetch_ends(world: &World, url: &str, outcome: &str) {
    let success = outcome.contains("Fetched") || outcome.contains("AlreadyThere");
    let began = now().checked_sub(SignedDuration::from_secs(5)).unwrap();
    let terminated = json!({"exitCode": i32::from(!success), "message": outcome, "startedAt": began, "finishedAt": now()});
    let phase = if success { "Succeeded" } else { "Failed" };
    world.api.change(PODS, &pod_of(url), |pod| {
        let container =
            json!([{"name": pod["metadata"]["name"], "state": {"terminated": terminated}}]);
        pod["status"] = json!({"phase": phase, "containerStatuses": container});
    });
    world.deliver();
}

/// Status, reason and message of the condition `MediaFetched`.
pub fn media_condition(world: &World) -> (String, String, String) {
    let conditions = world.vm().status.unwrap().conditions;
    let condition = conditions
        .into_iter()
        .find(|c| c.type_ == "MediaFetched")
        .expect("MediaFetched");
    (condition.status, condition.reason, condition.message)
}

pub fn cd(world: &World) -> String {
    let text = world.api.get(CONFIG_MAPS, "vm").unwrap()["data"]["config.yaml"].clone();
    let config: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    let drives = config["/Runner"]["vm"]["drives"]
        .as_array()
        .unwrap()
        .clone();
    drives
        .iter()
        .find(|drive| drive["type"] == "ide-cd")
        .unwrap()["file"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn record() -> [String; 2] {
    [
        request("DELETE", PODS, &pod_of(URL)),
        request("PATCH", CLAIMS, CLAIM),
    ]
}

/// Runs until the download pod exists.
pub async fn begun(machine: Value) -> World {
    let world = World::new(machine);
    world.settle().await;
    assert!(world.api.get(PODS, &pod_of(URL)).is_some());
    world
}

/// Runs until the image exists and the VM runs.
async fn downloaded(machine: Value) -> World {
    let world = begun(machine).await;
    fetch_ends(&world, URL, FETCHED);
    world.settle().await;
    world.run();
    world.settle().await;
    world
}

#[tokio::test]
async fn a_machine_that_boots_from_an_image_starts_once_it_is_there() {
    let world = World::new(boots_from(URL));
    let first = world.step().await;
    assert!(
        first.contains(&request("POST", PODS, &pod_of(URL))),
        "{first:?}"
    );
    assert!(!first.contains(&request("POST", PODS, "vm")), "{first:?}");
    world.settle().await;
    assert_eq!(media_condition(&world).1, "Fetching");
    assert_eq!(world.ready().0, "Starting");
    fetch_runs(&world, URL, "{\"bytes\":429496730,\"total\":1288490189}\n");
    let log = format!("{}/log", request("GET", PODS, &pod_of(URL)));
    assert_eq!(
        world.step().await,
        [log.clone(), request("PATCH", VMS, "vm/status")]
    );
    let field = "spec.vm.disks[1].cdrom.image";
    let message = format!("{field}: 30 % of {URL} is downloaded (total size: 1.2 GiB)");
    assert_eq!(
        media_condition(&world),
        ("False".to_owned(), "Fetching".to_owned(), message)
    );
    assert!(world.ready().1.contains("30 %"), "{:?}", world.ready());
    // First too early for another request, then too little progress to report.
    assert_eq!(world.step().await, [""; 0]);
    pass(5);
    world
        .api
        .log(&pod_of(URL), "{\"bytes\":440000000,\"total\":1288490189}\n");
    assert_eq!(world.step().await, [log]);
    fetch_ends(&world, URL, FETCHED);
    // The PVCs are recorded before the pod is created, and the image is reported after it.
    let volumes = request("PATCH", VMS, "vm/status");
    let mut expected: Vec<String> = record()
        .into_iter()
        .chain(pod_and_status())
        .chain([volumes])
        .collect();
    expected.sort();
    assert_eq!(world.step().await, expected);
    assert_eq!(
        (media_condition(&world).0, media_condition(&world).1),
        ("True".to_owned(), "Fetched".to_owned())
    );
    assert_eq!(cd(&world), path_of(URL));
    let claim = world.api.get(CLAIMS, CLAIM).unwrap();
    let key = format!("fetched.vmoperator.jdrupes.org/{}", fetch::key(URL, None));
    assert_eq!(
        claim["metadata"]["annotations"][key],
        fetch::file_name(URL, None)
    );
    world.deliver();
    assert_eq!(world.step().await, [""; 0]);
}

#[tokio::test]
async fn a_machine_with_something_else_to_boot_from_starts_at_once_and_gets_the_image_while_it_runs()
 {
    let world = begun(has_besides(URL)).await;
    assert!(world.api.get(PODS, "vm").is_some());
    assert_eq!(cd(&world), "");
    world.run();
    world.settle().await;
    assert_eq!(world.ready().0, "Running");
    fetch_ends(&world, URL, FETCHED);
    let mut expected: Vec<String> = record().into();
    expected.extend([
        request("GET", VMS, "vm"),
        request("PATCH", CONFIG_MAPS, "vm"),
        request("PATCH", PODS, "vm"),
        request("PATCH", VMS, "vm/status"),
    ]);
    expected.sort();
    assert_eq!(world.step().await, expected);
    assert_eq!(
        (cd(&world), world.ready().0),
        (path_of(URL), "Running".to_owned())
    );
    world.deliver();
    assert_eq!(world.step().await, [""; 0]);
}

#[tokio::test]
async fn a_restarted_operator_writes_nothing_and_fetches_nothing() {
    let mut world = downloaded(boots_from(URL)).await;
    world.restart_operator();
    assert_eq!(world.step().await, [""; 0]);
    // Also not while a download is in progress or impossible.
    for (url, outcome) in [
        (OTHER, None),
        (
            URL,
            Some(r#"{"reason":"TooLarge","message":"more than there may be"}"#),
        ),
    ] {
        let mut world = World::new(has_besides(url));
        world.settle().await;
        world.run();
        if let Some(outcome) = outcome {
            fetch_ends(&world, url, outcome);
        }
        world.settle().await;
        world.restart_operator();
        assert_eq!(world.step().await, [""; 0], "{url}");
    }
}

#[tokio::test]
async fn temporary_fetch_failure_is_retried_with_backoff() {
    let world = begun(has_besides(URL)).await;
    // The server recovers, the file exists, and a slow server sends it in parts.
    for (pause, reason) in [
        (1, "ServerUnreachable"),
        (2, "ServerRefused"),
        (4, "DeadlineExceeded"),
    ] {
        let outcome =
            json!({"reason": reason, "message": "no answer from example.org", "bytes": 10});
        fetch_ends(&world, URL, &outcome.to_string());
        world.reconcile().await.unwrap();
        let _ = world.api.requests();
        assert_eq!(
            (
                media_condition(&world).1.as_str(),
                media_condition(&world).0.as_str()
            ),
            (reason, "False")
        );
        assert!(
            media_condition(&world)
                .2
                .contains("no answer from example.org"),
            "{:?}",
            media_condition(&world)
        );
        pass(pause - 1);
        assert_eq!(world.step().await, [""; 0], "{pause}");
        pass(1);
        let again = [
            request("DELETE", PODS, &pod_of(URL)),
            request("POST", PODS, &pod_of(URL)),
        ];
        assert_eq!(world.step().await, again, "{pause}");
        // The report does not change without progress.
        fetch_runs(&world, URL, "{\"bytes\":10}\n");
        let log = format!("{}/log", request("GET", PODS, &pod_of(URL)));
        pass(5);
        assert_eq!(world.step().await, [log], "{pause}");
    }
    pass(5);
    world.api.log(&pod_of(URL), "{\"bytes\":11,\"total\":20}\n");
    world.settle().await;
    assert_eq!(media_condition(&world).1, "Fetching");
    fetch_ends(&world, URL, FETCHED);
    world.settle().await;
    assert_eq!(
        (media_condition(&world).1.as_str(), cd(&world)),
        ("Fetched", path_of(URL))
    );
}

#[tokio::test]
async fn permanent_fetch_failure_is_reported_and_not_retried_until_a_change() {
    let mut world = begun(boots_from(URL)).await;
    fetch_ends(
        &world,
        URL,
        r#"{"reason":"TooLarge","message":"the image has 30 GiB"}"#,
    );
    world.settle().await;
    let (_, reason, message) = media_condition(&world);
    assert_eq!(reason, "TooLarge");
    assert!(
        message.contains("the image has 30 GiB") && message.contains("maxSize"),
        "{message}"
    );
    assert_eq!(world.ready().0, "MediaFetchFailed");
    pass(300);
    assert_eq!(world.step().await, [""; 0]);
    let mut settings = Settings::default();
    settings.reconciler.image_repository.fetch.max_size.0 *= 2;
    world.ctx.settings = settings;
    let again = [
        request("DELETE", PODS, &pod_of(URL)),
        request("POST", PODS, &pod_of(URL)),
    ];
    let requests = world.step().await;
    assert!(
        again.iter().all(|request| requests.contains(request)),
        "{requests:?}"
    );
    assert_eq!(media_condition(&world).1, "Fetching");
}

#[tokio::test]
async fn a_start_waits_no_longer_than_the_deadline() {
    let mut world = begun(boots_from(URL)).await;
    fetch_ends(
        &world,
        URL,
        r#"{"reason":"TooLarge","message":"more than there may be"}"#,
    );
    world.settle().await;
    pass(590);
    // A new operator does not restart the timer.
    world.restart_operator();
    world.settle().await;
    assert!(world.api.get(PODS, "vm").is_none());
    pass(10);
    world.settle().await;
    assert!(world.api.get(PODS, "vm").is_some());
    assert_eq!(
        (cd(&world).as_str(), media_condition(&world).1.as_str()),
        ("", "TooLarge")
    );
    world.run();
    world.settle().await;
    assert_eq!(world.ready().0, "Running");
}

#[tokio::test]
async fn secret_part_of_a_url_is_never_published() {
    let url = "https://example.org/a.iso?signature=geheim";
    let world = World::new(has_besides(url));
    world.settle().await;
    fetch_ends(&world, url, r#"{"reason":"TooLarge","message":"no"}"#);
    world.settle().await;
    let status = world.api.get(VMS, "vm").unwrap()["status"].to_string();
    let events = world.api.list(EVENTS);
    assert!(
        status.contains("https://example.org/a.iso?…") && !status.contains("geheim"),
        "{status}"
    );
    assert!(!format!("{events:?}").contains("geheim"));
    assert!(
        !world
            .api
            .get(CONFIG_MAPS, "vm")
            .unwrap()
            .to_string()
            .contains("geheim")
    );
}
