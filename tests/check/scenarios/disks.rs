//! PVCs of disks: their selection, their growth, and rejected changes.

use super::fake_api::{CLAIMS, CONFIG_MAPS, Fault, PODS};
use super::world::{World, pass, request};
use serde_json::{Value, json};
use vm_operator::k8s::controller::Outcome;

fn machine(size: &str) -> Value {
    let spec = json!({"resources": {"requests": {"storage": size}}});
    let template = json!({"metadata": {"name": "system"}, "spec": spec});
    json!({"state": "Running", "disks": [{"volumeClaimTemplate": template}]})
}

fn resize(world: &World, size: &str) {
    let wanted = machine(size)["disks"].clone();
    world.edit(|machine| machine["disks"] = wanted);
}

/// A VM with a disk of 10Gi and a bound volume.
async fn bound() -> World {
    let world = World::new(machine("10Gi"));
    world.settle().await;
    world.api.change(CLAIMS, "vm-system-disk", |claim| {
        claim["status"] = json!({"phase": "Bound", "capacity": {"storage": "10Gi"}});
    });
    world.settle().await;
    world
}

fn note(world: &World) -> Option<(String, String)> {
    let conditions = world.vm().status.unwrap().conditions;
    conditions
        .into_iter()
        .find(|c| c.type_ == "DisksInSync")
        .map(|c| (c.reason, c.message))
}

#[tokio::test]
async fn bound_pvc_is_expanded_by_one_minimal_request() {
    let world = bound().await;
    let before = world.api.get(CLAIMS, "vm-system-disk").unwrap();
    resize(&world, "20Gi");
    let requests = world.step().await;
    assert_eq!(
        requests
            .iter()
            .filter(|r| **r == request("PATCH", CLAIMS, "vm-system-disk"))
            .count(),
        1,
        "{requests:?}"
    );
    let mut after = world.api.get(CLAIMS, "vm-system-disk").unwrap();
    assert_eq!(after["spec"]["resources"]["requests"]["storage"], "20Gi");
    after["spec"]["resources"]["requests"]["storage"] = "10Gi".into();
    assert_eq!(after["spec"], before["spec"]);
    world.deliver();
    assert_eq!(world.step().await, [""; 0]);
    assert_eq!(note(&world), None);
}

#[tokio::test]
async fn unbound_pvc_is_not_expanded_until_it_is_bound() {
    let world = World::new(machine("10Gi"));
    world.settle().await;
    resize(&world, "20Gi");
    assert!(
        !world
            .step()
            .await
            .contains(&request("PATCH", CLAIMS, "vm-system-disk"))
    );
    world.api.change(CLAIMS, "vm-system-disk", |claim| {
        claim["status"] = json!({"phase": "Bound"})
    });
    world.deliver();
    assert_eq!(
        world.step().await,
        [request("PATCH", CLAIMS, "vm-system-disk")]
    );
}

#[tokio::test]
async fn a_volume_that_is_larger_than_asked_for_need_not_grow() {
    let world = bound().await;
    world.api.change(CLAIMS, "vm-system-disk", |claim| {
        claim["status"]["capacity"]["storage"] = "100Gi".into()
    });
    world.deliver();
    resize(&world, "20Gi");
    assert!(
        !world
            .step()
            .await
            .contains(&request("PATCH", CLAIMS, "vm-system-disk"))
    );
    assert_eq!(note(&world), None);
}

#[tokio::test]
async fn a_smaller_disk_is_refused_with_the_reason_and_without_a_request() {
    let world = bound().await;
    resize(&world, "5Gi");
    assert!(
        world
            .step()
            .await
            .iter()
            .all(|request| !request.contains(CLAIMS))
    );
    let (reason, message) = note(&world).unwrap();
    assert_eq!(reason, "ShrinkRefused");
    assert!(
        message.contains("vm-system-disk") && message.contains("10Gi") && message.contains("5Gi"),
        "{message}"
    );
    world.settle().await;
    resize(&world, "10Gi");
    world.settle().await;
    assert_eq!(note(&world), None);
}

