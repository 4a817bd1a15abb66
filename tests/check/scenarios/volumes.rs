//! PVCs that a VM has used and that are deleted: no empty PVC takes the place of one without the acceptance of a person.

use super::fake_api::{CLAIMS, EVENTS, PODS, VMS};
use super::world::{World, fill, now, one_disk, request};
use serde_json::{Value, json};

const CLAIM: &str = "vm-system-disk";

/// A VM that runs on bound PVCs.
async fn running() -> World {
    let world = World::new(one_disk());
    world.settle().await;
    for claim in [CLAIM, "vm-runner-data"] {
        let bound = json!({"phase": "Bound"});
        world
            .api
            .change(CLAIMS, claim, |claim| claim["status"] = bound);
    }
    world.run();
    world.settle().await;
    world
}

fn uid(world: &World) -> Option<String> {
    let claim = world.api.get(CLAIMS, CLAIM)?;
    Some(claim["metadata"]["uid"].as_str().unwrap().to_owned())
}

/// The PVCs that the status records, by name.
fn recorded(world: &World) -> Vec<(String, String)> {
    let volumes = world.vm().status.unwrap().volumes;
    let volumes = volumes.into_iter().map(|it| (it.claim_name, it.uid));
    volumes.collect()
}

fn delete_claim(world: &World) {
    world.api.change(CLAIMS, CLAIM, |claim| {
        claim["metadata"]["deletionTimestamp"] = json!(now());
    });
}

fn set_state(world: &World, state: &str) {
    world.edit(|machine| machine["state"] = state.into());
}

/// The parts of kubelet and Kubernetes: a deleted pod ends, and then a deleted PVC goes.
fn end_deleted(world: &World) {
    let is_deleted = |object: &Value| object["metadata"]["deletionTimestamp"].is_string();
    if world.api.get(PODS, "vm").is_some_and(|it| is_deleted(&it)) {
        world.api.remove(PODS, "vm");
    }
    let is_free = world.api.get(PODS, "vm").is_none();
    if is_free
        && world
            .api
            .get(CLAIMS, CLAIM)
            .is_some_and(|it| is_deleted(&it))
    {
        world.api.remove(CLAIMS, CLAIM);
    }
}

/// Reconciles until nothing changes any more.
async fn settle(world: &World) {
    for _ in 0..3 {
        world.settle().await;
        end_deleted(world);
    }
    world.settle().await;
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    DeleteClaim,
    Stop,
    /// The operator does not run during the next event. Then another one starts.
    Away,
    Start,
}

fn orders(events: &[Event]) -> Vec<Vec<Event>> {
    if events.is_empty() {
        return vec![Vec::new()];
    }
    let first = |n: usize| {
        let mut rest = events.to_vec();
        let event = rest.remove(n);
        let after = orders(&rest).into_iter();
        after.map(move |order| [vec![event], order].concat())
    };
    (0..events.len()).flat_map(first).collect()
}

/// The outcome, and the one that the order must have: `Contents`, `Accepted` or `DataMissing`.
async fn outcome(order: &[Event]) -> (&'static str, &'static str) {
    let mut world = running().await;
    let used = uid(&world);
    let (mut is_away, mut is_accepted) = (false, false);
    for event in order {
        let is_idle = set_event(&world, *event);
        is_accepted |= is_idle && !is_away && *event == Event::DeleteClaim;
        end_deleted(&world);
        if is_away {
            world.restart_operator();
        }
        is_away = *event == Event::Away;
        if !is_away {
            settle(&world).await;
        }
    }
    world.restart_operator();
    settle(&world).await;
    set_state(&world, "Running");
    settle(&world).await;
    let has_pod = world.api.get(PODS, "vm").is_some();
    let outcome = match uid(&world) {
        present if present == used && has_pod => "Contents",
        Some(_) if has_pod => "Accepted",
        None if !has_pod && world.ready().0 == "DataMissing" => "DataMissing",
        present => panic!("{order:?}: {present:?} {:?}", world.ready()),
    };
    let is_deleted = order.contains(&Event::DeleteClaim);
    let is_lost = uid(&world) != used;
    let expected = match (is_deleted && is_lost, is_accepted) {
        (false, _) => "Contents",
        (true, true) => "Accepted",
        (true, false) => "DataMissing",
    };
    (outcome, expected)
}

/// Returns whether the VM was stopped and had no pod before.
fn set_event(world: &World, event: Event) -> bool {
    let is_idle = world.api.get(PODS, "vm").is_none();
    match event {
        Event::DeleteClaim => delete_claim(world),
        Event::Stop => set_state(world, "Stopped"),
        Event::Start => set_state(world, "Running"),
        Event::Away => {}
    }
    is_idle
}

