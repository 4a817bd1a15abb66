//! A restart of the operator with another configuration while VMs run.

use super::fake_api::{CLAIMS, CONFIG_MAPS, PODS, VMS};
use super::world::{World, one_disk, pass};
use serde_json::{Value, json};
use vm_operator::settings::{Section, Settings};

fn settings(reconciler: &str) -> Settings {
    let text =
        format!("\"/Manager\":\n  \"/Controller\":\n    \"/Reconciler\":\n      {reconciler}\n");
    Settings::parse(&text, "config.yaml").unwrap().0
}

/// Restarts the operator with that configuration.
fn reload(world: &mut World, reconciler: &str) {
    world.restart_operator();
    world.ctx.settings = settings(reconciler);
}

async fn running() -> World {
    let world = World::new(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    world
}

#[tokio::test]
async fn new_configuration_is_used_at_the_next_start_and_changes_no_running_vm() {
    let mut world = running().await;
    reload(
        &mut world,
        "runnerImage: {source: registry.example/runner:2}",
    );
    world.api.requests();
    assert_eq!(world.step().await, [""; 0], "the running VM is left alone");

    world.api.remove(PODS, "vm");
    world.settle().await;
    let pod = world.api.get(PODS, "vm").unwrap();
    assert_eq!(
        pod["spec"]["containers"][0]["image"],
        "registry.example/runner:2"
    );
}

/// The volume mode of the PVC of the disk, and whether the pod has the disk as a block device.
fn disk_form(world: &World) -> (Value, bool) {
    let claim = world.api.get(CLAIMS, "vm-system-disk").unwrap();
    let pod = world.api.get(PODS, "vm").unwrap();
    let devices = &pod["spec"]["containers"][0]["volumeDevices"];
    (claim["spec"]["volumeMode"].clone(), devices.is_array())
}

#[tokio::test]
async fn disk_without_a_volume_mode_gets_the_configured_one() {
    let with_mode = |mode: Value| {
        let mut machine = one_disk();
        let spec = json!({"resources": {"requests": {"storage": "1Gi"}}});
        machine["disks"][0]["volumeClaimTemplate"]["spec"] = spec;
        if !mode.is_null() {
            machine["disks"][0]["volumeClaimTemplate"]["spec"]["volumeMode"] = mode;
        }
        machine
    };
    for (setting, field, mode) in [
        ("{}", json!(null), "Block"),
        ("{volumeMode: Filesystem}", json!(null), "Filesystem"),
        ("{volumeMode: Filesystem}", json!("Block"), "Block"),
        ("{volumeMode: Block}", json!("Filesystem"), "Filesystem"),
    ] {
        let mut world = World::new(with_mode(field.clone()));
        world.ctx.settings = settings(&format!("diskPvc: {setting}"));
        world.settle().await;
        let expected = (json!(mode), mode == "Block");
        assert_eq!(disk_form(&world), expected, "{setting} {field}");
    }
}

#[tokio::test]
async fn new_pvc_for_runner_data_has_the_configured_size() {
    for (setting, size) in [("{}", "1Mi"), ("{size: 10 GiB}", "10Gi")] {
        let mut world = World::new(one_disk());
        world.ctx.settings = settings(&format!("runnerDataPvc: {setting}"));
        world.settle().await;
        let claim = world.api.get(CLAIMS, "vm-runner-data").unwrap();
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], size);
    }
}

#[tokio::test]
async fn new_default_volume_mode_changes_no_existing_claim_and_no_running_vm() {
    let mut world = running().await;
    reload(&mut world, "diskPvc: {volumeMode: Filesystem}");
    world.api.requests();
    assert_eq!(world.step().await, [""; 0], "the running VM is left alone");
    world.api.remove(PODS, "vm");
    world.settle().await;
    assert_eq!(disk_form(&world), (json!("Block"), true));
}

#[tokio::test]
async fn deleted_pending_claim_is_created_in_the_new_default_volume_mode() {
    let mut machine = one_disk();
    machine["disks"][0]["volumeClaimTemplate"]["spec"] =
        json!({"resources": {"requests": {"storage": "1Gi"}}});
    let mut world = World::new(machine);
    world.settle().await;
    world.api.change(CLAIMS, "vm-system-disk", |claim| {
        claim["status"] = json!({"phase": "Pending"})
    });
    assert_eq!(disk_form(&world), (json!("Block"), true));
    reload(&mut world, "diskPvc: {volumeMode: Filesystem}");
    world.settle().await;
    world.api.remove(CLAIMS, "vm-system-disk");
    world.api.remove(PODS, "vm");
    world.settle().await;
    assert_eq!(disk_form(&world), (json!("Filesystem"), false));
}

