//! The definitions, their defaults, and that every example and overlay is admitted.

use crate::world::World;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::Api;
use serde_json::{Value, json};
use std::path::Path;
use vm_operator::api::conditions;

/// What is applied with `kubectl apply -k`.
pub const OVERLAYS: &[&str] = &[
    "deploy/overlays/local",
    "deploy/overlays/dev",
    "deploy/overlays/privileged",
    "deploy/device-plugin",
    "examples/local-path",
    "examples/takeover",
];

#[tokio::test]
async fn the_definitions_are_established_with_all_columns() {
    let world = World::new("crd").await;
    let crds = Api::<CustomResourceDefinition>::all(world.client.clone());
    let crd = crds.get("vms.vmoperator.jdrupes.org").await.unwrap();
    let columns = crd.spec.versions[0].additional_printer_columns.iter().flatten();
    let columns: Vec<_> = columns.map(|column| column.name.as_str()).collect();
    assert_eq!(columns, ["State", "Status", "Running", "Booted", "CPUs", "RAM", "Node", "IP", "Age"]);
}

#[tokio::test]
async fn defaults_are_the_references_but_for_the_image() {
    let world = World::new("defaults").await;
    let vm = world
        .create_dry(&json!({"vm": {"networks": [{"tap": {}}, {"user": null, "tap": {"mac": null}}]}}))
        .await
        .unwrap();
    let spec = &vm["spec"];
    assert_eq!(spec["image"], Value::Null);
    assert_eq!(
        (&spec["guestShutdownStops"], &spec["runnerTemplate"], &spec["pools"]),
        (&json!(false), &json!({"update": true}), &json!([]))
    );
    let tap = json!({"tap": {"device": "virtio-net", "bridge": "br0"}});
    let display = json!({"outputs": 1, "spice": {"port": 5900, "usbRedirects": 2, "generateSecret": true}});
    let machine = json!({
        "state": "Stopped", "useTpm": false, "firmware": "uefi", "bootMenu": false, "powerdownTimeout": 900,
        "cpuModel": "host", "maximumRam": "1G", "rtcBase": "utc", "rtcClock": "rt", "disks": [],
        "networks": [tap, tap], "display": display,
    });
    assert_eq!(spec["vm"], machine);
    assert_eq!(vm["status"]["conditions"].as_array().unwrap().len(), conditions::INITIAL.len());
    assert_eq!((&vm["status"]["ram"], &vm["status"]["cpus"]), (&json!("0"), &json!(0)));
}

#[tokio::test]
async fn every_example_is_admitted() {
    let world = World::new("examples").await;
    for directory in ["examples", "tests/golden"] {
        let entries = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(directory)).unwrap();
        for path in
            entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        {
            let text = std::fs::read_to_string(&path).unwrap();
            let object: Value = serde_saphyr::from_str(&text).unwrap();
            if object["kind"] == "VirtualMachine" {
                world.create_dry(&object["spec"]).await.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            }
        }
    }
}

#[tokio::test]
async fn every_overlay_is_admitted() {
    let world = World::new("overlays").await;
    for overlay in OVERLAYS {
        let objects = world.kustomize(overlay);
        for object in objects.iter().filter(|object| object["kind"] != "Namespace") {
            world.dry_run_apply(object).await.unwrap_or_else(|e| panic!("{overlay}: {}: {e}", object["kind"]));
        }
    }
    let repository = |overlay| {
        let objects = world.kustomize(overlay);
        objects.into_iter().find(|object| object["kind"] == "PersistentVolumeClaim").unwrap()["spec"].clone()
    };
    let base = json!({"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "100Gi"}}});
    assert_eq!(repository("deploy"), base);
    let patched = repository("examples/local-path");
    assert_eq!(
        (&patched["accessModes"], &patched["storageClassName"]),
        (&json!(["ReadWriteOnce"]), &json!("local-path"))
    );
}
