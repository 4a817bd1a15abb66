//! The definitions and their defaults. All overlays are accepted.

use crate::apiserver::world::{World, root};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::Api;
use serde_json::{Value, json};
use vm_operator::api::vm::conditions;
use vm_operator::api::{peerpod, sip};
use vm_operator::settings::peerpod::PeerPodSettings;
use vm_operator::settings::sip::SipSettings;
use vm_operator::settings::{Section, Settings};

/// The directories for `kubectl apply -k`, without those of monitoring, which need the kinds of the Prometheus Operator.
pub fn kustomizations() -> Vec<String> {
    let mut found = vec!["examples/takeover".to_owned()];
    add_kustomizations("deploy", &mut found);
    found
}

fn add_kustomizations(folder: &str, found: &mut Vec<String>) {
    let path = root().join(folder);
    let text = std::fs::read_to_string(path.join("kustomization.yaml"));
    if text.is_ok_and(|text| text.contains("kind: Kustomization\n")) {
        found.push(folder.to_owned());
    }
    for entry in std::fs::read_dir(path).unwrap().map(Result::unwrap) {
        if entry.path().is_dir() && entry.file_name() != "monitoring" {
            let folder = format!("{folder}/{}", entry.file_name().display());
            add_kustomizations(&folder, found);
        }
    }
}

#[tokio::test]
async fn the_definitions_are_established_with_all_columns() {
    let world = World::new("crd").await;
    let crds = Api::<CustomResourceDefinition>::all(world.client.clone());
    let crd = crds.get("vms.vmoperator.jdrupes.org").await.unwrap();
    let columns = crd.spec.versions[0]
        .additional_printer_columns
        .iter()
        .flatten();
    let columns: Vec<_> = columns.map(|column| column.name.as_str()).collect();
    assert_eq!(
        columns,
        [
            "State",
            "Status",
            "Booted",
            "Acceleration",
            "CPUs",
            "RAM",
            "Node",
            "IP",
            "Age",
            "Message"
        ]
    );
}

#[tokio::test]
async fn defaults_equal_the_java_defaults_except_the_image() {
    let world = World::new("defaults").await;
    let vm = world
        .create_dry(
            &json!({"vm": {"networks": [{"tap": {}}, {"user": null, "tap": {"mac": null}}]}}),
        )
        .await
        .unwrap();
    let spec = &vm["spec"];
    assert_eq!(spec["image"], Value::Null);
    assert_eq!(
        (
            &spec["guestShutdownStops"],
            &spec["runnerTemplate"],
            &spec["pools"]
        ),
        (&json!(false), &json!({"update": true}), &json!([]))
    );
    let tap = json!({"tap": {"device": "virtio-net", "bridge": "br0"}});
    let display =
        json!({"outputs": 1, "spice": {"port": 5900, "usbRedirects": 2, "generateSecret": true}});
    let machine = json!({
        "state": "Stopped", "useTpm": false, "firmware": "uefi", "bootMenu": false, "powerdownTimeout": 900,
        "cpuModel": "host", "maximumRam": "1G", "rtcBase": "utc", "rtcClock": "rt", "disks": [],
        "networks": [tap, tap], "display": display,
    });
    assert_eq!(spec["vm"], machine);
    let initial = vm["status"]["conditions"].as_array().unwrap();
    assert_eq!(initial.len(), conditions::INITIAL.len() + 1);
    let ready = initial.last().unwrap();
    let (type_, status) = (&ready["type"], &ready["status"]);
    assert_eq!((type_, status), (&json!("Ready"), &json!("Unknown")));
    assert_eq!(ready["reason"], "NoOperator");
    assert_eq!(
        (&vm["status"]["ram"], &vm["status"]["cpus"]),
        (&json!("0"), &json!(0))
    );
}

