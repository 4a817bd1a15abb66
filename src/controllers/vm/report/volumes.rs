//! (pure) The entries of `status.volumes`.

use crate::api::vm::UsedVolume;
use crate::controllers::vm::claim_names::{generates, used_volume};
use crate::controllers::vm::decide::Decision;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::views::other_owner_of;
use crate::controllers::vm::volumes::RecordedVolume;

/// The entries of `status.volumes` that remain, with those of a pod that was created before the operator recorded PVCs.
#[must_use]
pub fn retained(observed: &Observed) -> Vec<UsedVolume> {
    let name = observed.name();
    if observed.recorded.is_empty() && observed.own_pod().is_some() {
        let claims = observed.claims.values().map(AsRef::as_ref);
        let own = claims.filter(|claim| other_owner_of(*claim, &name).is_none());
        return own.filter_map(used_volume).collect();
    }
    let is_retained = |recorded: &&RecordedVolume| {
        let is_needed = generates(&observed.vm, &recorded.volume.claim_name);
        match (recorded.is_gone(), is_needed) {
            // An entry whose PVC was replaced ends with the next pod. Until then, the name belongs to this VM.
            (true, true) => recorded.present.is_some() || recorded.is_lost(&observed.vm),
            (true, false) => false,
            (false, is_needed) => is_needed || !recorded.has_other_owner(&name),
        }
    };
    let retained = observed.recorded.iter().filter(is_retained);
    retained.map(|recorded| recorded.volume.clone()).collect()
}

/// The entries with the PVCs of a pod that is about to be created.
#[must_use]
pub fn with_mounted(mut volumes: Vec<UsedVolume>, mounted: Vec<UsedVolume>) -> Vec<UsedVolume> {
    for volume in mounted {
        // A present entry for the PVC records its import.
        let present = volumes.iter().any(|it| it.is_same(&volume));
        if !present {
            volumes.retain(|other| other.claim_name != volume.claim_name);
            volumes.push(volume);
        }
    }
    volumes.sort();
    volumes
}

/// The entries with the import that the decision records.
#[must_use]
pub fn with_import(mut volumes: Vec<UsedVolume>, decision: &Decision) -> Vec<UsedVolume> {
    if let Decision::RecordImport { claim } = decision {
        let filled = volumes.iter_mut().filter(|it| it.claim_name == *claim);
        filled.for_each(|it| it.imported = true);
    }
    volumes
}
