//! A disk that is a copy of another PVC.

use super::fake_api::{CLAIMS, PODS, VMS};
use super::world::World;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use std::time::Duration;
use vm_operator::k8s::controller::Outcome;

const SOURCE: &str = "golden-system-disk";

fn machine(source: &str) -> Value {
    let template = json!({"metadata": {"name": "system"}, "spec": {"volumeMode": "Filesystem", "resources": {"requests": {"storage": "1Gi"}}}});
    json!({"state": "Running", "disks": [{"volumeClaimTemplate": template, "source": {"pvc": {"name": source}}}]})
}

/// The operator knows all VMs. Returns the VM's condition `Ready` after the next reconciles.
async fn settle(world: &World) -> (String, String) {
    world.ctx.vms.watched(&Event::Init);
    for vm in world.api.list(VMS) {
        let vm = serde_json::from_value(vm).unwrap();
        world.ctx.vms.watched(&Event::InitApply(vm));
    }
    world.ctx.vms.watched(&Event::InitDone);
    world.settle().await;
    world.ready()
}

async fn waits(world: &World, reason: &str, text: &str) {
    let (shown, message) = settle(world).await;
    assert_eq!(shown, reason, "{message}");
    assert!(message.contains(text), "{message}");
    assert_eq!(world.api.get(PODS, "vm"), None);
    let outcome = world.reconcile().await.unwrap();
    assert_eq!(outcome, Outcome::Recheck(Duration::from_secs(10)));
}

fn put_pod(world: &World, read_only: bool) {
    let volume =
        json!({"name": "v", "persistentVolumeClaim": {"claimName": SOURCE, "readOnly": read_only}});
    let (metadata, spec) = (
        json!({"name": "backup", "namespace": "ns", "uid": "backup"}),
        json!({"volumes": [volume]}),
    );
    world.api.put(
        PODS,
        json!({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}),
    );
}

/// The VM of the source. Its disk has contents, or is filled from another PVC.
fn put_vm(world: &World, state: &str, is_filled: bool) {
    let mut vm = world.api.get(VMS, "vm").unwrap();
    vm["metadata"] = json!({"name": "golden", "namespace": "ns", "uid": "golden", "generation": 1});
    vm["spec"]["vm"]["state"] = state.into();
    vm["status"] = json!({});
    if is_filled {
        vm["spec"]["vm"]["disks"][0]["source"].take();
    }
    world.api.put(VMS, vm);
}

#[tokio::test]
async fn a_copy_waits_until_nothing_can_write_to_its_source() {
    let world = World::new(machine(SOURCE));
    waits(&world, "SourceMissing", SOURCE).await;
    world.edit(|machine| machine["state"] = "Stopped".into());
    assert_eq!(settle(&world).await.0, "Stopped");
    world.edit(|machine| machine["state"] = "Running".into());
    let claim = |phase: &str| json!({"metadata": {"name": SOURCE, "namespace": "ns", "uid": "source"}, "spec": {"volumeMode": "Block"}, "status": {"phase": phase}});
    world.api.put(CLAIMS, claim("Pending"));
    waits(&world, "SourceMissing", SOURCE).await;
    world.api.put(CLAIMS, claim("Bound"));
    put_pod(&world, false);
    waits(&world, "SourceInUse", "stop pod \"backup\"").await;
    put_pod(&world, true);
    put_vm(&world, "Stopped", false);
    waits(&world, "SourceMissing", "start VM \"golden\"").await;
    put_vm(&world, "Running", true);
    waits(&world, "SourceInUse", "stop VM \"golden\"").await;
    put_vm(&world, "Stopped", true);
    let (reason, message) = settle(&world).await;
    assert_eq!(reason, "ImportingDisk", "{message}");
    assert!(message.contains(SOURCE), "{message}");
    let pod = world.api.get(PODS, "vm").unwrap();
    let mounted = pod["spec"]["volumes"].as_array().unwrap().last().unwrap();
    assert_eq!(
        mounted["persistentVolumeClaim"],
        json!({"claimName": SOURCE, "readOnly": true})
    );
    // It keeps the VM's labels for NetworkPolicies, and can nothing but fill the disk.
    let spec = &pod["spec"];
    assert_eq!(
        pod["metadata"]["labels"]["app.kubernetes.io/instance"],
        "vm"
    );
    assert_eq!(spec["automountServiceAccountToken"], false);
    let gate = json!([{"conditionType": "vmoperator.jdrupes.org/never-ready"}]);
    assert_eq!(spec["readinessGates"], gate);
    assert_eq!(
        (&spec["hostNetwork"], &spec["serviceAccountName"]),
        (&Value::Null, &Value::Null)
    );
    let container = &spec["containers"][0];
    let rights = &container["securityContext"];
    assert_eq!(
        (&rights["privileged"], &rights["capabilities"]),
        (&Value::Null, &json!({"drop": ["ALL"]}))
    );
    let path = &container["volumeDevices"][0]["devicePath"];
    let from = format!("--from={}", path.as_str().unwrap());
    assert!(container["args"].as_array().unwrap().contains(&from.into()));
    // A writer that comes later does not end the import, which protects itself.
    put_pod(&world, false);
    assert_eq!(settle(&world).await.0, "ImportingDisk");
}

#[tokio::test]
async fn a_disk_of_the_vm_itself_is_no_source() {
    for own in ["vm-system-disk", "vm-runner-data"] {
        let world = World::new(machine(own));
        let (reason, message) = settle(&world).await;
        assert_eq!(reason, "InvalidSpec", "{message}");
        assert!(message.contains("belongs to the VM itself"), "{message}");
    }
}
