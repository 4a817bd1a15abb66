//! `docs/troubleshooting.md`.

use super::{anchor, cell};
use std::fmt::Write;
use strum::{EnumMessage, VariantArray};
use vm_operator::api::runner::outcome::EndReason;
use vm_operator::api::vm::conditions::{self, ConditionReason, ReadyReason};

/// The file's text.
pub(super) fn troubleshooting() -> String {
    let mut text = String::from(
        "# Troubleshooting\n\n\
         `kubectl get vms` shows the reason of the condition `Ready` of each VM, and `kubectl describe vm` its\n\
         message: the problem, its place, and the next step. Each change of the reason is an event of the VM too.\n\n\
         ## Blocking conditions\n\n\
         | reason | cause | source in Kubernetes | next step |\n|---|---|---|---|\n",
    );
    for reason in ReadyReason::VARIANTS
        .iter()
        .filter(|reason| reason.is_problem())
    {
        let columns = [
            reason.get_documentation(),
            reason.get_detailed_message(),
            reason.get_message(),
        ];
        let [cause, published, next_step] =
            columns.map(|text| cell(text.expect("each reason has all of them")));
        let (cause, next_step) = (cause.trim_end_matches('.'), next_step.replace("{}", "NAME"));
        writeln!(
            text,
            "| {}`{}` | {cause} | {published} | {next_step} |",
            anchor(reason.as_str()),
            reason.as_str()
        )
        .unwrap();
    }
    text += "\nWith the reasons `Running` and `Stopped`, the VM is in its desired state. With `Starting` and `Stopping`, the change is in\n\
             progress. If a guest does not shut down, power it off with `kubectl exec NAME -- vm-runner power-off`. A deletion of its\n\
             pod with a shorter `--grace-period` has no effect after the kubelet has begun to wait.\n\n\
             A VM that was stored under another definition can be impossible to decode. It retains its pod and its status. Its event\n\
             `Unreadable` names the field, and the metric `vm_operator_undecodable_objects` counts such objects. Correct the field\n\
             (`kubectl edit vm NAME`), or apply the CRDs of the operator's version (`kubectl apply -f crds/`).\n\n\
             ## Downloads of CD images\n\n\
             The table lists the reasons of the condition `MediaFetched`. With the reason `Fetched`, all images are in the image\n\
             repository. For each downloaded image, an annotation of the claim `vmop-image-repository` names its file. To download\n\
             an image again, remove the file and the annotation:\n\
             `kubectl annotate pvc vmop-image-repository fetched.vmoperator.jdrupes.org/KEY-`. To retry a failed download\n\
             immediately, delete its pod: `kubectl delete pod vmop-fetch-KEY`.\n\n\
             | reason | cause | next step |\n|---|---|---|\n";
    let of_fetches =
        |reason: &&ConditionReason| reason.conditions().contains(&conditions::MEDIA_FETCHED);
    for reason in ConditionReason::ALL
        .iter()
        .filter(of_fetches)
        .filter(|reason| **reason != ConditionReason::Fetched)
    {
        let (cause, next_step) = (
            cell(reason.meaning().trim_end_matches('.')),
            reason.next_step(),
        );
        assert!(!next_step.is_empty(), "{reason:?}");
        writeln!(text, "| `{}` | {cause} | {next_step} |", reason.as_str()).unwrap();
    }
    text += "| `ClaimPending, ClaimLost, Unschedulable and others` | The download pod does not start. A volume \
             on one node (ReadWriteOnce, local) binds the download pod and all VMs with CD drives to this node | as in the table above |\n";
    text += "\n## Unexpected ends of a VM\n\n\
             The message of `RestartBackoff` and `status.restarts` contain one of these reasons.\n\n\
             | reason | cause | next step |\n|---|---|---|\n";
    text + &rows(ENDS)
}

fn rows(table: &[(&str, &str, &str)]) -> String {
    let row = |(reason, cause, next_step): &(&str, &str, &str)| {
        format!("| `{reason}` | {cause} | {next_step} |\n")
    };
    table.iter().map(row).collect()
}

