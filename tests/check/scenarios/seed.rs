//! The cloud-init seed: its instance ID, and its parts from Secrets.

use super::fake_api::{CONFIG_MAPS, PODS, VMS};
use super::world::{World, one_disk};
use serde_json::{Value, json};

fn with(cloud_init: Value) -> World {
    World::with_spec(json!({"cloudInit": cloud_init, "vm": one_disk()}))
}

/// `cloudInit` in the runner's configuration.
fn seed(world: &World) -> Value {
    let config_map = world.api.get(CONFIG_MAPS, "vm").unwrap();
    let config: Value =
        serde_json::from_str(config_map["data"]["config.yaml"].as_str().unwrap()).unwrap();
    config["/Runner"]["cloudInit"].clone()
}

fn instance(world: &World) -> String {
    seed(world)["metaData"]["instance-id"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn set(world: &World, cloud_init: Value) {
    world.edit(|_| {});
    world
        .api
        .change(VMS, "vm", |vm| vm["spec"]["cloudInit"] = cloud_init);
}

/// A VM with the ConfigMap that the Java VM-Operator has created for it, or for another VM with the same name.
fn of_the_reference(cloud_init: Value, owner: &str) -> World {
    let world = with(cloud_init);
    let labels = json!({"app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": "vm"});
    let owner = json!({
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "name": "vm", "uid": owner, "controller": false,
    });
    let text = "\"/Runner\":\n  cloudInit:\n    metaData: {\"instance-id\":\"v17\",\"local-hostname\":\"vm\"}\n    userData: {}\n";
    let metadata = json!({"name": "vm", "labels": labels, "ownerReferences": [owner]});
    world.api.put(
        CONFIG_MAPS,
        json!({"metadata": metadata, "data": {"config.yaml": text, "logging.properties": ""}}),
    );
    world
}

#[tokio::test]
async fn the_instance_stays_over_restarts_and_edits_of_anything_else() {
    let mut world = with(json!({"userData": {"users": ["me"]}}));
    world.settle().await;
    let first = instance(&world);
    world.edit(|machine| machine["maximumRam"] = "4Gi".into());
    world.settle().await;
    for state in ["Stopped", "Running"] {
        world.edit(|machine| machine["state"] = state.into());
        world.settle().await;
        world.api.remove(PODS, "vm");
        world.restart_operator();
        world.settle().await;
    }
    world.api.remove(CONFIG_MAPS, "vm");
    world.settle().await;
    assert_eq!(instance(&world), first);
    assert_eq!(seed(&world)["metaData"]["local-hostname"], "vm");
    set(&world, json!({"userData": {"users": ["you"]}}));
    world.settle().await;
    assert_ne!(instance(&world), first);
}

#[tokio::test]
async fn another_vm_with_the_same_seed_is_another_instance() {
    let (world, previous) = (with(json!({})), with(json!({})));
    previous
        .api
        .change(VMS, "vm", |vm| vm["metadata"]["uid"] = "another".into());
    world.settle().await;
    previous.settle().await;
    assert_ne!(instance(&world), instance(&previous));
}

#[tokio::test]
async fn a_vm_that_is_taken_over_keeps_its_instance_until_its_seed_changes() {
    let mut world = of_the_reference(json!({"userData": {"users": ["me"]}}), "vm-uid");
    world.settle().await;
    assert_eq!(instance(&world), "v17");
    world.edit(|machine| machine["maximumRam"] = "4Gi".into());
    world.restart_operator();
    world.settle().await;
    assert_eq!(instance(&world), "v17");
    world.restart_operator();
    assert_eq!(world.step().await, [""; 0]);
    set(&world, json!({"userData": {"users": ["you"]}}));
    world.settle().await;
    let changed = instance(&world);
    assert_ne!(changed, "v17");
    // The previous value is lost. Nothing restores it.
    world.restart_operator();
    world.edit(|machine| machine["currentCpus"] = 1.into());
    world.settle().await;
    assert_eq!(instance(&world), changed);
}

#[tokio::test]
async fn java_instance_identity_is_not_retained_if_configured_or_of_a_previous_vm() {
    let world = of_the_reference(json!({"metaData": {"instance-id": "mine"}}), "vm-uid");
    world.settle().await;
    assert_eq!(instance(&world), "mine");
    let world = of_the_reference(json!({}), "another-uid");
    world.settle().await;
    assert_ne!(instance(&world), "v17");
}

#[tokio::test]
async fn secret_seed_is_mounted_and_copied_to_no_other_object() {
    let from = |key: &str| json!({"secretKeyRef": {"name": "guest", "key": key}});
    let mut world =
        with(json!({"userDataFrom": from("cloud-config"), "networkConfigFrom": from("netplan")}));
    world.settle().await;
    let seed = seed(&world);
    assert_eq!(seed["userDataFile"], "/etc/opt/vmrunner-seed/user-data");
    assert_eq!(
        seed["networkConfigFile"],
        "/etc/opt/vmrunner-seed/network-config"
    );
    assert!(
        seed["userData"].is_null() && seed["networkConfig"].is_null(),
        "{seed}"
    );
    let pod = world.api.get(PODS, "vm").unwrap();
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let volume = volumes
        .iter()
        .find(|volume| volume["name"] == "seed")
        .unwrap();
    let source = |key: &str, path: &str| json!({"secret": {"name": "guest", "items": [{"key": key, "path": path}]}});
    let sources = json!([
        source("cloud-config", "user-data"),
        source("netplan", "network-config")
    ]);
    assert_eq!(
        volume["projected"],
        json!({"defaultMode": 0o440, "sources": sources})
    );
    let mounts = pod["spec"]["containers"][0]["volumeMounts"]
        .as_array()
        .unwrap();
    let mount = json!({"name": "seed", "mountPath": "/etc/opt/vmrunner-seed", "readOnly": true});
    assert!(mounts.contains(&mount), "{mounts:?}");
    // Its content is not read: the operator reads only display Secrets.
    world.restart_operator();
    assert_eq!(world.step().await, [""; 0]);
}

/// The generated `instance-id` in the environment of the pod.
fn generated(world: &World) -> Option<String> {
    let pod = world.api.get(PODS, "vm").unwrap();
    let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let variable = env.iter().find(|env| env["name"] == "VM_IDENTITY")?;
    let identity: Value = serde_json::from_str(variable["value"].as_str().unwrap()).unwrap();
    identity["generatedInstance"]["id"]
        .as_str()
        .map(str::to_owned)
}

#[tokio::test]
async fn a_pod_names_a_generated_instance_and_no_configured_one() {
    let world = with(json!({"userData": {"users": ["me"]}}));
    world.settle().await;
    assert_eq!(generated(&world), Some(instance(&world)));
    let world = with(json!({"metaData": {"instance-id": "mine"}}));
    world.settle().await;
    assert_eq!(
        (instance(&world).as_str(), generated(&world)),
        ("mine", None)
    );
    let world = of_the_reference(json!({}), "vm-uid");
    world.settle().await;
    assert_eq!(generated(&world).as_deref(), Some("v17"));
}
