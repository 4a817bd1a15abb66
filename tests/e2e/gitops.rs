//! VMs with manifests in Git: applied repeatedly, and pruned. Also a VM on a named node, and the removal of the operator.

use super::harness::vm::{BOOT, SHUTDOWN, disk_labels, ready_reason, tiny, uid};
use super::harness::{console, e2e_with, kubectl};
use super::harness::{space::Space, vm::Vm};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Writes the object to a file in the directory of the namespace's manifests.
fn manifest(space: &Space, name: &str, object: &Value) -> PathBuf {
    let path = space.overlay_dir().join(name);
    fs::write(&path, object.to_string()).unwrap();
    path
}

async fn apply(space: &Space, path: &Path) {
    let path = path.display().to_string();
    space.kubectl(&["apply", "--filename", &path]).await;
}

#[test]
fn a_vm_from_git_keeps_its_state_and_its_disks() {
    let settings = json!({"guestShutdownRecord": "status"});
    e2e_with(1, "local", settings, async |space| {
        let nodes = kubectl::run(&["get", "nodes", "--output", "name"]).await;
        let node = nodes.trim().trim_start_matches("node/").to_owned();
        let disk = space.tiny_disk("vm", &disk_labels(space, "vm")).await;
        // The PVC for runner data has the default class, which binds it for a pod that is scheduled.
        let spec = json!({"spec": {"guestShutdownStops": true, "nodeName": node}});
        let file = manifest(space, "vm.json", &tiny(space, "vm", &spec));
        apply(space, &file).await;
        let vm = Vm {
            space,
            name: "vm".to_owned(),
            disk,
        };
        vm.booted().await;
        assert_eq!(vm.pod().unwrap()["spec"]["nodeName"], node);

        console::power_off(space, "vm").await;
        vm.pod_gone(SHUTDOWN).await;
        for _ in 0..5 {
            apply(space, &file).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let stopped = vm.now();
        assert_eq!(ready_reason(&stopped), "Stopped", "{stopped:#}");
        assert_eq!(stopped["spec"]["vm"]["state"], "Running");
        assert_eq!(space.pods.uids("vm").len(), 1, "{stopped:#}");

        let changed = json!({"spec": {"guestShutdownStops": true, "nodeName": node, "vm": {"powerdownTimeout": 21}}});
        let file = manifest(space, "vm.json", &tiny(space, "vm", &changed));
        apply(space, &file).await;
        vm.wait_for_reason("Running", BOOT).await;

        the_disks_survive(&vm).await;
    });
}

async fn the_disks_survive(vm: &Vm<'_>) {
    let space = vm.space;
    let claims = async || {
        let list = space.kubectl(&["get", "pvc", "--output", "json"]).await;
        let list: Value = serde_json::from_str(&list).unwrap();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let of_vm = items
            .into_iter()
            .filter(|claim| claim["metadata"]["labels"]["app.kubernetes.io/instance"] == "vm");
        of_vm.collect::<Vec<_>>()
    };
    let before: Vec<String> = claims().await.iter().map(uid).collect();
    assert_eq!(before.len(), 2, "runner data and one disk");
    for claim in claims().await {
        let options = &claim["metadata"]["annotations"]["argocd.argoproj.io/sync-options"];
        assert_eq!(options, "Prune=false,Delete=false", "{claim:#}");
    }
    // Another object with the VM's label stays in Git; the VM does not.
    let other = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "other", "labels": {"app.kubernetes.io/instance": "vm"}},
    });
    let file = manifest(space, "other.json", &other).display().to_string();
    let labels = ["--prune", "--selector", "app.kubernetes.io/instance=vm"];
    space
        .kubectl(&[&["apply", "--filename", &file], &labels[..]].concat())
        .await;
    let dir = space.overlay_dir().display().to_string();
    space.kubectl(&["delete", "--kustomize", &dir]).await;
    assert_eq!(claims().await.iter().map(uid).collect::<Vec<_>>(), before);
    assert!(!vm.now().is_null(), "the definition and the VM are there");
    kubectl::run(&["get", "crd", "vms.vmoperator.jdrupes.org"]).await;
}
