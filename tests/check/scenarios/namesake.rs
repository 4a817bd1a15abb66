//! A VM that follows a previous VM with the same name, or owner name another object uses.

use super::fake_api::{CLAIMS, CONFIG_MAPS, PODS, SECRETS, SERVICES, VMS};
use super::world::{World, one_disk, request};
use kube::Resource;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use vm_operator::api::VirtualMachine;
use vm_operator::api::vm::names;
use vm_operator::controllers::vm::reconcile;
use vm_operator::k8s::controller::Outcome;
use vm_operator::settings::{LoadBalancerService, Settings};

/// Metadata of a child of a VM with this name and that UID.
fn of_vm(uid: &str, name: &str) -> Value {
    json!({"name": name, "labels": names::labels("vm"), "ownerReferences": [names::owner("vm", uid)]})
}

/// A VM with a display, an operator that creates its service, and all objects of a previous VM with the same name.
fn with_orphans(state: &str) -> World {
    let mut world = World::new(json!({"state": state, "display": {"spice": {}}}));
    let mut settings = Settings::default();
    settings.reconciler.load_balancer_service = LoadBalancerService::On {
        labels: [].into(),
        annotations: [].into(),
    };
    world.ctx.settings = settings;
    for (path, name) in LEFT {
        world.api.put(
            path,
            json!({"metadata": of_vm("before", name), "status": {"phase": "Running"}}),
        );
    }
    world.deliver();
    world
}

const LEFT: [(&str, &str); 4] = [
    (CONFIG_MAPS, "vm"),
    (SECRETS, "vm-display-secret"),
    (SERVICES, "vm"),
    (PODS, "vm"),
];

/// The deletions of a reconcile.
async fn removals(world: &World) -> Vec<String> {
    // An object that still has the name is an error.
    let _ = world.reconcile().await;
    let requests = world.api.requests();
    let live_read = requests
        .iter()
        .position(|request| *request == self::request("GET", VMS, "vm"));
    let first = requests
        .iter()
        .position(|request| request.starts_with("DELETE"));
    assert!(first.is_none() || live_read.is_some(), "{requests:?}");
    requests
        .into_iter()
        .filter(|request| request.starts_with("DELETE"))
        .collect()
}

#[tokio::test]
async fn the_objects_of_a_previous_vm_are_removed_and_then_created_for_this_one() {
    for state in ["Running", "Stopped"] {
        let world = with_orphans(state);
        let mut expected = LEFT.map(|(path, name)| request("DELETE", path, name));
        expected.sort();
        assert_eq!(removals(&world).await, expected, "{state}");
        world.deliver();
        // The guest of the previous VM has its time to shut down.
        assert!(world.api.get(PODS, "vm").unwrap()["metadata"]["deletionTimestamp"].is_string());
        // The service's load balancer must be released, too.
        world.api.remove(SERVICES, "vm");
        world.deliver();
        world.settle().await;
        let (reason, message) = world.ready();
        let ends = "the pod is stopping, and its guest has time to shut down; to power the VM off at once (unsaved data is lost): kubectl exec vm -- vm-runner power-off";
        assert!(reason == "Stopped" || message.ends_with(ends), "{message}");
        world.remove_pod();
        world.settle().await;
        for (path, name) in LEFT {
            let owner = world
                .api
                .get(path, name)
                .map(|object| object["metadata"]["ownerReferences"][0]["uid"].clone());
            let expected = (path != PODS || state == "Running").then(|| "vm-uid".into());
            assert_eq!(owner, expected, "{path} {state}");
        }
    }
}

#[tokio::test]
async fn orphan_changed_since_its_observation_is_rechecked_and_not_deleted() {
    let world = with_orphans("Running");
    // Another owner has taken the object over, and the watch has not reported it yet.
    let rescued = |path: &str, name: &str| {
        world
            .api
            .change(path, name, |o| o["metadata"]["ownerReferences"] = json!([]))
    };
    LEFT.iter().for_each(|(path, name)| rescued(path, name));
    let tried: Vec<String> = removals(&world).await;
    assert_eq!(
        tried
            .iter()
            .filter(|request| request.starts_with("DELETE"))
            .count(),
        4,
        "{tried:?}"
    );
    assert!(LEFT.iter().all(|(path, name)| {
        world.api.get(path, name).unwrap()["metadata"]["deletionTimestamp"].is_null()
    }));
    world.deliver();
    assert_eq!(removals(&world).await, [""; 0]);
}