#[tokio::test]
async fn deleted_claim_is_kept_or_its_loss_accepted_or_reported_in_each_order_of_events() {
    let mut found = std::collections::BTreeSet::new();
    let events = [Event::DeleteClaim, Event::Stop, Event::Away, Event::Start];
    for order in orders(&events) {
        let (outcome, expected) = outcome(&order).await;
        assert_eq!(outcome, expected, "{order:?}");
        found.insert(outcome);
    }
    assert_eq!(
        Vec::from_iter(found),
        ["Accepted", "Contents", "DataMissing"]
    );
}

#[tokio::test]
async fn deletion_under_a_running_vm_is_reported_at_once() {
    let world = running().await;
    delete_claim(&world);
    settle(&world).await;
    let (reason, message) = world.ready();
    assert_eq!(reason, "ClaimTerminating");
    assert!(
        message.contains(CLAIM) && message.contains("lost"),
        "{message}"
    );
    let events = world.api.list(EVENTS);
    let is_warning = |event: &&Value| event["reason"] == "ClaimTerminating";
    assert_eq!(events.iter().find(is_warning).unwrap()["type"], "Warning");
    assert!(world.api.get(PODS, "vm").is_some());
}

#[tokio::test]
async fn claims_are_recorded_before_the_pod_is_created() {
    let world = World::new(one_disk());
    let create = request("POST", PODS, "vm");
    world.api.reject_creation(Some((&create, 500, "internal")));
    assert!(world.reconcile().await.is_err());
    let claims = world.api.list(CLAIMS).into_iter();
    let claims = claims.filter(|claim| claim["metadata"]["name"] != "vmop-image-repository");
    let claims = claims.map(|it| {
        let text = |field: &str| it["metadata"][field].as_str().unwrap().to_owned();
        (text("name"), text("uid"))
    });
    assert_eq!(recorded(&world), Vec::from_iter(claims));
}

#[tokio::test]
async fn claims_of_a_vm_that_runs_at_an_upgrade_are_recorded_with_the_next_write() {
    let world = running().await;
    let before = recorded(&world);
    world.api.change(VMS, "vm", |vm| {
        vm["status"].as_object_mut().unwrap().remove("volumes");
    });
    world.deliver();
    assert_eq!(world.step().await, [""; 0]);
    world.edit(|machine| machine["powerdownTimeout"] = 30.into());
    world.settle().await;
    assert_eq!(recorded(&world), before);
}

/// A stopped VM whose PVC was deleted while it ran.
async fn missing() -> (World, String) {
    let world = running().await;
    let used = uid(&world).unwrap();
    delete_claim(&world);
    settle(&world).await;
    set_state(&world, "Stopped");
    settle(&world).await;
    set_state(&world, "Running");
    settle(&world).await;
    let (reason, message) = world.ready();
    assert_eq!(reason, "DataMissing");
    assert!(
        message.contains(CLAIM) && message.contains(&used),
        "{message}"
    );
    assert_eq!((uid(&world), world.api.get(PODS, "vm")), (None, None));
    (world, used)
}

#[tokio::test]
async fn annotation_with_the_uid_accepts_the_loss() {
    let (world, used) = missing().await;
    let accept = |world: &World, uids: &str| {
        let annotations = json!({"vmoperator.jdrupes.org/accept-loss": uids});
        world
            .api
            .change(VMS, "vm", |vm| vm["metadata"]["annotations"] = annotations);
    };
    accept(&world, "another");
    settle(&world).await;
    assert_eq!(world.ready().0, "DataMissing");
    accept(&world, &format!("another, {used}"));
    settle(&world).await;
    assert!(world.api.get(PODS, "vm").is_some());
    assert!(uid(&world).is_some_and(|uid| uid != used));
    // A later loss needs another acceptance.
    world
        .api
        .change(CLAIMS, CLAIM, |it| it["status"] = json!({"phase": "Bound"}));
    world.run();
    delete_claim(&world);
    settle(&world).await;
    set_state(&world, "Stopped");
    settle(&world).await;
    assert_eq!(world.ready().0, "DataMissing");
}

#[tokio::test]
async fn restored_claim_accepts_the_loss() {
    let (world, _) = missing().await;
    let metadata = json!({"name": CLAIM, "namespace": "ns", "uid": "restored"});
    world.api.put(
        CLAIMS,
        json!({"metadata": metadata, "spec": {"volumeMode": "Block"}}),
    );
    settle(&world).await;
    assert!(world.api.get(PODS, "vm").is_some());
    assert!(recorded(&world).contains(&(CLAIM.to_owned(), "restored".to_owned())));
}