#[tokio::test]
async fn pod_privileges_change_only_at_the_next_start() {
    let mut world = running().await;
    let rights = |world: &World| {
        let pod = world.api.get(PODS, "vm").unwrap()["spec"].clone();
        let (own, all) = (
            &pod["containers"][0]["securityContext"],
            &pod["securityContext"],
        );
        (
            own["privileged"].clone(),
            all["runAsUser"].clone(),
            all["runAsNonRoot"].clone(),
        )
    };
    let before = rights(&world);
    assert_eq!(before, (json!(null), json!(107), json!(true)));
    for (settings, after) in [
        (
            "accelerator: {privileged: true}",
            (json!(true), json!(107), json!(true)),
        ),
        ("deviceAccess: root", (json!(null), json!(0), json!(null))),
        ("cpuOvercommit: 2", before),
    ] {
        let old = rights(&world);
        reload(&mut world, settings);
        world.api.requests();
        assert_eq!(
            world.step().await,
            [""; 0],
            "{settings}: the running VM is left alone"
        );
        assert_eq!(rights(&world), old, "{settings}");
        world.api.remove(PODS, "vm");
        world.settle().await;
        // A service that others delete repeatedly is created later.
        pass(60);
        world.settle().await;
        assert_eq!(rights(&world), after, "{settings}");
        world.run();
        world.settle().await;
    }
}

#[tokio::test]
async fn pod_and_pvc_settings_apply_unless_the_vm_overrides_them() {
    let pod_of = async |spec: Value| {
        let mut world = World::with_spec(spec);
        let reconciler = "podDefaults: {priorityClassName: vms, nodeSelector: {vms: all}, tolerations: [{key: vms}], \
                        imagePullSecrets: [{name: registry}]}\n      \
                        accelerator: {policy: kvm, kvmResource: devices.kubevirt.io/kvm}\n      \
                        imageRepository: {storageClassName: nfs, size: 5Gi, accessModes: [ReadWriteMany]}";
        world.ctx.settings = settings(reconciler);
        world.settle().await;
        (world.api.get(PODS, "vm").unwrap()["spec"].clone(), world)
    };
    let (pod, world) = pod_of(json!({"vm": one_disk()})).await;
    assert_eq!(
        (&pod["priorityClassName"], &pod["nodeSelector"]),
        (&json!("vms"), &json!({"vms": "all"}))
    );
    assert_eq!(pod["tolerations"][0]["key"], "vms");
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
    let resources = &pod["containers"][0]["resources"];
    assert_eq!(resources["limits"], json!({"devices.kubevirt.io/kvm": "1"}));
    assert_eq!(resources["requests"]["devices.kubevirt.io/kvm"], "1");
    let config = world.api.get(CONFIG_MAPS, "vm").unwrap()["data"]["config.yaml"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(config.contains(r#""accelerator": "kvm""#), "{config}");
    let claim = world.api.get(CLAIMS, "vmop-image-repository").unwrap()["spec"].clone();
    assert_eq!(
        (&claim["storageClassName"], &claim["accessModes"]),
        (&json!("nfs"), &json!(["ReadWriteMany"]))
    );
    assert_eq!(claim["resources"]["requests"]["storage"], "5Gi");

    let own =
        json!({"nodeSelector": {"vms": "mine"}, "priorityClassName": "mine", "vm": one_disk()});
    let (pod, _) = pod_of(own).await;
    assert_eq!(
        (&pod["priorityClassName"], &pod["nodeSelector"]),
        (&json!("mine"), &json!({"vms": "mine"}))
    );
}

#[tokio::test]
async fn an_image_repository_that_is_not_to_be_made_is_not_made() {
    let mut world = World::new(one_disk());
    world.ctx.settings = settings("imageRepository: {create: false}");
    world.settle().await;
    assert_eq!(world.api.get(CLAIMS, "vmop-image-repository"), None);
    assert_eq!(world.ready().0, "Starting");
}

/// The data of the VM's ConfigMap without the runner's own file.
fn logging(world: &World) -> Option<String> {
    let config_map = world.api.get(CONFIG_MAPS, "vm").unwrap();
    config_map["data"]["logging.properties"]
        .as_str()
        .map(str::to_owned)
}

#[tokio::test]
async fn the_config_map_keeps_how_logging_is_configured_and_no_vm_restarts_by_it() {
    let mut world = running().await;
    assert_eq!(logging(&world), None, "no value is set");
    let pod = world.api.get(PODS, "vm").unwrap()["metadata"]["uid"].clone();
    // Lines without effect are kept, too.
    let lines = "handlers=java.util.logging.ConsoleHandler\norg.jgrapes.level=FINE\n";
    reload(&mut world, &format!("loggingProperties: {}", json!(lines)));
    world.settle().await;
    assert_eq!(logging(&world).as_deref(), Some(lines));
    // The values of the VM take precedence.
    world.edit(|_| {});
    world.api.change(VMS, "vm", |vm| {
        vm["spec"]["loggingProperties"] = ".level=FINE".into()
    });
    world.settle().await;
    assert_eq!(logging(&world).as_deref(), Some(".level=FINE"));
    world.edit(|_| {});
    world.api.change(VMS, "vm", |vm| {
        drop(
            vm["spec"]
                .as_object_mut()
                .unwrap()
                .remove("loggingProperties"),
        )
    });
    world.settle().await;
    assert_eq!(
        logging(&world).as_deref(),
        Some(lines),
        "those of the settings again"
    );
    reload(&mut world, "cpuOvercommit: 2");
    world.settle().await;
    assert_eq!(logging(&world), None, "no value is set any more");
    assert_eq!(world.api.get(PODS, "vm").unwrap()["metadata"]["uid"], pod);
}