#[tokio::test]
async fn rejected_orphan_deletion_is_reported_and_does_not_block_other_steps() {
    let world = with_orphans("Running");
    world.api.reject_deletion(CONFIG_MAPS, 403);
    let removed = removals(&world).await;
    assert!(
        removed.contains(&request("DELETE", PODS, "vm")),
        "{removed:?}"
    );
    let (_, message) = world.ready();
    assert!(
        message.starts_with("cannot delete ConfigMap vm: "),
        "{message}"
    );
    // A remaining service blocks nothing.
    let world = with_orphans("Running");
    for (path, name) in LEFT.into_iter().filter(|(path, _)| *path != SERVICES) {
        world.api.remove(path, name);
    }
    world.deliver();
    world.api.reject_deletion(SERVICES, 500);
    let _ = world.reconcile().await;
    world.run();
    assert_eq!(
        world.reconcile().await.unwrap(),
        Outcome::Recheck(Duration::from_secs(60))
    );
    assert_eq!(world.ready().0, "Running");
    world.edit(|machine| machine["state"] = "Stopped".into());
    let _ = world.reconcile().await;
    assert!(world.api.get(PODS, "vm").unwrap()["metadata"]["deletionTimestamp"].is_string());
}

#[tokio::test]
async fn object_of_a_newer_vm_unknown_to_the_watch_is_not_deleted() {
    let world = with_orphans("Running");
    let known = Arc::new(world.vm());
    // The object of an apparently previous VM belongs to a newer one.
    world
        .api
        .change(VMS, "vm", |vm| vm["metadata"]["uid"] = "before".into());
    for _ in 0..5 {
        let _ = reconcile(known.clone(), &world.ctx).await;
        let requests = world.api.requests();
        assert!(
            !requests.iter().any(|request| request.starts_with("DELETE")),
            "{requests:?}"
        );
    }
}

#[tokio::test]
async fn shared_foreign_or_terminating_object_is_not_deleted() {
    let another = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "another", "uid": "its"});
    let shared = |mut metadata: Value| {
        metadata["ownerReferences"]
            .as_array_mut()
            .unwrap()
            .push(another.clone());
        metadata
    };
    let deleted = |mut metadata: Value| {
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        metadata["finalizers"] = json!(["example.org/a", "example.org/b"]);
        metadata
    };
    let of_another = |mut metadata: Value| {
        metadata["ownerReferences"][0]["name"] = "another".into();
        metadata
    };
    for (metadata, text) in [
        (
            shared(of_vm("before", "vm")),
            "or run kubectl delete configmap vm if no VM uses it",
        ),
        (of_another(of_vm("before", "vm")), "VM \"another\" uses"),
        (
            deleted(of_vm("before", "vm")),
            "the object is being deleted, but its finalizers delay the deletion: example.org/a, example.org/b",
        ),
    ] {
        let world = World::new(json!({"state": "Running", "display": {"spice": {}}}));
        world.api.put(CONFIG_MAPS, json!({"metadata": metadata}));
        // As the Java VM-Operator creates it: without an owner. It is used.
        let mut secret = of_vm("before", "vm-display-secret");
        secret["ownerReferences"] = json!([]);
        world.api.put(SECRETS, json!({"metadata": secret}));
        world.deliver();
        assert_eq!(removals(&world).await, [""; 0], "{metadata}");
        let (reason, message) = world.ready();
        assert!(message.contains(text), "{message}");
        assert_eq!(
            reason,
            if text.contains("finalizers") {
                "Starting"
            } else {
                "NameTaken"
            }
        );
    }
}

