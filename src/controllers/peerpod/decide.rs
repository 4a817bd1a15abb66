//! (pure) The decision about a `PeerPod`. The first rule that applies decides.
//!
//! An instance is deleted only if it is proved to be that of the pod, and the pod has ended or has another instance. A `PeerPod` is released
//! only if its instance is proved to be gone, never existed, stays with a younger `PeerPod`, or a person has abandoned it. Time releases
//! nothing.

use crate::api::peerpod::{PeerPodReason, VirtualMachineId, names};
use crate::controllers::peerpod::facts::{Facts, Younger};
use std::time::Duration;

/// Time that the cloud-api-adaptor has to delete the instance itself.
pub const ADAPTOR_TIME: Duration = Duration::from_secs(10);

/// Delay before the pod is read again.
const POD_RECHECK: Duration = Duration::from_secs(10);

/// Delay before the claims of other `PeerPods`, or the proof at an instance, are checked again.
const CLAIM_RECHECK: Duration = Duration::from_secs(60);

/// The state of the pod and of the instance, as far as the decision has needed them.
#[derive(Clone, Debug, Default)]
pub struct Read {
    /// Whether the pod has ended, or no longer exists.
    pub pod_has_ended: Option<bool>,
    /// Time since the first sight of the end of the pod, or of a younger `PeerPod`, by the monotonic clock.
    pub waited: Duration,
    /// The instance.
    pub instance: Option<Instance>,
}

/// The instance, as its provider describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instance {
    /// It does not exist.
    Gone,
    /// It exists, and is that of the pod.
    Ours {
        /// Whether its deletion is in progress.
        is_ending: bool,
    },
    /// It exists, but nothing proves that it is that of the pod. With the reason and the next step.
    NotOurs(String),
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing to do.
    Nothing,
    /// Find out whether the pod has ended, and decide again.
    ReadPod,
    /// Describe the instance, and decide again.
    Describe(VirtualMachineId),
    /// Delete the instance.
    Delete(VirtualMachineId),
    /// Delete this `PeerPod`: the pod has a younger one.
    Supersede,
    /// Remove the finalizer.
    Release(Release),
    /// Wait, or report a problem.
    Wait {
        /// The reason.
        reason: PeerPodReason,
        /// Cause and next step.
        message: String,
        /// Delay before the next reconcile. None: a change of the objects or of the configuration is needed.
        recheck: Option<Duration>,
    },
}

/// Why a `PeerPod` is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// It names no instance.
    NoInstance,
    /// Its instance is gone.
    Gone,
    /// A younger `PeerPod` of the pod has the instance.
    Replaced,
    /// A person has abandoned the instance.
    Abandoned,
}

/// Decides. `namespaces` are those in which the controller may delete VirtualMachines.
#[must_use]
pub fn decide(facts: &Facts, read: &Read, namespaces: &[String]) -> Decision {
    if !facts.has_finalizer {
        return Decision::Nothing;
    }
    if !facts.is_ending && facts.younger.is_some() {
        return Decision::Supersede;
    }
    if facts.is_ending {
        if facts.instance.is_empty() {
            return Decision::Release(Release::NoInstance);
        }
        if facts.abandoned.as_ref() == Some(&facts.instance) {
            return Decision::Release(Release::Abandoned);
        }
        if facts.younger == Some(Younger::SameInstance) {
            return Decision::Release(Release::Replaced);
        }
    }
    let id = match id(facts, namespaces) {
        Ok(id) => id,
        // An object without an instance needs none.
        Err(_) if facts.instance.is_empty() => return Decision::Nothing,
        Err((reason, message)) => return wait(reason, message, None),
    };
    if !facts.is_ending {
        return Decision::Nothing;
    }
    if let Some(older) = &facts.older_claim {
        let message = format!(
            "PeerPod {older} is older and names the same instance, so this PeerPod deletes nothing. It is released when {older} no longer \
             exists and the instance is gone. To release it now, {}",
            annotate(facts)
        );
        return wait(PeerPodReason::InstanceNotOurs, message, Some(CLAIM_RECHECK));
    }
    end(facts, read, id)
}