#[tokio::test]
async fn the_fixtures_of_the_golden_files_are_admitted() {
    let world = World::new("fixtures").await;
    for name in ["full", "smallest"] {
        let path = root().join(format!("tests/check/golden/{name}.yaml"));
        let object: Value =
            serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        world
            .create_dry(&object["spec"])
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[tokio::test]
async fn every_overlay_is_admitted() {
    let world = World::new("overlays").await;
    let overlays = kustomizations();
    for named in ["local", "local-path", "rook-ceph", "privileged", "dev"] {
        assert!(
            overlays.contains(&format!("deploy/overlays/{named}")),
            "{overlays:?}"
        );
    }
    for overlay in overlays {
        let objects = world.kustomize(&overlay);
        for object in &objects {
            // `kubectl delete --kustomize` would delete all VMs and disks with it.
            assert!(
                !["Namespace", "CustomResourceDefinition"]
                    .iter()
                    .any(|kind| object["kind"] == *kind),
                "{overlay}: {object}"
            );
            world
                .dry_run_apply(object)
                .await
                .unwrap_or_else(|e| panic!("{overlay}: {}: {e}", object["kind"]));
            if let Some(settings) = object["data"]["config.yaml"].as_str() {
                let notes = match object["metadata"]["name"].as_str().unwrap() {
                    peerpod::names::MANAGER => {
                        PeerPodSettings::parse(settings, &overlay).unwrap().1
                    }
                    sip::names::MANAGER => SipSettings::parse(settings, &overlay).unwrap().1,
                    _ => Settings::parse(settings, &overlay).unwrap().1,
                };
                assert!(notes.is_empty(), "{overlay}: {notes:?}");
            }
        }
    }
    let repository = |overlay: &str| {
        let objects = world.kustomize(overlay);
        objects
            .into_iter()
            .find(|object| object["kind"] == "PersistentVolumeClaim")
            .unwrap()["spec"]
            .clone()
    };
    let base =
        json!({"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "100Gi"}}});
    assert_eq!(repository("deploy"), base);
    for (overlay, mode, class) in [
        ("local-path", "ReadWriteOnce", "local-path"),
        ("rook-ceph", "ReadWriteMany", "rook-cephfs"),
    ] {
        let patched = repository(&format!("deploy/overlays/{overlay}"));
        assert_eq!(
            (&patched["accessModes"], &patched["storageClassName"]),
            (&json!([mode]), &json!(class))
        );
        // The operator creates the same PVC if the manifest is left out.
        let objects = world.kustomize(&format!("deploy/overlays/{overlay}"));
        let mut texts = objects
            .iter()
            .filter_map(|object| object["data"]["config.yaml"].as_str());
        let (settings, _) = Settings::parse(texts.next().unwrap(), overlay).unwrap();
        let created = settings.reconciler.image_repository;
        assert_eq!(created.access_modes, [mode]);
        assert_eq!(created.storage_class_name.as_deref(), Some(class));
        assert_eq!(
            created.size.to_quantity(),
            patched["resources"]["requests"]["storage"]
        );
    }
}

#[tokio::test]
async fn the_component_without_device_plugin_removes_the_plugin_and_its_setting() {
    let world = World::new("without-device-plugin").await;
    let kinds = |objects: &[Value]| -> Vec<String> {
        let kinds = objects.iter().map(|object| object["kind"].to_string());
        kinds.collect()
    };
    let kvm_resource = |objects: &[Value]| {
        let config_map = objects.iter().find(|object| object["kind"] == "ConfigMap");
        let text = config_map.unwrap()["data"]["config.yaml"].as_str().unwrap();
        let (settings, _) = Settings::parse(text, "f").unwrap();
        settings.reconciler.accelerator.kvm_resource
    };
    let with_component = |resource: &str| {
        // kustomize requires relative paths below one root.
        let dir = tempfile::tempdir_in(root().join("target")).unwrap();
        let text = format!(
            "resources: [../../{resource}]\ncomponents: [../../deploy/components/without-device-plugin]\n"
        );
        std::fs::write(dir.path().join("kustomization.yaml"), text).unwrap();
        world.kustomize(&dir.path().display().to_string())
    };
    let cluster = world.kustomize("deploy/cluster");
    let (mut expected, reduced) = (kinds(&cluster), kinds(&with_component("deploy/cluster")));
    assert!(
        expected.contains(&"\"DaemonSet\"".to_owned()),
        "{expected:?}"
    );
    expected.retain(|kind| !["\"DaemonSet\"", "\"ServiceAccount\""].contains(&kind.as_str()));
    assert_eq!(reduced, expected);

    let overlay = world.kustomize("deploy/overlays/local");
    assert_eq!(
        kvm_resource(&overlay).as_deref(),
        Some("vmoperator.jdrupes.org/kvm-if-present")
    );
    let reduced = with_component("deploy/overlays/local");
    assert_eq!(kvm_resource(&reduced), None);
    assert_eq!(kinds(&reduced), kinds(&overlay));
}
