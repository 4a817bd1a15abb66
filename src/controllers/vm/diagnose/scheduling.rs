//! (pure) Causes for a pod without a node. A PVC without a volume, a storage class that provides no volume and a missing extended
//! resource have separate reasons. All other causes have the reason `Unschedulable` with the scheduler's message.

use crate::api::vm::conditions::ReadyReason as Reason;
use crate::api::vm::diagnosis::Diagnosis;
use crate::api::vm::names;
use crate::controllers::vm::diagnose::EXPLAIN_DELAY;
use crate::controllers::vm::observe::Observed;
use crate::k8s::views::{ClaimView, PodView};
use std::time::Duration;

/// Time in which the device plugin registers after an installation or the start of a node.
const DEVICE_PLUGIN_DELAY: Duration = Duration::from_secs(30);

/// The blocking condition of a pod without a node. `message` is the scheduler's.
pub(super) fn explain(
    observed: &Observed,
    pod: &PodView,
    message: &str,
    claims: &[&ClaimView],
) -> Diagnosis {
    let unbound = unbound(message, claims);
    let name = |claim: &ClaimView| claim.metadata.name.clone().unwrap_or_default();
    if let Some(claim) = unbound.iter().find(|claim| claim.status.phase == "Lost") {
        let claim = name(claim);
        return Diagnosis::documented(
            Reason::ClaimLost,
            &format!(
                "PVC {claim:?} has the phase Lost, because its PersistentVolume no longer exists ({message})"
            ),
            &claim,
        );
    }
    let warning = |claim: &ClaimView| observed.warnings.get(claim.metadata.uid.as_ref()?);
    let warnings = unbound
        .iter()
        .filter_map(|claim| Some((claim, warning(claim)?)));
    if let Some((claim, warning)) = warnings
        .into_iter()
        .find(|(_, warning)| warning.reason == "ProvisioningFailed")
    {
        let (name, note) = (name(claim), &warning.note);
        if is_about_missing_class(note) {
            return missing_class(&name, pod, note);
        }
        let problem =
            format!("the dynamic provisioning of a volume for PVC {name:?} failed ({note})");
        return with_setting(
            claim,
            pod,
            Diagnosis::documented(Reason::ProvisioningFailed, &problem, &name),
        );
    }
    // A class often provides a volume only after the pod has a node. A volume that a PVC names, or that has no class, must exist.
    let order = |claim: &&&ClaimView| {
        let has_class = claim.spec.storage_class_name.as_deref() != Some("");
        let names_volume = claim.spec.volume_name.is_some();
        (warning(claim).is_none(), !names_volume, has_class)
    };
    if let Some(claim) = unbound.iter().min_by_key(order) {
        let name = name(claim);
        let cause = warning(claim).map_or(message, |warning| warning.note.as_str());
        let problem = format!("PVC {name:?} has no volume yet ({cause})");
        if let Some(volume) = &claim.spec.volume_name {
            return named_volume(&name, volume, pod, problem);
        }
        if claim.spec.storage_class_name.as_deref() == Some("") {
            return missing_volume(&name, pod, problem);
        }
        return with_setting(
            claim,
            pod,
            Diagnosis::documented(Reason::ClaimPending, &problem, &name),
        );
    }
    no_node(pod, message)
}

/// The next step if no node offers `kvm-if-present`, which each node with the device plugin offers.
const PLUGIN_MISSING: &str = "check the device plugin (kubectl get daemonset vm-device-plugin -n kube-system). If the DaemonSet is \
    missing, install cluster.yaml of the operator's release. For a cluster without the plugin, remove accelerator.kvmResource from \
    the operator's ConfigMap; the VMs are then emulated";

/// The blocking condition of a pod for which no node has the resources.
fn no_node(pod: &PodView, message: &str) -> Diagnosis {
    let missing = missing_resources(message);
    let kvm = missing.iter().find(|device| is_for_kvm(device));
    let tun = missing.iter().find(|device| is_for_tap(device));
    let lacks = |device: &str, purpose: &str| {
        format!(
            "the VM's pod needs the extended resource {device:?} for {purpose}, but the scheduler finds no node that can provide this \
             resource"
        )
    };
    let (reason, problem) = match (kvm, tun) {
        (Some(device), _) => (
            Reason::AcceleratorResourceMissing,
            lacks(device, "hardware acceleration"),
        ),
        (None, Some(device)) => (Reason::TapResourceMissing, lacks(device, "tap networks")),
        (None, None) => (
            Reason::Unschedulable,
            "the scheduler finds no node for the pod".to_owned(),
        ),
    };
    let problem = format!("{problem} ({message})");
    if kvm.is_some_and(|device| *device == names::RESOURCE_KVM_IF_PRESENT) {
        return Diagnosis::new(reason, problem, PLUGIN_MISSING);
    }
    let pod = pod.metadata.name.as_deref().unwrap_or_default();
    Diagnosis::documented(reason, &problem, pod)
}

/// Whether the text is that of Kubernetes about a storage class that does not exist.
fn is_about_missing_class(note: &str) -> bool {
    note.starts_with("storageclass.storage.k8s.io ") && note.ends_with(" not found")
}

fn missing_class(claim: &str, pod: &PodView, note: &str) -> Diagnosis {
    Diagnosis::new(
        Reason::ProvisioningFailed,
        format!("the storage class of PVC {claim:?} does not exist ({note})"),
        format!(
            "create the storage class, or correct {}",
            class_setting(claim, pod)
        ),
    )
}

