//! (pure) The PVCs that pods of a VM have mounted: their record in `status.volumes`, and the PVCs among them that no longer exist.
//!
//! A pod that mounts a PVC keeps the PVC from being removed until the pod is deleted. So a used PVC that is gone was deleted by a person or
//! another program. The operator creates no empty PVC in its place unless the loss is accepted, by one of:
//!
//! * a PVC of that name with another UID,
//! * the annotation [`names::ANNOTATION_ACCEPT_LOSS`] of the VM,
//! * a deletion that the operator has seen while the VM was stopped and had no pod, or of a PVC without a volume: [`DeletionEvidence`].

use crate::api::VirtualMachine;
use crate::api::vm::{State, UsedVolume, names};
use crate::controllers::vm::claim_names;
use crate::controllers::vm::views::other_owner_of;
use crate::k8s::views::{ClaimView, PodView};
use kube::ResourceExt;
use std::sync::Arc;

/// An entry of `status.volumes`.
#[derive(Clone, Debug)]
pub struct RecordedVolume {
    /// Name and UID.
    pub volume: UsedVolume,
    /// The PVC with that name. It may have another UID.
    pub present: Option<Arc<ClaimView>>,
    /// The operator's own observation of the deletion.
    pub evidence: Option<DeletionEvidence>,
}

/// The observation that makes a deletion of the PVC harmless or intended. The operator keeps it in memory only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionEvidence {
    /// The PVC existed while the VM was stopped and had no pod.
    Stopped,
    /// The PVC existed without a volume, so it contains no data.
    Unbound,
    /// The PVC was deleted after one of the two.
    Accepted,
}

impl RecordedVolume {
    /// Whether the PVC no longer exists.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.present
            .as_ref()
            .is_none_or(|claim| claim.metadata.uid.as_deref() != Some(self.volume.uid.as_str()))
    }

    /// Whether the labels of the PVC name another VM than the one with that name.
    #[must_use]
    pub fn has_other_owner(&self, vm: &str) -> bool {
        let present = self.present.as_deref();
        present.is_some_and(|claim| other_owner_of(claim, vm).is_some())
    }

    /// Whether the VM needs the PVC, and its data is lost without the acceptance of a person.
    #[must_use]
    pub fn is_lost(&self, vm: &VirtualMachine) -> bool {
        let is_replaced = self.present.is_some() && !self.has_other_owner(&vm.name_any());
        self.is_gone()
            && !is_replaced
            && self.evidence != Some(DeletionEvidence::Accepted)
            && claim_names::generates(vm, &self.volume.claim_name)
            && !accepted_uids(vm).any(|uid| uid == self.volume.uid)
    }

    /// The evidence after this observation of the VM's desired state and pod. Only a reconcile creates a pod, so none was created
    /// since the previous observation.
    #[must_use]
    pub fn next_evidence(&self, state: State, pod: Option<&PodView>) -> Option<DeletionEvidence> {
        use DeletionEvidence::{Accepted, Stopped, Unbound};
        let present = self.present.as_deref().filter(|_| !self.is_gone());
        let is_unbound = present.is_some_and(|claim| claim.status.phase == "Pending");
        let is_deleting = present.is_none_or(|it| it.metadata.deletion_timestamp.is_some());
        if !is_deleting {
            let is_stopped = state == State::Stopped && pod.is_none();
            // A pod gets a node only after its PVCs have volumes. So the store has an old state of this PVC.
            let is_unbound = is_unbound && !pod.is_some_and(has_node);
            return match (is_unbound, is_stopped) {
                (true, _) => Some(Unbound),
                (false, true) => Some(Stopped),
                (false, false) => None,
            };
        }
        match self.evidence? {
            Unbound if is_unbound => Some(Unbound),
            // The PVC may have got a volume after the last observation, and a pod with a node may have written to it.
            Unbound if pod.is_some_and(has_node) => None,
            Stopped | Unbound | Accepted => Some(Accepted),
        }
    }
}

fn has_node(pod: &PodView) -> bool {
    pod.spec.node_name.is_some()
}

/// The UIDs in the annotation [`names::ANNOTATION_ACCEPT_LOSS`].
fn accepted_uids(vm: &VirtualMachine) -> impl Iterator<Item = &str> {
    let annotation = vm.annotations().get(names::ANNOTATION_ACCEPT_LOSS);
    annotation
        .into_iter()
        .flat_map(|uids| uids.split(',').map(str::trim))
}