#[tokio::test]
async fn entry_of_a_removed_disk_ends_with_its_claim() {
    let world = running().await;
    world.edit(|machine| machine["disks"] = json!([]));
    world.settle().await;
    assert_eq!(recorded(&world).len(), 2);
    world.api.remove(CLAIMS, CLAIM);
    world.settle().await;
    assert_eq!(recorded(&world).len(), 1);
}

#[tokio::test]
async fn deleted_claim_without_a_volume_is_replaced_together_with_its_pod() {
    let world = World::new(one_disk());
    world.settle().await;
    let (claim, pod) = (uid(&world), world.api.get(PODS, "vm"));
    world.api.change(CLAIMS, CLAIM, |it| {
        it["status"] = json!({"phase": "Pending"})
    });
    world.pod_status(json!({"phase": "Pending"}));
    world.settle().await;
    world.api.remove(CLAIMS, CLAIM);
    world.deliver();
    assert!(world.step().await.contains(&request("DELETE", PODS, "vm")));
    settle(&world).await;
    assert!(uid(&world).is_some() && uid(&world) != claim);
    assert!(recorded(&world).contains(&(CLAIM.to_owned(), uid(&world).unwrap())));
    assert_ne!(
        world.api.get(PODS, "vm").unwrap()["metadata"]["uid"],
        pod.unwrap()["metadata"]["uid"]
    );
}

#[tokio::test]
async fn vm_waits_for_the_end_of_a_claim_that_is_being_deleted() {
    let world = World::new(one_disk());
    set_state(&world, "Stopped");
    world.settle().await;
    delete_claim(&world);
    world.api.change(CLAIMS, CLAIM, |it| {
        it["metadata"]["finalizers"] = json!(["example.org/backup"])
    });
    set_state(&world, "Running");
    world.settle().await;
    let (reason, message) = world.ready();
    assert_eq!(reason, "ClaimTerminating");
    assert!(
        message.contains(CLAIM) && message.contains("example.org/backup"),
        "{message}"
    );
    assert_eq!(world.api.get(PODS, "vm"), None);
    settle(&world).await;
    assert!(world.api.get(PODS, "vm").is_some());
}

#[tokio::test]
async fn pending_claim_that_differs_from_a_corrected_vm_is_named_with_both_values() {
    for resources in [json!({"requests": {"storage": "1Gi"}}), json!(null)] {
        pending_claim_is_named(&resources).await;
    }
}

async fn pending_claim_is_named(resources: &Value) {
    let class = |class: &str| {
        let spec = json!({"storageClassName": class, "resources": resources});
        json!([{"volumeClaimTemplate": {"metadata": {"name": "system"}, "spec": spec}}])
    };
    let world = World::new(json!({"state": "Running", "disks": class("wrong")}));
    world.settle().await;
    let claim = json!({"phase": "Pending"});
    world.api.change(CLAIMS, CLAIM, |it| it["status"] = claim);
    world.edit(|machine| machine["disks"] = class("right"));
    settle(&world).await;
    let unbound = "pod has unbound immediate PersistentVolumeClaims";
    let scheduled = json!({"type": "PodScheduled", "status": "False", "message": unbound, "lastTransitionTime": "2025-01-01T00:00:00Z"});
    world.pod_status(json!({"phase": "Pending", "conditions": [scheduled]}));
    settle(&world).await;
    let (reason, message) = world.ready();
    assert_eq!(reason, "ClaimPending");
    let conditions = world.vm().status.unwrap().conditions;
    let in_sync = conditions
        .iter()
        .find(|it| it.type_ == "DisksInSync")
        .unwrap();
    assert_eq!(in_sync.reason, "ClaimImmutable");
    for text in [
        "storageClassName \"wrong\" instead of \"right\"",
        "contains no data",
        "kubectl delete pvc vm-system-disk -n ns",
    ] {
        assert!(message.contains(text), "{message}");
    }
    world.api.remove(CLAIMS, CLAIM);
    settle(&world).await;
    let claim = world.api.get(CLAIMS, CLAIM).unwrap();
    assert_eq!(claim["spec"]["storageClassName"], "right");
    assert_eq!(world.ready().0, "Starting");
}

#[tokio::test]
async fn deletion_that_the_store_does_not_have_yet_is_found_when_the_pod_has_ended() {
    let world = running().await;
    set_state(&world, "Stopped");
    world.settle().await;
    let before = world.api.list(CLAIMS);
    delete_claim(&world);
    end_deleted(&world);
    for is_known in [false, true] {
        world.deliver();
        if !is_known {
            fill(&world.ctx.caches.claims, before.clone());
        }
        world.reconcile().await.unwrap();
    }
    assert_eq!(world.ready().0, "DataMissing");
}
