//! A VM that comes right after another of its name has gone, or whose name somebody else needs.

use super::fake_api::{CLAIMS, CONFIG_MAPS, PODS, SECRETS, SERVICES, VMS};
use super::world::{World, one_disk, request};
use kube::Resource;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use vm_operator::api::VirtualMachine;
use vm_operator::operator::error::Retry;
use vm_operator::operator::settings::{LoadBalancerService, Settings};
use vm_operator::operator::vm::reconcile;

#[tokio::test]
async fn what_an_earlier_vm_of_the_name_has_left_is_waited_for() {
    // As after `kubectl delete` and `kubectl apply` at once: the API server refuses an object with two controllers.
    for (path, kind_name, name) in [(CONFIG_MAPS, "configmap", "vm"), (SECRETS, "secret", "vm-display-secret")] {
        let world = World::new(json!({"state": "Running", "display": {"spice": {}}}));
        let labels = json!({"app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": "vm"});
        let kind = VirtualMachine::kind(&());
        let owner = json!({"apiVersion": "vmoperator.jdrupes.org/v1", "kind": kind, "name": "vm", "uid": "before", "controller": true});
        world.api.put(path, json!({"metadata": {"name": name, "labels": labels, "ownerReferences": [owner]}}));
        world.deliver();
        let error = world.reconcile().await.unwrap_err();
        assert_eq!(error.retry(), Retry::After(Duration::from_secs(1)), "{error}");
        assert!(
            !world.api.requests().contains(&request("GET", VMS, "vm")),
            "as nothing is written, nobody is asked before, each second"
        );
        let (reason, message) = world.ready();
        assert_eq!(reason, "Starting");
        assert!(message.contains(name) && message.contains("an earlier VM"), "{message}");
        // Kubernetes' garbage collector misses some.
        assert!(message.ends_with(&format!("kubectl delete {kind_name} {name}")), "{message}");
        assert!(world.api.get(PODS, "vm").is_none());
        assert_eq!(world.api.get(path, name).unwrap()["metadata"]["ownerReferences"][0]["uid"], "before");
        world.api.remove(path, name);
        world.settle().await;
        assert!(world.api.get(PODS, "vm").is_some(), "{path}");
    }
}

/// Messages of the conditions `Ready` and `ServiceInSync` of a VM of that name, where an object has the name of one of its
/// own.
async fn told(vm: &str, collection: &str, object: Value) -> String {
    let mut world = World::new(json!({"state": "Stopped"}));
    world.ctx.home = Some("ns".to_owned());
    let mut settings = Settings::default();
    settings.reconciler.load_balancer_service = LoadBalancerService::On { labels: [].into(), annotations: [].into() };
    world.ctx.set_settings(settings);
    let before = world.api.put(collection, object);
    let metadata = json!({"name": vm, "namespace": "ns", "uid": "its-uid", "generation": 1});
    let (version, kind) = ("vmoperator.jdrupes.org/v1", VirtualMachine::kind(&()));
    let machine = json!({"vm": one_disk()});
    world
        .api
        .put(VMS, json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": machine, "status": {}}));
    let its = |world: &World| -> VirtualMachine { serde_json::from_value(world.api.get(VMS, vm).unwrap()).unwrap() };
    for _ in 0..5 {
        world.deliver();
        let _ = reconcile(Arc::new(its(&world)), &world.ctx).await;
    }
    let name = before["metadata"]["name"].as_str().unwrap();
    assert_eq!(world.api.get(collection, name).unwrap(), before);
    let conditions = its(&world).status.unwrap().conditions;
    let told = conditions.iter().filter(|c| ["Ready", "ServiceInSync"].contains(&c.type_.as_str()));
    told.map(|condition| condition.message.as_str()).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn nobody_is_told_to_remove_what_the_operator_or_another_vm_needs() {
    let labels = |app: &str, vm: &str| json!({"app.kubernetes.io/name": app, "app.kubernetes.io/instance": vm});
    let operators = json!({"app.kubernetes.io/name": "vm-operator"});
    let fetch = json!({"app.kubernetes.io/name": "vm-fetch", "app.kubernetes.io/managed-by": "vm-operator"});
    for (vm, collection, name, labels, whose) in [
        // Its settings, by their name and by their label.
        ("vm-operator", CONFIG_MAPS, "vm-operator", Value::Null, "the operator needs it"),
        ("another-name", CONFIG_MAPS, "another-name", operators.clone(), "the operator needs it"),
        ("vm-operator", SECRETS, "vm-operator-display-secret", operators.clone(), "the operator needs it"),
        ("vm-operator", SERVICES, "vm-operator", operators.clone(), "the operator needs it"),
        ("vm-operator", PODS, "vm-operator", operators, "the operator needs it"),
        ("vmop-fetch-0", PODS, "vmop-fetch-0", fetch, "the operator needs it"),
        ("a", CLAIMS, "a-system-disk", labels("vm-runner", "b"), "VM \"b\""),
        ("a", CONFIG_MAPS, "a", labels("vm-runner", "b"), "VM \"b\""),
    ] {
        let message = told(vm, collection, json!({"metadata": {"name": name, "labels": labels}})).await;
        assert!(message.contains(whose), "{whose:?} in {message:?} of {collection}/{name}");
        for word in ["delete", "remove"] {
            assert!(!message.contains(word), "{word:?} in {message:?} of {collection}/{name}");
        }
        assert!(message.contains("another name"), "{message:?}");
    }
    let message = told("a", CONFIG_MAPS, json!({"metadata": {"name": "a"}})).await;
    assert!(message.contains("kubectl delete configmap a"), "{message:?}");
}
