//! What only a real API server can tell: whether it takes our definitions, what they admit and refuse, what its merges
//! do, and what the operator makes there. Pods are made and never get a node.
//!
//! `make test-apiserver` runs it on the local cluster (`make cluster`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

mod settings;
mod world;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::path::Path;
use vm_operator::api::{VirtualMachine, conditions, names};
use world::{World, eventually};

fn machine(name: &str, spec: Value) -> VirtualMachine {
    let metadata = json!({"name": name});
    let (version, kind) = ("vmoperator.jdrupes.org/v1", "VirtualMachine");
    serde_json::from_value(json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})).unwrap()
}

/// Sends an object as a user wrote it: the typed one would already have the defaults.
async fn dry_run(world: &World, spec: &Value) -> Result<Value, kube::Error> {
    let metadata = json!({"name": "dry", "namespace": world.namespace});
    let (version, kind) = ("vmoperator.jdrupes.org/v1", "VirtualMachine");
    let object = json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec});
    let path = format!("/apis/vmoperator.jdrupes.org/v1/namespaces/{}/vms?dryRun=All", world.namespace);
    let request = http::Request::post(path).header("Content-Type", "application/json");
    world.client.request(request.body(serde_json::to_vec(&object).unwrap()).unwrap()).await
}

#[tokio::test]
async fn the_definitions_are_established_with_all_columns() {
    let world = World::new("crd").await;
    let crds = Api::<CustomResourceDefinition>::all(world.client.clone());
    let crd = crds.get("vms.vmoperator.jdrupes.org").await.unwrap();
    let columns = crd.spec.versions[0].additional_printer_columns.iter().flatten();
    let columns: Vec<_> = columns.map(|column| column.name.as_str()).collect();
    assert_eq!(columns, ["State", "Status", "Booted", "CPUs", "RAM", "Node", "IP", "Age"]);
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
                dry_run(&world, &object["spec"]).await.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            }
        }
    }
}