#[tokio::test]
async fn labels_and_annotations_of_a_template_are_added_to_its_present_claim() {
    let world = bound().await;
    let before = world.api.get(CLAIMS, "vm-system-disk").unwrap();
    let metadata = json!({"name": "system", "labels": {"tier": "gold", "app.kubernetes.io/instance": "other"},
        "annotations": {"backup": "daily"}});
    let mut wanted = machine("10Gi")["disks"].clone();
    wanted[0]["volumeClaimTemplate"]["metadata"] = metadata;
    world.edit(|machine| machine["disks"] = wanted);
    world.settle().await;
    let claim = world.api.get(CLAIMS, "vm-system-disk").unwrap();
    let mut expected = before["metadata"].clone();
    expected["labels"]["tier"] = "gold".into();
    expected["annotations"]["backup"] = "daily".into();
    expected["resourceVersion"] = claim["metadata"]["resourceVersion"].clone();
    assert_eq!(claim["metadata"], expected);
    assert_eq!(claim["spec"], before["spec"]);
}

#[tokio::test]
async fn immutable_pvc_change_is_reported_without_a_request() {
    let world = bound().await;
    world.api.change(CLAIMS, "vm-system-disk", |claim| {
        claim["spec"]["storageClassName"] = "slow".into()
    });
    world.deliver();
    world.settle().await;
    assert_eq!(note(&world), None, "the VM names no class");
    for (field, value, there) in [
        ("storageClassName", "fast", "slow"),
        ("volumeMode", "Filesystem", "Block"),
    ] {
        let mut wanted = machine("10Gi")["disks"].clone();
        wanted[0]["volumeClaimTemplate"]["spec"][field] = value.into();
        world.edit(|machine| machine["disks"] = wanted);
        assert!(
            world
                .step()
                .await
                .iter()
                .all(|request| !request.contains(CLAIMS))
        );
        let (reason, message) = note(&world).unwrap();
        assert_eq!(reason, "ClaimImmutable");
        assert!(
            [field, value, there, "vm-system-disk"]
                .iter()
                .all(|text| message.contains(text)),
            "{message}"
        );
        world.settle().await;
        resize(&world, "10Gi");
        world.settle().await;
        assert_eq!(note(&world), None);
    }
}

#[tokio::test]
async fn rejected_expansion_is_reported_and_retried_early_only_if_the_vm_changes() {
    let mut world = bound().await;
    resize(&world, "20Gi");
    // After the live read of the VM, the ConfigMap and the pod's annotation.
    world.api.fail(3, Fault::Refused(403));
    let requests = world.step().await;
    assert!(
        requests.contains(&request("PATCH", CLAIMS, "vm-system-disk")),
        "{requests:?}"
    );
    let (reason, message) = note(&world).unwrap();
    assert_eq!(reason, "ExpansionRefused");
    assert!(
        message.contains("20Gi") && message.contains("rejected by the test"),
        "{message}"
    );
    for _ in 0..2 {
        world.deliver();
        assert_eq!(world.step().await, [""; 0]);
        world.restart_operator();
    }
    world.edit(|machine| machine["powerdownTimeout"] = 30.into());
    world.settle().await;
    assert_eq!(note(&world), None);
    let size = world.api.get(CLAIMS, "vm-system-disk").unwrap()["spec"]["resources"]["requests"]["storage"].clone();
    assert_eq!(size, "20Gi");
}

#[tokio::test]
async fn rejected_expansion_is_retried_periodically_and_reported_once() {
    // A quota that is raised later.
    let mut world = bound().await;
    world.run();
    world.settle().await;
    let patched = request("PATCH", CLAIMS, "vm-system-disk");
    resize(&world, "20Gi");
    world.api.fail(3, Fault::Refused(403));
    assert!(world.step().await.contains(&patched));
    let condition = note(&world).unwrap();
    assert_eq!(condition.0, "ExpansionRefused");
    // An operator that was started since then has not requested it yet.
    for restarted in [false, true] {
        if restarted {
            world.restart_operator();
        }
        world.deliver();
        let outcome = world.reconcile().await.unwrap();
        let Outcome::Recheck(after) = outcome else {
            panic!("{outcome:?}")
        };
        assert!((300..=360).contains(&after.as_secs()), "{after:?}");
        assert_eq!(world.api.requests(), [""; 0]);
        pass(299);
        assert_eq!(world.step().await, [""; 0]);
        pass(62);
        world.api.fail(0, Fault::Refused(403));
        assert_eq!(
            world.step().await,
            [patched.as_str()],
            "its status is as it was"
        );
        assert_eq!(note(&world).as_ref(), Some(&condition));
        assert_eq!(world.step().await, [""; 0]);
    }
    pass(361);
    assert!(world.step().await.contains(&patched));
    assert_eq!(note(&world), None);
    world.settle().await;
}

