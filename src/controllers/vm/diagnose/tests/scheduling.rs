//! Pods without a node.

use super::*;

#[test]
fn pod_without_a_node_is_explained_with_the_schedulers_message() {
    for (message, reason, next_step) in [
        (
            "0/1 nodes are available: 1 Insufficient memory.",
            Reason::Unschedulable,
            "free it on a node",
        ),
        (
            "0/1 nodes are available: 1 node(s) had volume node affinity conflict.",
            Reason::Unschedulable,
            "describe pod vm",
        ),
        (
            "0/1 nodes are available: persistentvolumeclaim \"a\" not found. not found",
            Reason::Unschedulable,
            "volumes",
        ),
        (
            "0/1 nodes are available: 1 Insufficient devices.kubevirt.io/kvm. preemption: 0/1 nodes are available",
            Reason::AcceleratorResourceMissing,
            "add a node with /dev/kvm",
        ),
        (
            "0/1 nodes are available: 1 Insufficient vmoperator.jdrupes.org/kvm-if-present.",
            Reason::AcceleratorResourceMissing,
            "remove accelerator.kvmResource",
        ),
        (
            "0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 Insufficient vmoperator.jdrupes.org/tun.",
            Reason::TapResourceMissing,
            "set tap.hostPath to true",
        ),
        // The node that lacks CPU may have the device.
        (
            "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient a.org/kvm.",
            Reason::Unschedulable,
            "free it on a node",
        ),
    ] {
        let bound = |seconds| {
            with_claim(
                unschedulable_for(seconds, message),
                "vm-system-disk",
                "fast",
                "Bound",
            )
        };
        let delay = match reason {
            Reason::AcceleratorResourceMissing | Reason::TapResourceMissing => 30,
            _ if message.contains("persistent") => 10,
            _ => 0,
        };
        is_explained(&bound(delay), reason, &[message, next_step]);
        assert!(
            !explain(&bound(delay))
                .unwrap()
                .to_string()
                .contains("delete the PVC")
        );
        assert_eq!(
            explain(&bound(delay - 1)).is_none(),
            delay > 0,
            "only volumes and devices have a delay"
        );
    }
    for (waited, next) in [(5, 10), (50, 50), (70, 50), (150, 120)] {
        let observed = unschedulable_for(waited, "");
        assert_eq!(
            recheck(&observed),
            Some(Duration::from_secs(next)),
            "the interval grows, and one check is at 120 s"
        );
    }
}

#[test]
fn claim_without_a_volume_is_named_and_only_an_empty_one_may_be_deleted() {
    let pending = with_claim(
        unschedulable_for(10, UNBOUND),
        "vm-runner-data",
        "fast",
        "Pending",
    );
    let next_step = "delete the PVC if its phase is still Pending";
    let words = [
        "\"vm-runner-data\"",
        "provide a PersistentVolume",
        next_step,
        "kubectl describe pvc vm-runner-data",
    ];
    is_explained(&pending, Reason::ClaimPending, &words);
    let two = with_claim(pending, "vm-system-disk", "", "Pending");
    let words = [
        "kubectl get pvc vm-system-disk -o yaml",
        "create a PersistentVolume",
        "storageClassName in the disk's",
    ];
    is_explained(&two, Reason::ClaimPending, &words);
    let note = "storageclass.storage.k8s.io \"fast\" not found";
    let refused = warned(two, "vm-runner-data-uid", "ProvisioningFailed", note);
    is_explained(
        &refused,
        Reason::ProvisioningFailed,
        &[
            note,
            "\"vm-runner-data\"",
            "create the storage class",
            "still Pending two minutes after the change, run kubectl delete pvc vm-runner-data",
            "runnerDataPvc.storageClassName",
        ],
    );
    let failed = refused.clone();
    let failed = warned(
        failed,
        "vm-runner-data-uid",
        "ProvisioningFailed",
        "no space left",
    );
    is_explained(
        &failed,
        Reason::ProvisioningFailed,
        &[
            "no space left",
            "correct the provisioner",
            "set runnerDataPvc.size",
        ],
    );
    let lost = with_claim(refused, "vm-x-disk", "fast", "Lost");
    is_explained(&lost, Reason::ClaimLost, &["\"vm-x-disk\"", "restore"]);
    assert!(!explain(&lost).unwrap().to_string().contains("delete"));
    // The PVC waits until the pod has a node.
    let room = "0/1 nodes are available: 1 Insufficient memory.";
    let waits = with_claim(
        unschedulable_for(10, room),
        "vm-system-disk",
        "fast",
        "Pending",
    );
    is_explained(&waits, Reason::Unschedulable, &[room]);
}