/// A PVC without a storage class needs a volume that a person has created.
fn missing_volume(claim: &str, pod: &PodView, problem: String) -> Diagnosis {
    let setting = class_setting(claim, pod);
    let next_step = format!(
        "create a PersistentVolume that has no storage class and matches the size, access modes, volume mode and selector of the \
         PVC (see kubectl get pvc {claim} -o yaml). Or use an existing storage class: set {setting}"
    );
    Diagnosis::new(Reason::ClaimPending, problem, next_step)
}

/// A PVC that names its volume gets no other one.
fn named_volume(claim: &str, volume: &str, pod: &PodView, problem: String) -> Diagnosis {
    let pod = pod.metadata.name.as_deref().unwrap_or_default();
    let next_step = format!(
        "look at PersistentVolume {volume:?} (kubectl get pv {volume}). If another PVC has the volume, or if the volume does not exist, \
         correct volumeName in the disk's volumeClaimTemplate.spec. Then run kubectl delete pvc {claim} and kubectl delete pod {pod}; the \
         operator creates both again"
    );
    Diagnosis::new(Reason::ClaimPending, problem, next_step)
}

/// The setting of a PVC's storage class, and the commands after a change.
fn class_setting(claim: &str, pod: &PodView) -> String {
    let pod = pod.metadata.name.as_deref().unwrap_or_default();
    let (setting, created) = if claim == names::IMAGE_REPOSITORY_CLAIM {
        (
            "imageRepository.storageClassName in the operator's ConfigMap, or storageClassName in your manifest of the PVC",
            "the pod again, and the PVC if imageRepository.create is true",
        )
    } else if claim == names::runner_data_claim(pod) {
        (
            "runnerDataPvc.storageClassName in the operator's ConfigMap",
            "both again",
        )
    } else {
        (
            "storageClassName in the disk's volumeClaimTemplate.spec",
            "both again",
        )
    };
    format!(
        "{setting}. If the PVC is still Pending two minutes after the change, run kubectl delete pvc {claim} and kubectl delete \
         pod {pod}. The operator then creates {created}"
    )
}

/// The diagnosis with the setting that fits the PVC to its storage class. Whether a class supports a mode is in no object.
fn with_setting(claim: &ClaimView, pod: &PodView, diagnosis: Diagnosis) -> Diagnosis {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let pod = pod.metadata.name.as_deref().unwrap_or_default();
    let setting = if name == names::IMAGE_REPOSITORY_CLAIM {
        format!(
            "if the storage class does not support the access mode {}, set imageRepository.accessModes to [ReadWriteOnce] in \
             the operator's ConfigMap, or correct accessModes in your manifest of the PVC. If the PVC is still Pending two \
             minutes later, run kubectl delete pvc {name}; the operator creates the PVC again if imageRepository.create is true",
            claim.spec.access_modes.join(", ")
        )
    } else if name == names::runner_data_claim(pod) {
        format!(
            "if the storage class provides no volumes of {}, set runnerDataPvc.size in the operator's ConfigMap. If the PVC is \
             still Pending two minutes later, run kubectl delete pvc {name}; the operator creates the PVC again",
            claim
                .spec
                .resources
                .requested
                .unwrap_or_default()
                .to_quantity()
        )
    } else if claim.spec.volume_mode.as_deref() == Some("Block") {
        format!(
            "if the storage class provides no block volumes, set volumeMode to Filesystem in the disk's \
             volumeClaimTemplate.spec. Or set the default, diskPvc.volumeMode in the operator's ConfigMap, to Filesystem. If \
             the PVC is still Pending two minutes later, run kubectl delete pvc {name} and kubectl delete pod {pod}; the \
             operator creates both again"
        )
    } else {
        return diagnosis;
    };
    Diagnosis {
        next_step: format!("{setting}. For another cause: {}", diagnosis.next_step),
        ..diagnosis
    }
}

/// Whether the scheduler's message is about missing volumes or PVCs. A volume on another node is not missing.
fn is_about_volumes(message: &str) -> bool {
    message.to_lowercase().contains("persistent") && !message.contains("node affinity")
}

/// Time after which the status explains the scheduler's message. A volume or a device may be provided soon; other causes do not
/// resolve themselves.
pub(super) fn explain_delay(message: &str) -> Duration {
    let is_device = |name: &&str| is_for_kvm(name) || is_for_tap(name);
    if is_about_volumes(message) {
        EXPLAIN_DELAY
    } else if missing_resources(message).iter().any(is_device) {
        DEVICE_PLUGIN_DELAY
    } else {
        Duration::ZERO
    }
}

/// The PVCs without a volume, if the scheduler's message is about volumes. Otherwise a PVC may wait until its pod has a node.
pub(super) fn unbound<'a>(message: &str, claims: &[&'a ClaimView]) -> Vec<&'a ClaimView> {
    let unbound = claims
        .iter()
        .filter(|claim| matches!(claim.status.phase.as_str(), "Pending" | "Lost"));
    unbound
        .filter(|_| is_about_volumes(message))
        .copied()
        .collect()
}

/// Whether the resource gives pods /dev/kvm, with this device plugin or another.
fn is_for_kvm(resource: &str) -> bool {
    resource == names::RESOURCE_KVM_IF_PRESENT || resource.ends_with("/kvm")
}

/// Whether the resource gives pods /dev/net/tun.
fn is_for_tap(resource: &str) -> bool {
    resource.ends_with("tun")
}

/// The extended resources that nodes lack. Empty if a node lacks CPU or memory, because that node may have the resources.
fn missing_resources(message: &str) -> Vec<&str> {
    let insufficient = message.split("Insufficient ").skip(1);
    let names: Vec<&str> = insufficient
        .filter_map(|rest| rest.split([',', ' ']).next())
        .map(|name| name.trim_end_matches('.'))
        .collect();
    // Only the names of extended resources contain a slash.
    if names.iter().all(|name| name.contains('/')) {
        names
    } else {
        Vec::new()
    }
}
