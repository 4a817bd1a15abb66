//! (client) Reads the VM from the API server before its pod is created, deleted or reconfigured. The status of a start takes the place of
//! the read, because its write has the version of the VM as a precondition.
//!
//! Each kind has its own watch, and one may be behind another. For example, a new leader may have received the pod, but
//! not the change of the VM from stopped to running.

use crate::controllers::vm::apply::dependencies::is_config_map_outdated;
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::decide::{Decision, DeleteReason};
use crate::controllers::vm::diagnose;
use crate::controllers::vm::objects::Objects;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::report;
use crate::k8s::error::Error;
use crate::k8s::store::children::version;
use kube::ResourceExt;
use std::time::Duration;

/// The time until the next reconcile if the watch has not reported the newer version before.
pub const RECHECK_DELAY: Duration = Duration::from_secs(1);

/// Whether the observed VM is current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The API server has no newer version of the VM, or the decision does not depend on it.
    Current,
    /// The VM has changed or was deleted. The watch will report that.
    Stale,
}

/// Compares the observed VM with the API server's if the decision depends on it. `observed` gets the VM with the status of a start.
///
/// # Errors
/// If the request fails.
pub async fn check(
    observed: &mut Observed,
    decision: &Decision,
    objects: Option<&Objects>,
    ctx: &VmController,
) -> Result<Freshness, Error> {
    let creates_claim = objects.is_some_and(|objects| creates_claim(objects, observed));
    if !creates_claim && !depends_on_vm(observed, decision, objects) {
        return Ok(Freshness::Current);
    }
    // A PVC of an outdated spec could not be taken back, and the status with a new PVC needs its UID.
    let is_start = *decision == Decision::Create && !creates_claim;
    let has_claims = is_start && objects.is_some_and(|objects| has_records(objects, observed));
    if has_claims && diagnose::explain(observed).is_none() {
        match report::report_start(observed, ctx).await {
            Ok(true) => return Ok(Freshness::Current),
            Err(error) if error.code() == Some(409) || error.is_absence() => {
                return Ok(Freshness::Stale);
            }
            Err(error) => return Err(error),
            Ok(false) => {}
        }
    }
    let Some(live) = ctx.scope.writer().find_metadata(&*observed.vm).await? else {
        return Ok(Freshness::Stale);
    };
    let is_newer = match decision {
        // The status has the PVCs that the VM has used. An empty PVC must not replace one of them.
        _ if creates_claim => version(&live) > version(&*observed.vm),
        // This decision depends on the status, which reports whether the guest runs.
        Decision::Delete {
            why: DeleteReason::Outdated | DeleteReason::OtherClaim,
            ..
        } => version(&live) > version(&*observed.vm),
        // Other decisions do not depend on the status, which changes more often than the spec.
        _ => live.metadata.generation > observed.vm.metadata.generation,
    };
    Ok(if is_newer {
        Freshness::Stale
    } else {
        Freshness::Current
    })
}

/// Whether a PVC of the VM is going to be created.
fn creates_claim(objects: &Objects, observed: &Observed) -> bool {
    objects
        .claims()
        .any(|claim| !observed.claims.contains_key(&claim.name_any()))
}

/// Whether the status records each PVC of the VM.
fn has_records(objects: &Objects, observed: &Observed) -> bool {
    let recorded = observed.recorded.iter().map(|it| &it.volume.claim_name);
    objects
        .claims()
        .all(|claim| recorded.clone().any(|name| *name == claim.name_any()))
}

/// Whether the decision creates a pod, or deletes or reconfigures a pod that has not ended.
fn depends_on_vm(observed: &Observed, decision: &Decision, objects: Option<&Objects>) -> bool {
    let pod = observed.own_pod();
    if pod.is_some_and(|pod| pod.has_ended()) {
        return false;
    }
    match decision {
        Decision::Create | Decision::Delete { .. } => true,
        // The present ConfigMap would be patched, or one may exist that the watch has not reported yet.
        _ => objects.is_some_and(|objects| {
            observed.config_map.is_none() && pod.is_some()
                || is_config_map_outdated(&objects.config_map, observed)
        }),
    }
}
