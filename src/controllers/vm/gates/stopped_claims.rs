//! (client) Reads PVCs that the VM has used when its pod has ended: the deletion of a PVC of a stopped VM accepts the loss of its data.

use crate::api::vm::State;
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::volumes::{DeletionEvidence, RecordedVolume};
use crate::k8s::error::Error;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

/// Reads the PVCs of a VM whose pod has ended from the API server. The store of PVCs can be older than that of pods, so a deletion under
/// the pod can be unknown. Records what this observation shows for the next one.
///
/// # Errors
/// If a request fails.
pub async fn confirm(mut observed: Observed, ctx: &VmController) -> Result<Observed, Error> {
    let key = observed.key();
    if observed.pod.is_some() {
        ctx.states.pod_seen(&key);
    }
    let had_pod = ctx.states.has_seen_pod(&key);
    let is_new = |recorded: &&mut RecordedVolume| {
        recorded.evidence == Some(DeletionEvidence::Stopped)
            && ctx
                .states
                .deletion_evidence(&key, &recorded.volume.uid)
                .is_none()
    };
    for recorded in observed
        .recorded
        .iter_mut()
        .filter(is_new)
        .filter(|_| had_pod)
    {
        let name = &recorded.volume.claim_name;
        let (writer, claims) = (ctx.scope.writer(), &ctx.caches.claims);
        let live = writer.find_into::<PersistentVolumeClaim, _>(claims, name);
        recorded.present = live.await?;
        recorded.evidence = None;
        recorded.evidence = recorded.next_evidence(State::Stopped, None);
    }
    let evidence = observed.recorded.iter();
    let evidence = evidence.filter_map(|it| Some((it.volume.uid.clone(), it.evidence?)));
    ctx.states.set_deletion_evidence(&key, evidence.collect());
    Ok(observed)
}