/// The end of an instance that a `PeerPod` names validly.
fn end(facts: &Facts, read: &Read, id: VirtualMachineId) -> Decision {
    let Some(owner) = &facts.owner else {
        let message = format!(
            "no Pod owns the PeerPod, so nothing proves that the instance belongs to it; {}",
            abandon(facts)
        );
        return wait(PeerPodReason::InstanceNotOurs, message, None);
    };
    // A younger PeerPod shows that the adaptor has replaced the instance.
    if facts.younger.is_none() {
        match read.pod_has_ended {
            None => return Decision::ReadPod,
            Some(false) => {
                let message = format!(
                    "pod {} has not ended; the instance is deleted after its end",
                    owner.name
                );
                return wait(PeerPodReason::WaitingForPod, message, Some(POD_RECHECK));
            }
            Some(true) => {}
        }
    }
    let left = ADAPTOR_TIME.saturating_sub(read.waited);
    if !left.is_zero() {
        let message =
            "the cloud-api-adaptor has 10 s to delete the instance; then the controller deletes it";
        return wait(
            PeerPodReason::WaitingForAdaptor,
            message.to_owned(),
            Some(left),
        );
    }
    match &read.instance {
        None => Decision::Describe(id),
        Some(Instance::Gone) => Decision::Release(Release::Gone),
        Some(Instance::NotOurs(why)) => {
            let message = format!("{why}. To retain the instance, {}", annotate(facts));
            wait(PeerPodReason::InstanceNotOurs, message, Some(CLAIM_RECHECK))
        }
        Some(Instance::Ours { is_ending: false }) => Decision::Delete(id),
        Some(Instance::Ours { is_ending: true }) => {
            let message = format!(
                "VirtualMachine {}/{} is being deleted",
                id.namespace, id.name
            );
            wait(PeerPodReason::Deleting, message, Some(recheck(read.waited)))
        }
    }
}

/// The delay before the instance is described again: 2 s at first, and 30 s at most.
fn recheck(waited: Duration) -> Duration {
    waited.clamp(Duration::from_secs(2), Duration::from_secs(30))
}

fn wait(reason: PeerPodReason, message: String, recheck: Option<Duration>) -> Decision {
    Decision::Wait {
        reason,
        message,
        recheck,
    }
}

fn annotate(facts: &Facts) -> String {
    let annotation = names::ANNOTATION_ABANDON;
    format!("annotate the PeerPod with {annotation}: {}", facts.instance)
}

/// The next step if the controller cannot delete the instance.
fn abandon(facts: &Facts) -> String {
    if facts.is_ending {
        let annotate = annotate(facts);
        return format!(
            "delete the instance by hand if it belongs to the PeerPod, then {annotate}"
        );
    }
    "correct the configuration of the cloud-api-adaptor before the pod ends".to_owned()
}

/// The instance, or the reason why it cannot be deleted.
fn id(facts: &Facts, namespaces: &[String]) -> Result<VirtualMachineId, (PeerPodReason, String)> {
    let (provider, instance) = (&facts.provider, &facts.instance);
    if provider != names::PROVIDER_VIRTUAL_MACHINE {
        let message = format!(
            "this controller does not know the provider {provider:?}; peerpod-ctrl of confidential containers deletes its instances; {}",
            abandon(facts)
        );
        return Err((PeerPodReason::ProviderNotSupported, message));
    }
    let id: VirtualMachineId = instance.parse().map_err(|next| {
        let message = format!(
            "the instance ID {instance:?} is malformed: {next}; {}",
            abandon(facts)
        );
        (PeerPodReason::InstanceIDInvalid, message)
    })?;
    if !namespaces.contains(&id.namespace) {
        let message = format!(
            "the configuration does not allow deletions of VirtualMachines in namespace {0}; add {0} to virtualMachine.namespaces in \
             ConfigMap {1}, and give the controller the permissions there",
            id.namespace,
            names::MANAGER
        );
        return Err((PeerPodReason::ConfigMissing, message));
    }
    Ok(id)
}

#[cfg(test)]
mod tests;
