//! Rejections by the API server: reported once, with its message, and not counted as success.

use super::fake_api::{CLAIMS, EVENTS, FakeApi, PODS, SERVICES, VMS};
use super::world::{World, one_disk, pass, request};
use serde_json::{Value, json};
use std::time::Duration;
use vm_operator::k8s::controller::Outcome;
use vm_operator::k8s::error::{Retry, UNAVAILABLE_BACKOFF_MAX};
use vm_operator::settings::{LoadBalancerService, Settings};

const WEBHOOK: &str = "admission webhook \"w\" denied the request: no (request {n})";
const REPOSITORY: &str = "vmop-image-repository";

fn reject(api: &FakeApi, collection: &str, name: &str, code: u16, why: &str) {
    api.reject_creation(Some((&request("POST", collection, name), code, why)));
}

/// Reconciles that number of times, as after each own write. Returns the number of status writes.
async fn status_writes(world: &World, times: usize) -> usize {
    let mut written = 0;
    for _ in 0..times {
        world.deliver();
        let _ = world.reconcile().await;
        written += world
            .api
            .requests()
            .iter()
            .filter(|one| **one == request("PATCH", VMS, "vm/status"))
            .count();
    }
    written
}

#[tokio::test]
async fn pod_rejection_with_varying_message_is_not_reported_repeatedly() {
    let world = World::new(one_disk());
    reject(&world.api, PODS, "vm", 403, WEBHOOK);
    // The record of the PVCs comes before the pod.
    assert_eq!(status_writes(&world, 10).await, 2);
    let (reason, first) = world.ready();
    assert!(
        reason == "PolicyRefused" && first.contains("denied the request"),
        "{reason}: {first}"
    );
    // Another rejection for the same reason is reported later.
    pass(60);
    assert_eq!(status_writes(&world, 10).await, 1);
    assert_ne!(world.ready().1, first);
    // Another reason is reported immediately, and so is a rejection of another spec.
    reject(
        &world.api,
        PODS,
        "vm",
        403,
        "pods \"vm\" is forbidden: exceeded quota: q ({n})",
    );
    assert_eq!(status_writes(&world, 10).await, 1);
    assert_eq!(world.ready().0, "QuotaExceeded");
    world.edit(|machine| machine["powerdownTimeout"] = 30.into());
    assert_eq!(status_writes(&world, 10).await, 1);
}

#[tokio::test]
async fn service_rejection_with_varying_message_is_not_reported_repeatedly() {
    let mut world = World::new(one_disk());
    let mut settings = Settings::default();
    settings.reconciler.load_balancer_service = LoadBalancerService::On {
        labels: [].into(),
        annotations: [].into(),
    };
    world.ctx.settings = settings;
    reject(&world.api, SERVICES, "vm", 403, WEBHOOK);
    // The record of the PVCs comes before the Service.
    assert_eq!(status_writes(&world, 10).await, 2);
}

#[tokio::test]
async fn a_restart_is_carried_out_only_once_there_is_a_pod() {
    let world = World::new(one_disk());
    world.edit(|machine| machine["restartRequest"] = 1.into());
    reject(&world.api, PODS, "vm", 403, WEBHOOK);
    status_writes(&world, 3).await;
    assert_eq!(world.ready().0, "PolicyRefused");
    assert_eq!(world.vm().status.unwrap().observed_restart_request, None);
    world.api.reject_creation(None);
    world.settle().await;
    assert_eq!(world.vm().status.unwrap().observed_restart_request, Some(1));
}

#[tokio::test]
async fn quota_conflict_is_not_mistaken_for_an_existing_pod() {
    let world = World::new(one_disk());
    let why = "Operation cannot be fulfilled on resourcequotas \"q\": the object has been modified";
    reject(&world.api, PODS, "vm", 409, why);
    let error = world.reconcile().await.unwrap_err();
    assert!(error.to_string().contains("resourcequotas"), "{error}");
    assert_eq!(
        error.retry(),
        Retry::Backoff(UNAVAILABLE_BACKOFF_MAX),
        "{error}"
    );
    let requests = world.api.requests();
    assert!(
        !requests.contains(&request("GET", PODS, "vm")),
        "{requests:?}"
    );
    world.api.reject_creation(None);
    world.settle().await;
    assert!(world.api.get(PODS, "vm").is_some());
}

const QUOTA: &str = "exceeded quota: q, requested: requests.storage=100Gi, used: 0, limited: 10Gi";

fn with_cd() -> Value {
    json!({"state": "Running", "disks": [{"cdrom": {"image": "a.iso"}}]})
}

#[tokio::test]
async fn an_image_repository_that_cannot_be_made_keeps_only_vms_with_a_cd_drive_from_starting() {
    let world = World::new(with_cd());
    reject(&world.api, CLAIMS, REPOSITORY, 403, QUOTA);
    assert!(world.reconcile().await.is_err());
    assert_eq!(world.ready().0, "QuotaExceeded");
    assert!(world.api.get(PODS, "vm").is_none());

    let mut world = World::new(one_disk());
    reject(&world.api, CLAIMS, REPOSITORY, 403, QUOTA);
    let made = request("POST", CLAIMS, REPOSITORY);
    assert!(world.step().await.contains(&made));
    assert!(world.api.get(PODS, "vm").is_some());
    assert_eq!(world.ready().0, "Starting");
    let events = world.api.list(EVENTS);
    let event = events
        .iter()
        .find(|event| event["reason"] == "QuotaExceeded")
        .expect("there is an event");
    let note = event["note"].as_str().unwrap();
    assert!(
        note.contains(REPOSITORY) && note.contains("limited: 10Gi"),
        "{note}"
    );
    // No request waits for it, but it is not forgotten.
    world.deliver();
    let is_retried_within = |outcome, seconds| {
        let limit = Duration::from_secs(seconds);
        matches!(outcome, Outcome::Recheck(after) if after > limit.mul_f64(0.7) && after <= limit)
    };
    assert!(is_retried_within(world.reconcile().await.unwrap(), 1));
    assert_eq!(world.api.requests(), [""; 0]);
    assert_eq!(world.ctx.states.failing(), 0);
    pass(1);
    assert!(is_retried_within(world.reconcile().await.unwrap(), 2));
    assert!(world.api.requests().contains(&made));
    // A VM that does not request it does not wait for it.
    pass(360);
    world.ctx.settings.reconciler.image_repository.create = false;
    assert_eq!(world.reconcile().await.unwrap(), Outcome::Done);
    world.ctx.settings.reconciler.image_repository.create = true;
    // It is created as soon as there is room.
    world.api.reject_creation(None);
    pass(360);
    assert_eq!(world.reconcile().await.unwrap(), Outcome::Done);
    assert_eq!(world.api.requests(), [made]);
}