#[tokio::test]
async fn of_several_refused_expansions_each_is_tried_again() {
    let disk = |name: &str, size: &str| {
        let spec = json!({"resources": {"requests": {"storage": size}}});
        json!({"volumeClaimTemplate": {"metadata": {"name": name}, "spec": spec}})
    };
    let disks = |size: &str| json!([disk("system", size), disk("data", size)]);
    let names = ["vm-system-disk", "vm-data-disk"];
    let world = World::new(json!({"state": "Running", "disks": disks("10Gi")}));
    world.settle().await;
    for name in names {
        let status = json!({"phase": "Bound", "capacity": {"storage": "10Gi"}});
        world
            .api
            .change(CLAIMS, name, |claim| claim["status"] = status);
    }
    world.settle().await;
    world.run();
    world.settle().await;
    world.api.reject_changes_of_claims(Some(403));
    world.edit(|machine| machine["disks"] = disks("20Gi"));
    world.settle().await;
    assert_eq!(note(&world).unwrap().1.lines().count(), 2);
    for _ in 0..2 {
        pass(361);
        assert_eq!(
            world.step().await,
            ["vm-data-disk", "vm-system-disk"].map(|name| request("PATCH", CLAIMS, name))
        );
    }
    world.api.reject_changes_of_claims(None);
    pass(361);
    world.settle().await;
    assert_eq!(note(&world), None);
}

