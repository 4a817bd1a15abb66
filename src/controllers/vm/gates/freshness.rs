//! (client) Before a pod is created, deleted or reconfigured, the VM is read from the API server.
//!
//! Each kind has its own watch, and one may be behind another: an operator that has just become the leader may know the pod, and not
//! yet that somebody has started the stopped VM.

use crate::api::VirtualMachine;
use crate::controllers::vm::apply::dependencies::is_config_map_outdated;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::decide::{Decision, DeleteReason};
use crate::controllers::vm::objects::Objects;
use crate::controllers::vm::observe::Observed;
use crate::k8s::error::Error;
use crate::k8s::store::children::version;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use std::time::Duration;

/// When the VM is reconciled again if the watch has not reported the newer version before.
pub const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Whether the decision holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// The VM is known as it is now, or the decision does not depend on it.
    Yes,
    /// The VM has changed or was deleted. The watch will report that.
    Behind,
}

/// Reads the VM where the decision depends on it.
///
/// # Errors
/// If the API server cannot be asked.
pub async fn confirmed(
    observed: &Observed,
    decision: &Decision,
    objects: Option<&Objects>,
    ctx: &Context,
) -> Result<Confirmed, Error> {
    if !depends_on_vm(observed, decision, objects) {
        return Ok(Confirmed::Yes);
    }
    let Some(live) = live(observed, ctx).await? else {
        return Ok(Confirmed::Behind);
    };
    let is_newer = match decision {
        // The status says whether the guest runs.
        Decision::Delete {
            why: DeleteReason::Outdated,
            ..
        } => version(&live) > version(&*observed.vm),
        // The status changes more often than the rest, and nothing else depends on it.
        _ => live.metadata.generation > observed.vm.metadata.generation,
    };
    Ok(if is_newer {
        Confirmed::Behind
    } else {
        Confirmed::Yes
    })
}

/// The VM as the API server has it now; `None` if it was deleted or replaced.
///
/// # Errors
/// If the API server cannot be asked.
pub async fn live(
    observed: &Observed,
    ctx: &Context,
) -> Result<Option<PartialObjectMeta<VirtualMachine>>, Error> {
    let live: Option<PartialObjectMeta<_>> = ctx
        .writer()
        .find::<VirtualMachine, _>(&observed.name())
        .await?;
    Ok(live.filter(|live| live.uid() == observed.vm.uid()))
}

/// Whether a pod is created, or one that has not ended is deleted or reconfigured.
fn depends_on_vm(observed: &Observed, decision: &Decision, objects: Option<&Objects>) -> bool {
    let pod = observed.own_pod();
    if pod.is_some_and(|pod| pod.has_ended()) {
        return false;
    }
    match decision {
        Decision::Create | Decision::Delete { .. } => true,
        // A pod or a ConfigMap that a watch has not reported yet may exist.
        _ => objects.is_some_and(|objects| {
            observed.config_map.is_none() && pod.is_some()
                || is_config_map_outdated(&objects.config_map, observed)
        }),
    }
}
