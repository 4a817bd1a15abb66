//! (pure) PVCs that the VM has used and that no longer exist.

use crate::api::vm::conditions::ReadyReason;
use crate::api::vm::diagnosis::Diagnosis;
use crate::api::vm::{UsedVolume, names};
use crate::controllers::vm::observe::Observed;
use kube::ResourceExt;

/// The blocking condition of a VM that has lost a PVC.
///
/// # Errors
/// If a PVC is lost.
pub(super) fn check(observed: &Observed) -> Result<(), Diagnosis> {
    let lost: Vec<&UsedVolume> = observed
        .recorded
        .iter()
        .filter(|recorded| recorded.is_lost(&observed.vm))
        .map(|recorded| &recorded.volume)
        .collect();
    if lost.is_empty() {
        return Ok(());
    }
    let claims: Vec<String> = lost
        .iter()
        .map(|volume| format!("PVC {:?} (UID {})", volume.claim_name, volume.uid))
        .collect();
    let claim_names: Vec<String> = lost
        .iter()
        .map(|volume| format!("PVC {:?}", volume.claim_name))
        .collect();
    let uids: Vec<&str> = lost.iter().map(|volume| volume.uid.as_str()).collect();
    let (name, namespace) = (observed.name(), observed.vm.namespace().unwrap_or_default());
    Err(Diagnosis::new(
        ReadyReason::DataMissing,
        format!(
            "the VM has lost {}; the operator creates no empty PVC in place of a lost one",
            claims.join(" and ")
        ),
        format!(
            "create {} from a backup, or from the PersistentVolume after you have removed spec.claimRef. To give up the data and start \
             with empty PVCs: kubectl annotate --overwrite vm {name} -n {namespace} {}={}",
            claim_names.join(" and "),
            names::ANNOTATION_ACCEPT_LOSS,
            uids.join(",")
        ),
    ))
}
