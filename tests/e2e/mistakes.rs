//! Invalid configurations: `kubectl describe vm` shows the error, its place, and the next step.

use super::harness::vm::{condition, tiny};
use super::harness::{Space, e2e, eventually, kubectl};
use serde_json::{Value, json};

/// Creates the VM and waits for its condition with that reason and all of those texts, and for a warning with the same
/// reason.
async fn is_explained(space: &Space, name: &str, changes: Value, reason: &str, texts: &[&str]) {
    kubectl::create(&tiny(space, name, &changes)).await.unwrap();
    eventually(&format!("VM {name} is explained"), 60, async || {
        let vm = space.vms.get(name).unwrap_or_default();
        let ready = condition(&vm, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        let is_reported = ready["status"] == "False"
            && ready["reason"] == reason
            && texts.iter().all(|w| message.contains(w));
        let output = space.kubectl(&["describe", "vm", name]).await;
        let events = output
            .split_once("\nEvents:")
            .map(|(_, events)| events)
            .unwrap_or_default();
        let warned = events
            .lines()
            .any(|line| line.contains("Warning") && line.contains(reason));
        if is_reported && warned && output.contains(message) {
            Ok(())
        } else {
            Err(output)
        }
    })
    .await;
}

#[test]
fn each_mistake_is_explained_with_its_place_and_a_next_step() {
    e2e(1, async |space| {
        let image =
            json!({"spec": {"image": {"source": "localhost/no/such:1"}, "vm": {"disks": null}}});
        is_explained(
            space,
            "image",
            image,
            "ImagePullFailed",
            &["localhost/no/such:1", "correct spec.image"],
        )
        .await;

        // No volume has these labels.
        let step = "kubectl get pvc claim-system-disk -o yaml";
        is_explained(
            space,
            "claim",
            json!({}),
            "ClaimPending",
            &["\"claim-system-disk\"", "create a PersistentVolume", step],
        )
        .await;

        // Admission rejects this.
        let size = json!({"spec": {"vm": {"maximumRam": "lots", "disks": null}}});
        let error = kubectl::create(&tiny(space, "size", &size))
            .await
            .unwrap_err();
        assert!(
            error.contains("spec.vm.maximumRam: ") && error.contains("write a size such as 512Mi"),
            "{error}"
        );

        claim_of_another(space, "taken-system-disk").await;
        let texts = [
            "spec.vm.disks[0]",
            "taken-system-disk",
            "belongs to VM \"another\"",
            "another name",
        ];
        is_explained(space, "taken", json!({}), "InvalidSpec", &texts).await;
        assert!(
            space.pods.uids("taken").is_empty(),
            "no object is created for an invalid VM"
        );
    });
}

/// The provisioner of the local cluster, like some of others, ignores `dataSource`.
#[test]
fn a_disk_that_is_no_copy_of_its_data_source_is_explained_and_does_not_boot() {
    e2e(1, async |space| {
        let template = |spec: Value| {
            let mut whole = json!({
                "volumeMode": "Filesystem",
                "resources": {"requests": {"storage": "64Mi"}},
            });
            let fields = whole.as_object_mut().unwrap();
            fields.extend(spec.as_object().unwrap().clone());
            whole
        };
        let golden = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"namespace": space.name, "name": "golden"},
            "spec": template(json!({"accessModes": ["ReadWriteOnce"]})),
        });
        kubectl::create(&golden).await.unwrap();
        let spec = template(json!({
            "dataSource": {"kind": "PersistentVolumeClaim", "name": "golden"},
        }));
        let disk = json!({"volumeClaimTemplate": {"metadata": {"name": "system"}, "spec": spec}});
        is_explained(
            space,
            "clone",
            json!({"spec": {"vm": {"disks": [disk]}}}),
            "DiskNotCloned",
            &["ignores the field", "source.pvc"],
        )
        .await;
        // Its guest would see an empty disk.
        let booted = condition(&space.vms.get("clone").unwrap(), "Booted");
        assert_eq!(booted["status"], "False", "{booted}");
    });
}

/// A claim with the labels of a claim of the VM `another`. It requests more than any volume has, so that it stays
/// unbound.
async fn claim_of_another(space: &Space, name: &str) {
    let labels = json!({
        "app.kubernetes.io/name": "vmrunner",
        "app.kubernetes.io/instance": "another",
        "app.kubernetes.io/managed-by": "vmoperator.jdrupes.org",
    });
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": space.name, "name": name, "labels": labels},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "resources": {"requests": {"storage": "1Pi"}},
        },
    });
    kubectl::create(&claim).await.unwrap();
}

#[test]
fn vm_runs_after_its_mistake_is_corrected() {
    e2e(1, async |space| {
        claim_of_another(space, "vm-system-disk").await;
        let vm = space.create("vm", json!({})).await;
        vm.wait_for_reason("InvalidSpec", 60).await;
        // The VM's own claim replaces it immediately, and kubectl might wait for the deletion of that one.
        space
            .kubectl(&["delete", "pvc", "vm-system-disk", "--wait=false"])
            .await;
        vm.booted().await;
        let ready = condition(&vm.now(), "Ready");
        assert!(
            !ready["message"]
                .as_str()
                .unwrap_or_default()
                .contains("another"),
            "{ready:#}"
        );
    });
}
