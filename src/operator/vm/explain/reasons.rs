//! (pure) The closed list of what can be in a VM's way, with its causes and the next step. Messages take their next
//! step from here, and `docs/troubleshooting.md` is made of it.

use super::Problem;
use crate::api::conditions::{ConditionReason, ReadyReason};

/// One reason.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The reason of the condition `Ready`, and of the event.
    pub reason: ReadyReason,
    /// What has happened.
    pub cause: &'static str,
    /// Where it is published.
    pub published: &'static str,
    /// What to do; `{}` is the name of the object that the message names.
    pub next_step: &'static str,
}

const fn entry(reason: ReadyReason, cause: &'static str, published: &'static str, next_step: &'static str) -> Entry {
    Entry { reason, cause, published, next_step }
}

/// All of them, in the order in which a VM meets them.
pub const ENTRIES: &[Entry] = &[
    entry(
        ReadyReason::InvalidSpec,
        "A field of the VM cannot be used; nothing is made or changed",
        "our own check of the spec",
        "correct the field that the message names",
    ),
    entry(
        ReadyReason::Unreadable,
        "The VM was stored under another definition and cannot be read; what it has is left alone",
        "our own reading of the object",
        "correct the field (kubectl edit vm {}), and apply the definitions of this version: kubectl apply -f crds/",
    ),
    entry(
        ReadyReason::NameTaken,
        "An object that is not this VM's has the name of one of its own",
        "the object's labels and owner",
        "give the VM or its disk another name, or remove the object: not where it is the operator's own or another VM's, \
         which the message says",
    ),
    entry(
        ReadyReason::QuotaExceeded,
        "A quota of the namespace leaves no room for an object of the VM",
        "the API server's answer, `exceeded quota`",
        "raise the quota (kubectl describe quota), or make the VM smaller",
    ),
    entry(
        ReadyReason::PolicyRefused,
        "Pod Security or an admission policy refuses an object of the VM",
        "the API server's answer, `violates PodSecurity` or `denied the request`",
        "correct the VM, or the policy that the message names, or let the namespace admit what the VM needs",
    ),
    entry(
        ReadyReason::NotAuthorized,
        "The operator may not see, make or change an object",
        "the API server's answer, `cannot … resource`",
        "apply the overlay again with which the operator was installed (kubectl apply -k OVERLAY)",
    ),
    entry(
        ReadyReason::Rejected,
        "The API server refuses an object of the VM for another cause",
        "the API server's answer",
        "correct the VM, or what the message names",
    ),
    entry(
        ReadyReason::AcceleratorResourceMissing,
        "No node offers the resource by which a pod gets /dev/kvm",
        "pod condition `PodScheduled`, `Insufficient …/kvm`",
        "install the device plugin on nodes that have /dev/kvm (kubectl apply -k deploy/device-plugin), or set \
         accelerator.policy to tcg in the operator's ConfigMap",
    ),
    entry(
        ReadyReason::TapResourceMissing,
        "No node offers the resource by which a pod gets /dev/net/tun, which tap networks need",
        "pod condition `PodScheduled`, `Insufficient …/tun`",
        "install the device plugin on the nodes (kubectl apply -k deploy/device-plugin), or set tap.hostPath to true in the \
         operator's ConfigMap",
    ),
    entry(
        ReadyReason::Unschedulable,
        "No node takes the pod: CPU, memory, taints, node selection, a claim that another pod uses alone, or, with tap networks, \
         a port that is taken there",
        "pod condition `PodScheduled`",
        "make room, or change spec.vm, spec.resources or the node selection",
    ),
    entry(
        ReadyReason::ClaimPending,
        "A claim has no volume for longer than making one takes, or is not there",
        "pod condition `PodScheduled` and the claim's phase",
        "provide a volume that fits it; or correct class, selector or size in the VM and delete the claim while its phase is Pending, as it holds nothing until then; it is made anew: see kubectl describe pvc {}",
    ),
    entry(
        ReadyReason::ClaimLost,
        "A claim has lost its volume, and with it the data",
        "the claim's phase `Lost`",
        "bring the volume back, or restore the data into a new claim: see kubectl describe pvc {}",
    ),
    entry(
        ReadyReason::ProvisioningFailed,
        "The storage class of a claim does not exist or makes no volume",
        "event `ProvisioningFailed` of the claim",
        "mend the class's provisioner; or correct the storage class in the VM and delete the claim while its phase is Pending, as it holds nothing until then; it is made anew: see kubectl describe pvc {}",
    ),
    entry(
        ReadyReason::VolumeBindingFailed,
        "A volume cannot be bound on any node that the pod may run on",
        "pod condition `PodScheduled`, `didn't match PersistentVolume's node affinity` or `binding volumes`",
        "let the pod run where its volumes are (spec.nodeSelector), or move them: see kubectl describe pod {}",
    ),
    entry(
        ReadyReason::VolumeAttachFailed,
        "A volume cannot be attached to the node, often because another node still has it",
        "event `FailedAttachVolume` of the pod",
        "wait until the other node has let it go, or see what holds it: kubectl get volumeattachments",
    ),
    entry(
        ReadyReason::ClaimWrongMode,
        "A claim's volume mode does not fit its use: disks are block devices",
        "event `FailedMount` of the pod, `volumeMode`",
        "give the disk a claim with volumeMode Block: see kubectl describe pod {}",
    ),
    entry(
        ReadyReason::SecretMissing,
        "A secret that the VM needs is missing, or lacks a key",
        "event `FailedMount` of the pod, `secret … not found` or `non-existent secret key`",
        "create the secret, or the key in it; the VM starts then by itself, up to two minutes later",
    ),
    entry(
        ReadyReason::VolumeMountFailed,
        "A volume cannot be mounted or mapped on the node",
        "events `FailedMount` and `FailedMapVolume` of the pod",
        "mend what the message names on the node or in the storage: see kubectl describe pod {}",
    ),
    entry(
        ReadyReason::SandboxFailed,
        "The container runtime or the network plugin cannot set the pod up",
        "event `FailedCreatePodSandBox` of the pod",
        "mend the node's container runtime or network plugin: see kubectl describe pod {}",
    ),
    entry(
        ReadyReason::ImagePullFailed,
        "The runner's image cannot be had",
        "the container's state `ErrImagePull`, `ImagePullBackOff`, `ErrImageNeverPull`, `InvalidImageName`",
        "correct spec.image, or runnerImage in the operator's ConfigMap, or load the image where the node finds it",
    ),
    entry(
        ReadyReason::ContainerFailed,
        "The container cannot be made or started",
        "the container's state `CreateContainerConfigError`, `CreateContainerError`, `RunContainerError`",
        "see kubectl describe pod {}",
    ),
    entry(
        ReadyReason::PodWarning,
        "Kubernetes warns of something else while the pod does not start",
        "any other warning of the pod, passed on as it is",
        "see kubectl describe pod {}",
    ),
    entry(
        ReadyReason::RestartBackoff,
        "The VM has ended by itself; it starts again after 1 s, 2 s, 4 s … 5 min. Or others delete its pod again and again",
        "the end of the pod: see the table below",
        "nothing, if the guest has powered itself off; else mend what the message names",
    ),
    entry(
        ReadyReason::NodeUnreachable,
        "The pod's node does not answer; the guest may still run there, so that it is started nowhere else",
        "pod phase `Unknown`, condition `Ready` without a reason, `DisruptionTarget` by the taint manager, or no container's \
         state 2 min after the pod got its node",
        "bring the node back; if it is off for sure, let its volumes go: \
         kubectl taint node {} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
    ),
    entry(
        ReadyReason::RunnerSilent,
        "The pod runs, and its runner cannot tell the VM's state for a minute: it does not reach the API server, or may not \
         write there",
        "condition `Ready` of the pod, and none of the runner's conditions of the VM",
        "see kubectl logs {}; let the pod reach the API server (NetworkPolicy), and the runner write (Role vm-runner: apply \
         the overlay again with which the operator was installed)",
    ),
    entry(
        ReadyReason::TerminationOverdue,
        "The pod has had its time to end and is still there",
        "the pod's deletion time",
        "see what holds it: kubectl describe pod {}; if its container runs, switch that off: kubectl exec {} -- vm-runner \
         power-off; deleting the pod by force may corrupt disks, as its guest may still run",
    ),
    entry(
        ReadyReason::MediaFetchFailed,
        "An image given by URL, from which the VM boots, cannot be fetched",
        "condition `MediaFetched`: see the table below",
        "mend what the message names; after imageRepository.fetch.startDeadline the VM starts with the drive empty",
    ),
];

