//! (pure) The names of the PVCs of VMs. Two VMs can generate the same name, because it consists of a VM's name and a disk's name.

use crate::api::VirtualMachine;
use crate::api::vm::{UsedVolume, names};
use crate::k8s::views::ClaimView;
use kube::ResourceExt;

/// The runner data's part of the name in [`names::legacy_claim`].
pub const RUNNER_DATA: &str = "runner-data";

/// Names of a VM's disks with PVCs, in order, with the names of the PVCs.
#[must_use]
pub fn disk_names(vm: &VirtualMachine) -> Vec<(String, String)> {
    let templates = vm
        .spec
        .vm
        .disks
        .iter()
        .filter_map(|disk| disk.volume_claim_template.as_ref());
    let disks = templates.enumerate().map(|(n, template)| {
        let name = template.metadata.as_ref().and_then(|m| m.name.as_deref());
        let disk = names::disk(name, n);
        let claim = names::disk_claim(&vm.name_any(), &disk);
        (disk, claim)
    });
    disks.collect()
}

/// Names of the VM's PVCs, each with the name that an early Java VM-Operator has used.
pub fn claim_names(vm: &VirtualMachine) -> impl Iterator<Item = [String; 2]> {
    let name = vm.name_any();
    let runner_data = (RUNNER_DATA.to_owned(), names::runner_data_claim(&name));
    let all = disk_names(vm).into_iter().chain([runner_data]);
    all.map(move |(disk, claim)| [names::legacy_claim(&name, &disk), claim])
}

/// Whether a PVC of the VM can have that name.
#[must_use]
pub fn generates(vm: &VirtualMachine, claim: &str) -> bool {
    claim_names(vm).flatten().any(|name| name == claim)
}

/// Whether the VM needs that name: it creates such a PVC, or it uses the present one.
#[must_use]
pub fn needs(vm: &VirtualMachine, claim: &str, present: Option<&ClaimView>) -> bool {
    let used = present.and_then(used_volume);
    claim_names(vm).any(|[legacy, name]| name == claim || present.is_some() && legacy == claim)
        || used.is_some_and(|used| volumes_of(vm).iter().any(|it| it.is_same(&used)))
}

/// A VM that generates a PVC name which another VM generates, too.
#[derive(Clone, Copy, Debug)]
pub struct ConflictingVm<'a> {
    /// Name of the VM.
    pub name: &'a str,
    /// The VM. `None` if only its pod still exists, so that it is unknown whether the pod names the PVC.
    pub vm: Option<&'a VirtualMachine>,
    /// Whether the VM has a pod. The pod names the PVC, also if the PVC does not exist.
    pub has_pod: bool,
}

/// The VM to which the PVC name belongs if no label of a present PVC names a VM: the one that has used the present PVC, then one that has
/// used an earlier PVC of this name, then one with a pod, then the oldest.
#[must_use]
pub fn claim_name_owner<'a>(
    claim: &str,
    conflicting: &[ConflictingVm<'a>],
    present: Option<&ClaimView>,
) -> Option<&'a str> {
    let used = present.and_then(used_volume);
    let rank = |it: &&ConflictingVm| {
        let volumes = it.vm.map(volumes_of).unwrap_or_default();
        let has_used = used
            .as_ref()
            .is_some_and(|used| volumes.iter().any(|it| it.is_same(used)));
        let has_used_name = volumes.iter().any(|volume| volume.claim_name == claim);
        let created = it.vm.and_then(|vm| vm.metadata.creation_timestamp.as_ref());
        let uid = it.vm.and_then(|vm| vm.metadata.uid.as_ref());
        let order = (!has_used, !has_used_name, !it.has_pod);
        (order, created.map(|it| it.0), uid.cloned())
    };
    // Without a PVC, nothing is lost if a pod without a VM is ignored.
    let counts = |it: &&ConflictingVm| it.vm.is_some() || it.has_pod && present.is_some();
    let conflicting = conflicting.iter().filter(counts);
    conflicting.min_by_key(rank).map(|it| it.name)
}

/// `status.volumes`
#[must_use]
pub fn volumes_of(vm: &VirtualMachine) -> &[UsedVolume] {
    vm.status.as_ref().map_or(&[], |status| &status.volumes)
}

/// Name and UID of the PVC.
#[must_use]
pub fn used_volume(claim: &ClaimView) -> Option<UsedVolume> {
    Some(UsedVolume {
        claim_name: claim.metadata.name.clone()?,
        uid: claim.metadata.uid.clone()?,
        imported: false,
    })
}
