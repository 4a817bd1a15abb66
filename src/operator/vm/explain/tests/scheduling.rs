//! Why no node takes a pod, in the words of Kubernetes 1.34's scheduler.

use super::*;

fn told(observed: &Observed) -> (Reason, String) {
    let Problem { reason, message } = explain(observed).expect("something is told");
    (reason, message)
}

/// A VM whose claims have their volumes, and whose pod no node takes for so long, for that reason.
fn bound(words: &str) -> Observed {
    with_claim(unschedulable_for(600, words), "vm-system-disk", "fast", "Bound")
}

#[test]
fn nobody_is_told_to_delete_a_claim_that_has_a_volume() {
    for (words, reason, next_step) in [
        (
            "0/2 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity. preemption: 0/2 nodes are \
             available: 2 Preemption is not helpful for scheduling.",
            Reason::VolumeBindingFailed,
            "spec.nodeSelector",
        ),
        (
            "0/1 nodes are available: 1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode \
             already in-use by another pod. preemption: not eligible due to preemptionPolicy=Never.",
            Reason::Unschedulable,
            "end that pod",
        ),
        (
            "0/1 nodes are available: persistentvolumeclaim \"vm-system-disk\" is being deleted. not found",
            Reason::Unschedulable,
            "kubectl describe pvc vm-system-disk",
        ),
        ("0/1 nodes are available: 1 persistent trouble of a plugin.", Reason::Unschedulable, "make room"),
        ("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.", Reason::ClaimPending, "pod vm"),
    ] {
        let (told, message) = told(&bound(words));
        assert_eq!(told, reason, "{message}");
        assert!(message.contains(words) && message.contains(next_step), "{message}");
        assert!(!message.contains("delete the claim") && !message.contains("holds nothing"), "{message}");
    }
}

#[test]
fn a_claim_that_only_one_pod_may_use_is_named() {
    let words = "0/1 nodes are available: 1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access \
                 mode already in-use by another pod.";
    let mut observed = with_claim(bound(words), "vm-alone-disk", "fast", "Bound");
    let claim = Arc::make_mut(observed.claims.get_mut("vm-alone-disk").unwrap());
    claim.spec.access_modes = ["ReadWriteOncePod".to_owned()].into();
    let (_, message) = told(&observed);
    assert!(message.ends_with("kubectl describe pvc vm-alone-disk"), "{message}");
}

#[test]
fn a_claim_may_be_deleted_only_while_it_waits_for_its_first_volume() {
    let words = "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.";
    for (phase, may) in [("Pending", true), ("", false), ("Unknown", false)] {
        let observed = with_claim(unschedulable_for(60, words), "vm-system-disk", "fast", phase);
        let (reason, message) = told(&observed);
        assert_eq!((reason, message.contains("delete the claim")), (Reason::ClaimPending, may), "{message}");
        assert!(message.contains("kubectl describe pvc vm-system-disk"), "{message}");
    }
}

#[test]
fn a_claim_that_is_not_there_is_named_and_no_other_is_blamed() {
    let words = "0/1 nodes are available: persistentvolumeclaim \"vm-data-disk\" not found. not found";
    let waits = with_claim(unschedulable_for(60, words), "vm-system-disk", "fast", "Pending");
    let (reason, message) = told(&waits);
    assert_eq!(reason, Reason::ClaimPending);
    assert!(message.contains("kubectl get pvc vm-data-disk"), "{message}");
    assert!(!message.contains("vm-system-disk") && !message.contains("delete"), "{message}");
    let words = "0/1 nodes are available: persistentvolumeclaim \"vmop-image-repository\" not found. not found";
    let (_, message) = told(&unschedulable_for(60, words));
    assert!(message.contains("imageRepository.create"), "{message}");
}

#[test]
fn what_keeps_a_fetch_pod_from_a_node_is_told_of_that_pod_and_of_the_repository() {
    let of_fetch = |words: &str, phase: &str| {
        let mut observed = unschedulable_for(60, words);
        let machine = json!({"state": "Running", "disks": [{"cdrom": {"image": "https://example.org/a.iso"}}]});
        observed.vm = Arc::new(vm(machine));
        let claim = json!({"metadata": {"name": "vmop-image-repository"}, "spec": {}, "status": {"phase": phase}});
        observed.image_repository = Some(Arc::new(serde_json::from_value(claim).unwrap()));
        let mut pod = observed.pod.as_deref().unwrap().clone();
        pod.metadata.name = Some("vmop-fetch-1".to_owned());
        super::of_fetch(&observed, &pod, None).0.unwrap()
    };
    let problem =
        of_fetch("0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity.", "Bound");
    assert_eq!(problem.reason, Reason::VolumeBindingFailed);
    assert!(problem.message.ends_with("kubectl describe pod vmop-fetch-1"), "{}", problem.message);
    let problem = of_fetch("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.", "Pending");
    assert_eq!(problem.reason, Reason::ClaimPending);
    assert!(problem.message.contains("imageRepository in the operator's ConfigMap"), "{}", problem.message);
    assert!(!problem.message.contains("in the VM"), "{}", problem.message);
}

#[test]
fn a_device_is_missing_only_where_every_node_that_the_pod_may_get_lacks_it() {
    let (kvm, tun) = ("Insufficient vmoperator.jdrupes.org/kvm", "Insufficient vmoperator.jdrupes.org/tun");
    let taint = "node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }";
    for (nodes, why, reason) in [
        (3, format!("1 Insufficient cpu, 2 {kvm}"), Reason::Unschedulable),
        (3, format!("1 Insufficient cpu, 3 {kvm}"), Reason::AcceleratorResourceMissing),
        (3, format!("1 {taint}, 2 {kvm}"), Reason::AcceleratorResourceMissing),
        (3, format!("1 {taint}, 1 Insufficient memory, 1 {kvm}"), Reason::Unschedulable),
        (3, format!("1 Too many pods, 2 {tun}"), Reason::Unschedulable),
        (2, format!("1 node(s) were unschedulable, 1 {tun}"), Reason::TapResourceMissing),
        // The one with the device is not where the volumes are.
        (2, format!("1 {kvm}, 1 node(s) didn't match PersistentVolume's node affinity"), Reason::Unschedulable),
        (1, format!("1 {kvm}"), Reason::AcceleratorResourceMissing),
    ] {
        let words = format!("0/{nodes} nodes are available: {why}. preemption: 0/{nodes} nodes are available.");
        let (told, message) = told(&bound(&words));
        assert_eq!(told, reason, "{message}");
        assert!(message.contains(&words), "{message}");
    }
    // Another scheduler counts no nodes.
    assert_eq!(told(&bound(kvm)).0, Reason::AcceleratorResourceMissing);
}

#[test]
fn volumes_are_elsewhere_only_where_they_keep_the_pod_from_every_node() {
    let elsewhere = "node(s) didn't match PersistentVolume's node affinity";
    let taint = "node(s) had untolerated taint {a: b}";
    for (why, reason) in [
        (format!("1 Insufficient cpu, 2 {elsewhere}"), Reason::Unschedulable),
        (format!("1 {taint}, 2 {elsewhere}"), Reason::VolumeBindingFailed),
    ] {
        assert_eq!(told(&bound(&format!("0/3 nodes are available: {why}."))).0, reason);
    }
}