#[tokio::test]
async fn every_overlay_is_admitted() {
    let world = World::new("overlays").await;
    for overlay in ["deploy/overlays/local", "deploy/overlays/dev", "examples/local-path"] {
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

#[tokio::test]
async fn a_mistake_that_the_schema_sees_is_refused_with_its_field() {
    let world = World::new("refused").await;
    let vm = |machine: Value| json!({"vm": machine});
    let disk = |disk: Value| vm(json!({"disks": [disk]}));
    for (spec, field, words) in [
        (json!({}), "spec.vm", "Required"),
        (json!({"vm": {}, "image": {"version": "1"}}), "spec.image", "either source"),
        (json!({"vm": {}, "image": {"source": "a", "repository": "b", "path": "c"}}), "spec.image", "either source"),
        (vm(json!({"state": "Paused"})), "spec.vm.state", "Stopped"),
        (vm(json!({"firmware": "openfirmware"})), "spec.vm.firmware", "uefi-4m"),
        (vm(json!({"maximumCpus": 2, "cpuTopology": {"sockets": 2}})), "spec.vm", "either maximumCpus or cpuTopology"),
        (vm(json!({"maximumCpus": 0})), "spec.vm.maximumCpus", "greater than or equal to 1"),
        (vm(json!({"powerdownTimeout": -1})), "spec.vm.powerdownTimeout", "greater than or equal to 0"),
        (vm(json!({"networks": [{}]})), "spec.vm.networks[0]", "either tap or user"),
        (vm(json!({"networks": [{"tap": {}, "user": {}}]})), "spec.vm.networks[0]", "either tap or user"),
        (
            vm(json!({"networks": [{"user": {"forward": [{"port": 80, "guestPort": 80}]}}]})),
            "spec.vm.networks[0].user.forward[0].port",
            "1024",
        ),
        (disk(json!({})), "spec.vm.disks[0]", "either volumeClaimTemplate or cdrom"),
        (disk(json!({"cdrom": {}})), "spec.vm.disks[0].cdrom.image", "Required"),
        (
            disk(json!({"cdrom": {"image": ""}, "bootindex": -1})),
            "spec.vm.disks[0].bootindex",
            "greater than or equal to 0",
        ),
        (vm(json!({"display": {"spice": {"port": 70000}}})), "spec.vm.display.spice.port", "65535"),
        (json!({"vm": {}, "permissions": [{"may": ["start"]}]}), "spec.permissions[0]", "either user or role"),
        (
            json!({"vm": {}, "permissions": [{"user": "a", "may": ["fly"]}]}),
            "spec.permissions[0].may[0]",
            "takeConsole",
        ),
    ] {
        let error = dry_run(&world, &spec).await.expect_err(&spec.to_string()).to_string();
        assert!(error.contains(field) && error.contains(words), "{spec}: {error}");
    }
}

#[tokio::test]
async fn defaults_are_the_references_but_for_the_image() {
    let world = World::new("defaults").await;
    let vm = dry_run(&world, &json!({"vm": {"networks": [{"tap": {}}, {"user": null, "tap": {"mac": null}}]}}))
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
async fn operator_and_runner_write_their_own_conditions_and_only_to_the_vm_they_mean() {
    let world = World::new("managers").await;
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    let vm = vms.create(&PostParams::default(), &machine("vm", json!({"vm": {}}))).await.unwrap();
    let apply = async |manager: &str, type_: &str, version: &Option<String>| {
        let condition = json!({
            "type": type_, "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let (api, kind) = ("vmoperator.jdrupes.org/v1", "VirtualMachine");
        let metadata = match version {
            Some(version) => json!({"name": "vm", "resourceVersion": version}),
            None => json!({"name": "vm"}),
        };
        let body =
            json!({"apiVersion": api, "kind": kind, "metadata": metadata, "status": {"conditions": [condition]}});
        vms.patch_status("vm", &PatchParams::apply(manager).force(), &Patch::Apply(&body)).await
    };
    let first = vm.resource_version();
    apply(names::MANAGER_OPERATOR, conditions::READY, &first).await.unwrap();
    apply(names::MANAGER_RUNNER, conditions::RUNNING, &None).await.unwrap();
    let vm = apply(names::MANAGER_OPERATOR, conditions::READY, &None).await.unwrap();
    let conditions = vm.status.unwrap().conditions;
    assert_eq!(conditions.len(), 6, "{conditions:?}");
    for type_ in [conditions::READY, conditions::RUNNING] {
        assert!(conditions::is_true(&conditions, type_), "{type_}");
    }
    // Neither an object that has changed nor a namesake that came later is written by mistake.
    let error = apply(names::MANAGER_RUNNER, conditions::RUNNING, &first).await;
    assert!(matches!(error, Err(kube::Error::Api(status)) if status.code == 409));
}

/// A VM whose pod no node takes.
fn homeless(state: &str) -> VirtualMachine {
    let template = json!({"metadata": {"name": "system"}, "spec": {"resources": {"requests": {"storage": "1Mi"}}}});
    let machine_spec = json!({"state": state, "disks": [{"volumeClaimTemplate": template}]});
    machine("vm", json!({"nodeSelector": {"no-such": "node"}, "vm": machine_spec}))
}

async fn count<K>(client: &Client, namespace: &str) -> usize
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let of_vm = ListParams::default().labels("app.kubernetes.io/instance=vm");
    Api::<K>::namespaced(client.clone(), namespace).list(&of_vm).await.unwrap().items.len()
}

#[tokio::test]
async fn a_vm_becomes_its_objects_and_leaves_only_its_claims() {
    let world = World::new("objects").await;
    let operator = world.start_operator().await;
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    vms.create(&PostParams::default(), &homeless("Running")).await.unwrap();

    eventually("the VM is explained as Unschedulable", || async {
        let status = vms.get("vm").await.unwrap().status.unwrap();
        conditions::find(&status.conditions, conditions::READY).is_some_and(|ready| ready.reason == "Unschedulable")
    })
    .await;
    let pod = pods.get("vm").await.unwrap();
    assert!(pod.owner_references()[0].controller.unwrap());
    assert_eq!(count::<PersistentVolumeClaim>(&world.client, &world.namespace).await, 2);

    let body = json!({"spec": {"vm": {"state": "Stopped"}}});
    vms.patch("vm", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    eventually("the pod is gone", || async { pods.get_opt("vm").await.unwrap().is_none() }).await;
    eventually("the VM is stopped", || async {
        let status = vms.get("vm").await.unwrap().status.unwrap();
        conditions::find(&status.conditions, conditions::READY).is_some_and(|ready| ready.reason == "Stopped")
    })
    .await;
    let body = json!({"spec": {"vm": {"state": "Running"}}});
    vms.patch("vm", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    eventually("the pod is back", || async { pods.get_opt("vm").await.unwrap().is_some() }).await;

    vms.delete("vm", &DeleteParams::default()).await.unwrap();
    eventually("pod, ConfigMap and secret are gone", || async {
        let (client, namespace) = (&world.client, &world.namespace);
        count::<Pod>(client, namespace).await == 0
            && count::<ConfigMap>(client, namespace).await == 0
            && count::<Secret>(client, namespace).await == 0
    })
    .await;
    assert_eq!(count::<PersistentVolumeClaim>(&world.client, &world.namespace).await, 2);
    operator.stop().await;
}

#[tokio::test]
async fn an_operator_that_starts_over_settled_vms_writes_nothing() {
    let world = World::new("restart").await;
    let operator = world.start_operator().await;
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    vms.create(&PostParams::default(), &homeless("Running")).await.unwrap();
    eventually("the VM is settled", || async {
        let status = vms.get("vm").await.unwrap().status.unwrap();
        conditions::find(&status.conditions, conditions::READY).is_some_and(|ready| ready.reason == "Unschedulable")
    })
    .await;
    operator.stop().await;
    let operator = world.start_operator().await;
    // A change that the new operator makes shows that it has looked at everything before.
    vms.create(&PostParams::default(), &machine("second", json!({"vm": {}}))).await.unwrap();
    eventually("the second VM is seen", || async {
        let status = vms.get("second").await.unwrap().status.unwrap();
        conditions::find(&status.conditions, conditions::READY).is_some()
    })
    .await;
    let writes = operator.writes();
    assert!(
        !writes.is_empty() && writes.iter().all(|write| write.contains("second") || !write.contains("/vm")),
        "{writes:?}"
    );
    operator.stop().await;
}

#[tokio::test]
async fn the_pods_requests_follow_a_change_of_cpus() {
    let world = World::new("resize").await;
    let operator = world.start_operator().await;
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    vms.create(&PostParams::default(), &homeless("Running")).await.unwrap();
    let cpu = async |amount: &str| {
        let pod = pods.get_opt("vm").await.unwrap();
        let resources = pod.and_then(|pod| pod.spec?.containers.into_iter().next()?.resources?.requests);
        resources.is_some_and(|requests| requests["cpu"].0 == amount)
    };
    eventually("the pod asks for half a CPU", || cpu("500m")).await;
    let uid = pods.get("vm").await.unwrap().uid();
    let body = json!({"spec": {"vm": {"currentCpus": 2}}});
    vms.patch("vm", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    eventually("the pod asks for a whole one", || cpu("1")).await;
    assert_eq!(pods.get("vm").await.unwrap().uid(), uid);
    // Once it is asked for, it is not asked for again.
    eventually("the change is announced", || async {
        operator.writes().iter().any(|write| write.ends_with("/pods/vm"))
    })
    .await;
    assert_eq!(operator.writes().iter().filter(|write| write.ends_with("/resize")).count(), 1);
    let status = vms.get("vm").await.unwrap().status.unwrap();
    assert_eq!(conditions::find(&status.conditions, conditions::RESOURCES_IN_SYNC), None);
    operator.stop().await;
}
