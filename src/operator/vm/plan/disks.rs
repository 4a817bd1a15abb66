//! (pure) The disks and their claims.

use super::{Invalid, invalid};
use crate::api::virtual_machine::{ClaimMetadata, ClaimSpec};
use crate::operator::views::vm_of;
use crate::operator::vm::observe::{self, Observed};
use kube::ResourceExt;
use std::collections::BTreeSet;

/// A disk with a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskPlan {
    /// Name of the device under `/dev`.
    pub name: String,
    /// Name of the claim.
    pub claim: String,
    /// Labels and annotations of the claim.
    pub metadata: ClaimMetadata,
    /// The claim.
    pub spec: ClaimSpec,
}

pub(super) fn disks(observed: &Observed) -> Result<Vec<DiskPlan>, Invalid> {
    let vm = &observed.vm;
    let mut seen = BTreeSet::new();
    let mut plans = Vec::new();
    let templates = vm.spec.vm.disks.iter().enumerate();
    let templates = templates.filter_map(|(i, disk)| disk.volume_claim_template.as_ref().map(|template| (i, template)));
    for ((i, template), (name, claim)) in templates.zip(observe::disk_names(vm)) {
        let field = |rest: &str| format!("spec.vm.disks[{i}].volumeClaimTemplate.{rest}");
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !name.chars().all(legal) || name.starts_with('-') || name.len() > 63 {
            let why = format!("a disk named {name:?} cannot be a volume of the pod");
            return invalid(field("metadata.name"), why, "use up to 58 lower-case letters, digits and dashes");
        }
        if !seen.insert(name.clone()) {
            return invalid(field("metadata.name"), format!("two disks are named {name:?}"), "give each its own name");
        }
        let owner = observed.claims.get(&claim).and_then(|claim| vm_of(claim.as_ref()));
        if let Some(owner) = owner.filter(|owner| *owner != vm.name_any()) {
            let why = format!("its claim {claim:?} is there already and belongs to VM {owner:?}");
            return invalid(field("metadata.name"), why, "give the disk another name");
        }
        let spec = template.spec.clone().unwrap_or_default();
        if spec.volume_mode != "Block" {
            let why = format!("{:?} disks cannot be used by this version", spec.volume_mode);
            return invalid(field("spec.volumeMode"), why, "use Block");
        }
        plans.push(DiskPlan { name, claim, metadata: template.metadata.clone().unwrap_or_default(), spec });
    }
    Ok(plans)
}
