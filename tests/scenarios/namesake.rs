//! A VM that comes right after another of its name has gone.

use super::fake_api::{CONFIG_MAPS, PODS, SECRETS};
use super::world::World;
use kube::Resource;
use serde_json::json;
use std::time::Duration;
use vm_operator::api::VirtualMachine;
use vm_operator::operator::error::Retry;

#[tokio::test]
async fn what_an_earlier_vm_of_the_name_has_left_is_waited_for() {
    // As after `kubectl delete` and `kubectl apply` at once: the API server refuses an object with two controllers.
    for (path, name) in [(CONFIG_MAPS, "vm"), (SECRETS, "vm-display-secret")] {
        let world = World::new(json!({"state": "Running", "display": {"spice": {}}}));
        let labels = json!({"app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": "vm"});
        let kind = VirtualMachine::kind(&());
        let owner = json!({"apiVersion": "vmoperator.jdrupes.org/v1", "kind": kind, "name": "vm", "uid": "before", "controller": true});
        world.api.put(path, json!({"metadata": {"name": name, "labels": labels, "ownerReferences": [owner]}}));
        world.deliver();
        let error = world.reconcile().await.unwrap_err();
        assert_eq!(error.retry(), Retry::After(Duration::from_secs(1)), "{error}");
        let (reason, message) = world.ready();
        assert_eq!(reason, "Starting");
        assert!(message.contains(name) && message.contains("an earlier VM"), "{message}");
        assert!(world.api.get(PODS, "vm").is_none());
        assert_eq!(world.api.get(path, name).unwrap()["metadata"]["ownerReferences"][0]["uid"], "before");
        world.api.remove(path, name);
        world.settle().await;
        assert!(world.api.get(PODS, "vm").is_some(), "{path}");
    }
}