#[tokio::test]
async fn the_service_of_a_previous_vm_is_replaced_and_does_not_delay_the_start() {
    let world = with_orphans("Running");
    for (path, name) in LEFT.into_iter().filter(|(path, _)| *path != SERVICES) {
        world.api.remove(path, name);
    }
    world.deliver();
    assert!(
        removals(&world)
            .await
            .contains(&request("DELETE", SERVICES, "vm"))
    );
    assert!(world.api.get(PODS, "vm").is_some());
    world.api.remove(SERVICES, "vm");
    world.settle().await;
    let owner = |world: &World| {
        world.api.get(SERVICES, "vm").unwrap()["metadata"]["ownerReferences"][0]["uid"].clone()
    };
    assert_eq!(owner(&world), "vm-uid");
    assert!(
        !world
            .vm()
            .status
            .unwrap()
            .conditions
            .iter()
            .any(|condition| condition.type_ == "ServiceInSync")
    );
}

/// Messages of the conditions `Ready` and `ServiceInSync` of a VM with that name, if another object has the name of one
/// of its children.
async fn message_of(vm: &str, collection: &str, object: Value) -> String {
    let mut world = World::new(json!({"state": "Stopped"}));
    let mut settings = Settings::default();
    settings.reconciler.load_balancer_service = LoadBalancerService::On {
        labels: [].into(),
        annotations: [].into(),
    };
    world.ctx.settings = settings;
    let before = world.api.put(collection, object);
    let metadata = json!({"name": vm, "namespace": "ns", "uid": "its-uid", "generation": 1});
    let (version, kind) = ("vmoperator.jdrupes.org/v1", VirtualMachine::kind(&()));
    let machine = json!({"vm": one_disk()});
    world
        .api
        .put(VMS, json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": machine, "status": {}}));
    let its = |world: &World| -> VirtualMachine {
        serde_json::from_value(world.api.get(VMS, vm).unwrap()).unwrap()
    };
    for _ in 0..5 {
        world.deliver();
        let _ = reconcile(Arc::new(its(&world)), &world.ctx).await;
    }
    let name = before["metadata"]["name"].as_str().unwrap();
    assert_eq!(world.api.get(collection, name).unwrap(), before);
    let conditions = its(&world).status.unwrap().conditions;
    let found = conditions
        .iter()
        .filter(|c| ["Ready", "ServiceInSync"].contains(&c.type_.as_str()));
    found
        .map(|condition| condition.message.as_str())
        .collect::<Vec<_>>()
        .join("\n")
}

#[tokio::test]
async fn message_never_advises_deletion_of_objects_in_use() {
    let labels = |app: &str, vm: &str| json!({"app.kubernetes.io/name": app, "app.kubernetes.io/instance": vm});
    let operators = json!({"app.kubernetes.io/name": "vm-operator"});
    let fetch = json!({"app.kubernetes.io/name": "vm-fetch", "app.kubernetes.io/managed-by": "vm-operator"});
    for (vm, collection, name, labels, owner) in [
        // The operator's configuration, by its name and by its label.
        (
            "vm-operator",
            CONFIG_MAPS,
            "vm-operator",
            Value::Null,
            "the operator uses",
        ),
        (
            "another-name",
            CONFIG_MAPS,
            "another-name",
            operators.clone(),
            "the operator uses",
        ),
        (
            "vm-operator",
            SECRETS,
            "vm-operator-display-secret",
            operators.clone(),
            "the operator uses",
        ),
        (
            "vm-operator",
            SERVICES,
            "vm-operator",
            operators.clone(),
            "the operator uses",
        ),
        (
            "vm-operator",
            PODS,
            "vm-operator",
            operators,
            "the operator uses",
        ),
        (
            "vmop-fetch-0",
            PODS,
            "vmop-fetch-0",
            fetch,
            "the operator uses",
        ),
        (
            "a",
            CLAIMS,
            "a-system-disk",
            labels("vm-runner", "b"),
            "VM \"b\"",
        ),
        ("a", CONFIG_MAPS, "a", labels("vm-runner", "b"), "VM \"b\""),
        ("a", CONFIG_MAPS, "a", json!({}), "another program uses"),
    ] {
        let message = message_of(
            vm,
            collection,
            json!({"metadata": {"name": name, "labels": labels}}),
        )
        .await;
        assert!(
            message.contains(owner),
            "{owner:?} in {message:?} of {collection}/{name}"
        );
        for verb in ["delete", "remove"] {
            assert!(
                !message.contains(verb),
                "{verb:?} in {message:?} of {collection}/{name}"
            );
        }
        assert!(message.contains("another name"), "{message:?}");
    }
}