#[test]
fn claim_that_waits_for_its_named_volume_is_explained_with_its_event() {
    let mut observed = unschedulable_for(10, UNBOUND);
    for (name, volume) in [("vm-data-disk", None), ("vm-system-disk", Some("pv1"))] {
        let spec = json!({"storageClassName": "fast", "volumeName": volume});
        let claim = json!({"metadata": {"name": name, "uid": name}, "spec": spec, "status": {"phase": "Pending"}});
        let claim = serde_json::from_value(claim).unwrap();
        observed.claims.insert(name.to_owned(), Arc::new(claim));
    }
    let words = ["PVC \"vm-system-disk\"", "kubectl get pv pv1"];
    is_explained(&observed, Reason::ClaimPending, &words);
    let note = "volume \"pv1\" already bound to a different claim.";
    let observed = warned(observed, "vm-system-disk", "FailedBinding", note);
    is_explained(&observed, Reason::ClaimPending, &[words[0], note]);
}

#[test]
fn claim_that_does_not_fit_its_class_is_explained_with_the_setting() {
    let with = |name: &str, spec: Value| {
        let mut observed = with_claim(unschedulable_for(10, UNBOUND), name, "nfs", "Pending");
        let claim = json!({"metadata": {"name": name, "uid": "1"}, "spec": spec, "status": {"phase": "Pending"}});
        let claim = serde_json::from_value(claim).unwrap();
        observed.claims.insert(name.to_owned(), Arc::new(claim));
        observed
    };
    let block = with(
        "vm-system-disk",
        json!({"storageClassName": "nfs", "volumeMode": "Block"}),
    );
    let settings = [
        "set volumeMode to Filesystem",
        "diskPvc.volumeMode",
        "kubectl delete pvc vm-system-disk",
        "kubectl delete pod vm",
    ];
    is_explained(&block, Reason::ClaimPending, &settings);
    let note = "only supports filesystem volumes";
    let failed = warned(block, "1", "ProvisioningFailed", note);
    is_explained(&failed, Reason::ProvisioningFailed, &settings);
    let file = with(
        "vm-system-disk",
        json!({"storageClassName": "nfs", "volumeMode": "Filesystem"}),
    );
    assert!(!explain(&file).unwrap().to_string().contains("diskPvc"));

    let name = "vmop-image-repository";
    let mut observed = with(
        name,
        json!({"volumeMode": "Filesystem", "accessModes": ["ReadOnlyMany"]}),
    );
    observed.image_repository = observed.claims.remove(name);
    let fetch = of_fetch(&observed, &observed.pod.clone().unwrap())
        .0
        .unwrap();
    for words in [
        "ReadOnlyMany",
        "imageRepository.accessModes to [ReadWriteOnce]",
        "kubectl delete pvc vmop-image-repository",
    ] {
        assert!(fetch.to_string().contains(words), "{fetch}");
    }
}

#[test]
fn fetch_pod_without_a_node_is_explained_by_the_claim_of_the_repository() {
    let mut observed = with_claim(
        unschedulable_for(60, UNBOUND),
        "vm-system-disk",
        "fast",
        "Pending",
    );
    let pod = observed.pod.clone().unwrap();
    is_explained(&observed, Reason::ClaimPending, &["vm-system-disk"]);
    assert_eq!(
        of_fetch(&observed, &pod).0.unwrap().reason,
        Reason::Unschedulable
    );
    observed.image_repository = Some(observed.claims["vm-system-disk"].clone());
    assert_eq!(
        of_fetch(&observed, &pod).0.unwrap().reason,
        Reason::ClaimPending
    );
}
