//! (client) Before a guest that runs is ended, or given another configuration, the API server is asked whether the VM still says
//! so.
//!
//! Each kind has its own watch, and one may be behind the other: an operator that has just begun to lead may know the pod, and
//! not yet that somebody has started the VM that was stopped. One that leads for long knows the VM that it made the pod for
//! ([`Versions`]) and would not need to ask; it does so all the same, as a request for each such change is little.
//!
//! [`Versions`]: crate::operator::versions::Versions

use super::apply::config_map;
use super::build::Objects;
use super::lifecycle::{Decision, DeleteReason};
use super::observe::Observed;
use crate::api::VirtualMachine;
use crate::operator::context::Context;
use crate::operator::error::Error;
use crate::operator::versions::version;
use crate::operator::write::Writer;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use std::time::Duration;

/// When the API server is asked again about a VM that is gone, or is another by now, if the watch has not told of that before.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What the API server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// The VM says what it is known to say; or no guest would feel what follows from that, and nobody was asked.
    Yes,
    /// It says something else by now, of which the watch will tell.
    Behind {
        /// When to look again if it has not.
        ask_again: Duration,
    },
}

/// Asks, where it matters.
///
/// # Errors
/// If the API server cannot be asked.
pub async fn confirmed(
    observed: &Observed,
    decision: &Decision,
    objects: Option<&Objects>,
    ctx: &Context,
) -> Result<Confirmed, Error> {
    if !is_felt(observed, decision, objects) {
        return Ok(Confirmed::Yes);
    }
    let Some(there) = still_there(observed, ctx).await? else {
        return Ok(Confirmed::Behind { ask_again: ASK_AGAIN });
    };
    let is_newer = match decision {
        // Whether it has begun is in the status, too.
        Decision::Delete { why: DeleteReason::Outdated, .. } => version(&there) > version(&*observed.vm),
        // Statuses change more often than that, and nothing else depends on them.
        _ => there.metadata.generation > observed.vm.metadata.generation,
    };
    if !is_newer {
        return Ok(Confirmed::Yes);
    }
    ctx.versions.saw_meta(&there.metadata);
    Ok(Confirmed::Behind { ask_again: ctx.versions.wait(&observed.vm, (ctx.instant)()).unwrap_or(ASK_AGAIN) })
}

/// The VM as the API server knows it now; none, if it is gone, or another of its name is there.
///
/// # Errors
/// If the API server cannot be asked.
pub async fn still_there(
    observed: &Observed,
    ctx: &Context,
) -> Result<Option<PartialObjectMeta<VirtualMachine>>, Error> {
    let there: Option<PartialObjectMeta<_>> = Writer::new(ctx).find::<VirtualMachine, _>(&observed.name()).await?;
    Ok(there.filter(|there| there.uid() == observed.vm.uid()))
}

/// Whether a guest that runs would feel it. How a pod has ended is another matter: that is not the VM's to say.
fn is_felt(observed: &Observed, decision: &Decision, objects: Option<&Objects>) -> bool {
    let pod = observed.own_pod();
    if pod.is_some_and(|pod| pod.has_ended()) {
        return false;
    }
    match decision {
        Decision::Delete { .. } => true,
        // A pod or a ConfigMap of which a watch has not told yet may be there.
        _ => objects.is_some_and(|objects| {
            observed.config_map.is_none() && pod.is_some() || config_map::changes(&objects.config_map, observed)
        }),
    }
}