/// Unexpected exits of a VM: reason, cause, next step.
const ENDS: &[(&str, &str, &str)] = &[
    (
        "GuestShutdown",
        "The guest has powered itself off",
        "none; to stop the VM after a shutdown of the guest, set spec.guestShutdownStops",
    ),
    (
        "InvalidConfig",
        "The configuration of the runner is invalid",
        "correct the field that the message names",
    ),
    (
        "FirmwareMissing",
        "The runner's image has no firmware of the configured kind",
        "correct spec.vm.firmware or spec.image",
    ),
    (
        "DataNotAccessible",
        "The runner cannot read or write a file or volume that the VM needs",
        "correct the cause that the message names",
    ),
    (
        "DataMissing",
        "The image file of a disk, or the runner data, does not exist, and the VM has used it before. The VM never starts with an \
         empty disk instead: a file system below the volume may not be mounted",
        "mount the file system, or restore the file; to accept the loss, delete the PVC that the message names while the VM is \
         stopped",
    ),
    (
        "DiskNotCloned",
        "A disk with `dataSource` is empty at its first start",
        "see the reason `DiskNotCloned` above",
    ),
    (
        "DiskInUse",
        "A disk, or the VM's data, is in use by another pod, or mounted on the node",
        "stop the other pod, or unmount the disk on the node",
    ),
    (
        "DeviceNotPermitted",
        "The pod's user has no permission to open a block device of the pod",
        "let the container runtime give devices to the pod's user (containerd: device_ownership_from_security_context), or \
         set deviceAccess to root in the operator's ConfigMap",
    ),
    (
        "AcceleratorUnavailable",
        "The configuration requires hardware acceleration (accelerator.policy kvm). The KVM check failed, or KVM failed within \
         120 s of the start",
        "correct KVM on the node, or set accelerator.policy to auto. If root owns /dev/kvm, set deviceAccess to root. The command \
         vm-runner kvm-check in a pod of the node prints the steps of the check",
    ),
    (
        "AcceleratorFailed",
        "KVM has stopped the guest or QEMU more than 120 s after the start",
        "none, the VM starts again; if this repeats, use another node, or set accelerator.policy to tcg",
    ),
    (
        "StartFailed",
        "QEMU exited or failed before the guest started",
        "correct the cause that QEMU reports in the message",
    ),
    (
        "QemuCrashed",
        "QEMU exited while the guest ran",
        "see kubectl logs of the pod, which exists until the next start",
    ),
    (
        "GuestHalted",
        "QEMU has stopped the guest permanently: the guest has crashed, or the host has failed",
        "none, the VM starts again; if this repeats, correct the cause that QEMU reports in the message, or use another node or \
         another cpuModel",
    ),
    (
        "MonitorLost",
        "The QMP connection was closed before the guest started; while the guest runs, a closed connection does not stop it",
        "none, the VM starts again; if this repeats, see kubectl logs of the pod",
    ),
    (
        "Stopped",
        "The runner received a request to stop, and the guest was shut down or powered off",
        "none",
    ),
    (
        "OOMKilled",
        "The pod has used more memory than its limit",
        "raise spec.resources.limits, or remove the field",
    ),
    (
        "Evicted",
        "The pod was evicted: node pressure, a drain, a taint",
        "no action; the VM starts again on a node with room",
    ),
    (
        "Preempted",
        "The scheduler preempted the pod for a pod of higher priority",
        "set spec.priorityClassName, or make room",
    ),
    (
        "NodeShutdown",
        "The node was shut down gracefully",
        "no action; the VM starts again",
    ),
    (
        "NodeRebooted",
        "The kubelet has lost the container, for example by a reboot",
        "no action; the VM starts again",
    ),
    (
        "NodeLost",
        "The node was removed from the cluster",
        "no action; the VM starts again on another node",
    ),
    (
        "UnexpectedAdmissionError",
        "The kubelet could not give the pod a device",
        "correct the device plugin of the node",
    ),
    (
        "RunnerKilled",
        "The runner exited without a termination message",
        "see kubectl logs of the pod",
    ),
    (
        "PodDeleted",
        "Another client than the operator has deleted the pod, for example a drain. The operator creates the next pod after 1 s. \
         The delay doubles up to 5 min with each deletion before the VM has run for 10 min",
        "remove the cause of the deletions, such as a NoExecute taint that the VM does not tolerate, a descheduler or a webhook. To \
         start the VM immediately, increase spec.vm.restartRequest",
    ),
    (
        "PodFailed",
        "The pod failed before its container ran",
        "see kubectl describe pod",
    ),
    (
        "any other",
        "A reason of the kubelet, which the message repeats",
        "see kubectl describe pod",
    ),
];

#[test]
fn each_end_that_a_runner_reports_is_in_the_table() {
    for end in EndReason::VARIANTS
        .iter()
        .filter(|end| **end != EndReason::Unknown)
    {
        assert!(
            ENDS.iter().any(|(name, ..)| *name == format!("{end:?}")),
            "{end:?}"
        );
    }
}