#[tokio::test]
async fn claims_of_a_former_stateful_set_are_used_and_none_is_made_beside_them() {
    let world = World::new(machine("10Gi"));
    for name in ["system-disk-vm-0", "runner-data-vm-0"] {
        world.api.put(
            CLAIMS,
            json!({"metadata": {"name": name}, "spec": {"volumeMode": "Block"}}),
        );
    }
    world.settle().await;
    let names: Vec<_> = world
        .api
        .list(CLAIMS)
        .iter()
        .map(|c| c["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        names,
        [
            "runner-data-vm-0",
            "system-disk-vm-0",
            "vmop-image-repository"
        ]
    );
    let pod = world.api.get(PODS, "vm").unwrap()["spec"].clone();
    let claims: Vec<_> = pod["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|v| v["persistentVolumeClaim"]["claimName"].as_str())
        .collect();
    assert_eq!(claims, ["runner-data-vm-0", "system-disk-vm-0"]);
    // The disk's name in the pod does not change.
    assert_eq!(
        pod["containers"][0]["volumeDevices"][0]["devicePath"],
        "/dev/system-disk"
    );
}

#[tokio::test]
async fn a_claim_that_another_vm_has_from_a_stateful_set_is_not_used() {
    let world = World::new(machine("10Gi"));
    let labels =
        json!({"app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": "another"});
    world.api.put(
        CLAIMS,
        json!({"metadata": {"name": "system-disk-vm-0", "labels": labels}}),
    );
    world.settle().await;
    assert!(world.api.get(CLAIMS, "vm-system-disk").is_some());
}

#[tokio::test]
async fn pvc_deployed_with_an_application_is_used_by_the_vm() {
    let world = World::new(machine("10Gi"));
    // Labels of Helm and Argo CD.
    let labels =
        json!({"app.kubernetes.io/instance": "shop", "app.kubernetes.io/managed-by": "Helm"});
    world.api.put(
        CLAIMS,
        json!({"metadata": {"name": "vm-system-disk", "labels": labels}}),
    );
    world.settle().await;
    let pod = world
        .api
        .get(PODS, "vm")
        .unwrap_or_else(|| panic!("{:?}", world.ready()));
    assert!(
        pod["spec"]["volumes"]
            .to_string()
            .contains("vm-system-disk"),
        "{pod:#}"
    );
}

#[tokio::test]
async fn an_image_file_grows_when_its_volume_has_and_not_before() {
    let world = World::new(machine("10Gi"));
    let status = json!({"phase": "Bound", "capacity": {"storage": "10Gi"}});
    let spec = json!({"volumeMode": "Filesystem", "resources": {"requests": {"storage": "10Gi"}}});
    world.api.put(
        CLAIMS,
        json!({"metadata": {"name": "vm-system-disk"}, "spec": spec, "status": status}),
    );
    world.settle().await;
    let size = |world: &World| {
        let config = world.api.get(CONFIG_MAPS, "vm").unwrap()["data"]["config.yaml"].clone();
        let config: Value = serde_json::from_str(config.as_str().unwrap()).unwrap();
        config["/Runner"]["vm"]["drives"][0]["size"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(size(&world), "9676 MiB");
    resize(&world, "20Gi");
    world.settle().await;
    assert_eq!(
        size(&world),
        "9676 MiB",
        "the claim was requested to grow, and has not"
    );
    world.api.change(CLAIMS, "vm-system-disk", |claim| {
        claim["status"]["capacity"]["storage"] = "20Gi".into()
    });
    world.settle().await;
    assert_eq!(size(&world), "19353 MiB");
}

#[tokio::test]
async fn volume_mode_of_an_existing_pvc_is_used() {
    let world = World::new(machine("10Gi"));
    world.api.put(
        CLAIMS,
        json!({"metadata": {"name": "vm-system-disk"}, "spec": {"volumeMode": "Filesystem"}}),
    );
    world.settle().await;
    let container = world.api.get(PODS, "vm").unwrap()["spec"]["containers"][0].clone();
    assert_eq!(container["volumeDevices"], Value::Null);
    let mounts = container["volumeMounts"].as_array().unwrap();
    assert!(
        mounts
            .iter()
            .any(|mount| mount["mountPath"] == "/var/local/vm-disks/system-disk"),
        "{mounts:?}"
    );
}

/// The value of `VM_IDENTITY` in the pod.
fn identity(world: &World) -> Option<Value> {
    let pod = world.api.get(PODS, "vm").unwrap();
    let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let variable = env.iter().find(|env| env["name"] == "VM_IDENTITY")?;
    Some(serde_json::from_str(variable["value"].as_str().unwrap()).unwrap())
}

#[tokio::test]
async fn a_new_pod_has_the_uids_of_the_claims_of_its_disks() {
    let world = World::new(machine("10Gi"));
    world.settle().await;
    let uid = world.api.get(CLAIMS, "vm-system-disk").unwrap()["metadata"]["uid"].clone();
    assert!(uid.is_string());
    let claim = json!({"name": "vm-system-disk", "uid": uid});
    assert_eq!(
        identity(&world),
        Some(json!({"claims": {"/dev/system-disk": claim}}))
    );
}

#[tokio::test]
async fn a_pod_without_identity_is_not_replaced() {
    let mut world = World::new(machine("10Gi"));
    world.settle().await;
    world.api.change(PODS, "vm", |pod| {
        let env = pod["spec"]["containers"][0]["env"].as_array_mut().unwrap();
        env.retain(|env| env["name"] != "VM_IDENTITY");
    });
    assert_eq!(identity(&world), None);
    world.restart_operator();
    assert_eq!(world.step().await, [""; 0]);
    let conditions = world.vm().status.unwrap().conditions;
    assert!(conditions.iter().all(|c| c.type_ != "RestartRequired"));
}

#[tokio::test]
async fn a_pod_knows_whether_the_vm_has_run_since_its_runner_data_were_created() {
    let world = World::new(machine("10Gi"));
    world.settle().await;
    let used = |world: &World| identity(world).unwrap()["usedRunnerData"].clone();
    let created = |time: &str| {
        world.api.change(CLAIMS, "vm-runner-data", |claim| {
            claim["metadata"]["creationTimestamp"] = time.into()
        });
    };
    created("2025-12-31T00:00:00Z");
    assert_eq!(used(&world), json!(null));
    world.run();
    world.remove_pod();
    pass(1);
    world.settle().await;
    assert_eq!(used(&world), "vm-runner-data");
    // The PVC was deleted, and another one was created.
    created("2026-01-02T00:00:00Z");
    world.remove_pod();
    pass(1000);
    world.settle().await;
    assert_eq!(used(&world), json!(null));
}