/// The next step where Pod Security refuses a pod. VMs pass `restricted`, but for what these two have to do with.
pub const POD_SECURITY: &str = "let the namespace admit it (kubectl label namespace NAMESPACE --overwrite \
    pod-security.kubernetes.io/enforce=privileged), or do without what needs it: tap networks of the VM, or the settings \
    accelerator.privileged and deviceAccess; see docs/security.md";

/// The entry of a reason.
#[must_use]
pub fn of(reason: ReadyReason) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.reason == reason)
}

impl Problem {
    /// The problem, with what is wrong, and the next step for the object of that name.
    #[must_use]
    pub fn new(reason: ReadyReason, what: &str, name: &str) -> Self {
        let next_step = of(reason).map(|entry| entry.next_step.replace("{}", name)).unwrap_or_default();
        Self { reason, message: format!("{what}; {next_step}") }
    }
}

/// The next step for each reason why a CD image given by URL is not fetched. Besides these there are the reasons for which a
/// pod does not start.
pub const FETCHES: &[(ConditionReason, &str)] = &[
    (ConditionReason::Fetching, "nothing"),
    (ConditionReason::SchemeNotAllowed, "use another URL, or allow it in imageRepository.fetch.schemes"),
    (ConditionReason::InvalidUrl, "correct the URL"),
    (
        ConditionReason::ServerUnreachable,
        "mend the network, or the NetworkPolicy of the fetch pods; behind a proxy, or with a certificate authority of one's own, \
         see imageRepository.fetch.httpsProxy and .authorities; it is tried again",
    ),
    (ConditionReason::ServerRefused, "correct the URL, or put the file there; it is tried again"),
    (ConditionReason::ServerFailed, "nothing; it is tried again"),
    (ConditionReason::TooLarge, "raise maxSize in the operator's ConfigMap"),
    (ConditionReason::ChecksumMismatch, "correct cdrom.checksum or the URL"),
    (
        ConditionReason::RepositoryNotWritable,
        "give the claim vmop-image-repository an access mode with which pods can write (ReadWriteMany), and a volume that fsGroup 107 applies to or that belongs to group 107",
    ),
    (ConditionReason::RepositoryFull, "remove files, or enlarge the claim vmop-image-repository; it is tried again"),
    (
        ConditionReason::DeadlineExceeded,
        "nothing: it is tried again, and goes on where it has ended if the server allows that; else raise deadline in the operator's ConfigMap",
    ),
    (ConditionReason::Interrupted, "nothing; it is tried again"),
    (ConditionReason::FetchPodFailed, "nothing; it is tried again"),
    (ConditionReason::RepositoryMissing, "make it, or let the operator make it (imageRepository.create)"),
    (ConditionReason::NameTaken, "remove that pod, or, where it is a VM's, give that VM another name"),
];

