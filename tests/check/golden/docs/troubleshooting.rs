//! `docs/troubleshooting.md`.

use super::cell;
use std::fmt::Write;
use strum::{EnumMessage, VariantArray};
use vm_operator::api::conditions::{self, ConditionReason, ReadyReason};
use vm_operator::api::runner::outcome::EndReason;

/// The file's text.
pub(super) fn troubleshooting() -> String {
    let mut text = String::from(
        "# Troubleshooting\n\n\
         `kubectl get vms` shows the reason of the condition `Ready` of each VM, and `kubectl describe vm` its\n\
         message: what is wrong, where, and what to do next. Each change of the reason is an event of the VM too.\n\n\
         ## What can be in a VM's way\n\n\
         | reason | cause | where Kubernetes publishes it | next step |\n|---|---|---|---|\n",
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
            "| `{}` | {cause} | {published} | {next_step} |",
            reason.as_str()
        )
        .unwrap();
    }
    text += "\n`Running` and `Stopped` are as the spec wants it, `Starting` and `Stopping` on the way. A guest that does not shut down is\n\
             switched off by `kubectl exec NAME -- vm-runner power-off`; deleting its pod with a shorter `--grace-period` hurries\n\
             no kubelet that is waiting already.\n\n\
             A VM that was stored under another definition and cannot be decoded keeps its pod and its status. Its event\n\
             `Unreadable` names the field, and the metric `vm_operator_undecodable_vms` counts such VMs: correct the field\n\
             (`kubectl edit vm NAME`), or apply the definitions of this version (`kubectl apply -f crds/`).\n\n\
             ## Why a CD image given by URL is not there\n\n\
             The reason of the condition `MediaFetched`; `Fetched` is where all are. An image that was fetched is known by an\n\
             annotation of the claim `vmop-image-repository`, which names its file. To fetch one anew, remove the file and the\n\
             annotation: `kubectl annotate pvc vmop-image-repository fetched.vmoperator.jdrupes.org/KEY-`. To try one again at\n\
             once, remove its pod: `kubectl delete pod vmop-fetch-KEY`.\n\n\
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
    text += "| `ClaimPending, ClaimLost, Unschedulable and others` | The fetch pod does not start. A volume that \
             is on one node (ReadWriteOnce, local) keeps the fetch pod and all VMs with CD drives there | as in the table above |\n";
    text += "\n## How a VM can end by itself\n\n\
             The message of `RestartBackoff` and `status.restarts` name one of these.\n\n\
             | reason | cause | next step |\n|---|---|---|\n";
    text + &rows(ENDS)
}

fn rows(table: &[(&str, &str, &str)]) -> String {
    let row = |(reason, cause, next_step): &(&str, &str, &str)| {
        format!("| `{reason}` | {cause} | {next_step} |\n")
    };
    table.iter().map(row).collect()
}

/// How a VM can end by itself: reason, cause, next step.
const ENDS: &[(&str, &str, &str)] = &[
    (
        "GuestShutdown",
        "The guest has powered itself off",
        "set guestShutdownStops if that is to stop the VM",
    ),
    (
        "InvalidConfig",
        "The runner cannot use its configuration",
        "correct the field that the message names",
    ),
    (
        "FirmwareMissing",
        "The runner's image has no firmware for the machine",
        "correct spec.vm.firmware or spec.image",
    ),
    (
        "DataNotAccessible",
        "Something that the VM needs cannot be read or written",
        "mend what the message names",
    ),
    (
        "DiskInUse",
        "A disk, or the VM's data, is in use by another pod, or mounted on the node",
        "stop what uses it",
    ),
    (
        "DeviceNotPermitted",
        "The pod's user must not open a block device of the pod",
        "let the container runtime give devices to the pod's user (containerd: device_ownership_from_security_context), or \
         set deviceAccess to root in the operator's ConfigMap",
    ),
    (
        "AcceleratorUnavailable",
        "Hardware acceleration is asked for, and KVM was tried and does not run the VM",
        "mend the node's KVM, or set accelerator.policy to auto; where /dev/kvm is root's, deviceAccess to root; where the \
         message names CPU models, one of them as cpuModel",
    ),
    (
        "StartFailed",
        "QEMU has ended or failed before the guest ran",
        "correct what QEMU's words in the message name",
    ),
    (
        "QemuCrashed",
        "QEMU has ended while the guest ran",
        "see kubectl logs of the pod, which stays until the next start",
    ),
    (
        "GuestHalted",
        "QEMU has stopped the guest for good: KVM cannot run it any further, the guest has crashed, or the host has failed",
        "nothing, the VM starts again; where it comes back, mend what QEMU's words in the message name, use another node or \
         another cpuModel",
    ),
    (
        "MonitorLost",
        "The connection to QEMU's monitor has ended before the guest ran; once the guest runs, that ends nothing",
        "nothing, the VM starts again; where it comes back, see kubectl logs of the pod",
    ),
    (
        "Stopped",
        "Somebody has ended the runner: the guest was shut down, or switched off",
        "nothing",
    ),
    (
        "OOMKilled",
        "The pod has used more memory than its limit",
        "raise spec.resources.limits, or leave it out",
    ),
    (
        "Evicted",
        "The pod was evicted: node pressure, a drain, a taint",
        "nothing; the VM starts again where there is room",
    ),
    (
        "Preempted",
        "A pod of higher priority has taken the VM's place",
        "give the VM a priority, or make room",
    ),
    (
        "NodeShutdown",
        "The node was shut down in an orderly way",
        "nothing; the VM starts again",
    ),
    (
        "NodeRebooted",
        "The kubelet has not found the container again, as after a reboot",
        "nothing; the VM starts again",
    ),
    (
        "NodeLost",
        "The node was removed from the cluster",
        "nothing; the VM starts again on another one",
    ),
    (
        "UnexpectedAdmissionError",
        "The kubelet could not give the pod a device",
        "mend the node's device plugin",
    ),
    (
        "RunnerKilled",
        "The runner has ended without a word",
        "see kubectl logs of the pod",
    ),
    (
        "PodDeleted",
        "Somebody else has deleted the pod, such as a drain; the next one is created after 1 s, and after 2 s, 4 s … 5 min where \
         that happens again before the VM has run for 10 min",
        "stop what deletes it, such as a NoExecute taint that the VM does not tolerate, a descheduler or a webhook; raise \
         spec.vm.restartRequest to start at once",
    ),
    (
        "PodFailed",
        "The pod has ended before its container ran",
        "see kubectl describe pod",
    ),
    (
        "any other",
        "The kubelet's reason, passed on as it is",
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
