//! (pure) The entries of `status.volumes`.

use crate::api::vm::UsedVolume;
use crate::controllers::vm::claim_names::used_volume;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::volumes::RecordedVolume;

/// The entries of `status.volumes` that remain, with those of a pod that was created before the operator recorded PVCs.
#[must_use]
pub fn retained(observed: &Observed) -> Vec<UsedVolume> {
    if observed.recorded.is_empty() && observed.has_started() {
        let claims = observed.claims.values().map(AsRef::as_ref);
        return claims.filter_map(used_volume).collect();
    }
    let is_retained =
        |recorded: &&RecordedVolume| !recorded.is_gone() || recorded.is_lost(&observed.vm);
    let retained = observed.recorded.iter().filter(is_retained);
    retained.map(|recorded| recorded.volume.clone()).collect()
}

/// The entries with the PVCs of a pod that is about to be created.
#[must_use]
pub fn with_mounted(mut volumes: Vec<UsedVolume>, mounted: Vec<UsedVolume>) -> Vec<UsedVolume> {
    for volume in mounted {
        volumes.retain(|other| other.claim_name != volume.claim_name);
        volumes.push(volume);
    }
    volumes.sort();
    volumes
}