/// What to do where no further try helps.
#[must_use]
pub fn next_step_of_fetch(reason: ConditionReason) -> &'static str {
    FETCHES.iter().find(|(of, _)| *of == reason).map(|(_, next_step)| *next_step).unwrap_or_default()
}

/// How a VM can end by itself: reason, cause, next step.
pub const ENDS: &[(&str, &str, &str)] = &[
    ("GuestShutdown", "The guest has powered itself off", "set guestShutdownStops if that is to stop the VM"),
    ("InvalidConfig", "The runner cannot use its configuration", "correct the field that the message names"),
    ("FirmwareMissing", "The runner's image has no firmware for the machine", "correct spec.vm.firmware or spec.image"),
    ("DataNotAccessible", "Something that the VM needs cannot be read or written", "mend what the message names"),
    ("DiskInUse", "A disk, or the VM's data, is in use by another pod, or mounted on the node", "stop what uses it"),
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
    ("StartFailed", "QEMU has ended or failed before the guest ran", "correct what QEMU's words in the message name"),
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
    ("Stopped", "Somebody has ended the runner: the guest was shut down, or switched off", "nothing"),
    ("OOMKilled", "The pod has used more memory than its limit", "raise spec.resources.limits, or leave it out"),
    (
        "Evicted",
        "The pod was evicted: node pressure, a drain, a taint",
        "nothing; the VM starts again where there is room",
    ),
    ("Preempted", "A pod of higher priority has taken the VM's place", "give the VM a priority, or make room"),
    ("NodeShutdown", "The node was shut down in an orderly way", "nothing; the VM starts again"),
    (
        "NodeRebooted",
        "The kubelet has not found the container again, as after a reboot",
        "nothing; the VM starts again",
    ),
    ("NodeLost", "The node was removed from the cluster", "nothing; the VM starts again on another one"),
    ("UnexpectedAdmissionError", "The kubelet could not give the pod a device", "mend the node's device plugin"),
    ("RunnerKilled", "The runner has ended without a word", "see kubectl logs of the pod"),
    (
        "PodDeleted",
        "Somebody else has deleted the pod, not for the first time before the VM had run for 10 min; the next is made after \
         10 s, 20 s, 40 s … 5 min",
        "stop what deletes it, such as a NoExecute taint that the VM does not tolerate, a descheduler or a webhook; raise \
         spec.vm.restartRequest to start at once",
    ),
    ("PodFailed", "The pod has ended before its container ran", "see kubectl describe pod"),
    ("any other", "The kubelet's reason, passed on as it is", "see kubectl describe pod"),
];
