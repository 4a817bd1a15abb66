//! (pure) What is in a VM's way, in the words of somebody who has to mend it.

use super::observe::Observed;
use super::plan::Invalid;
use crate::api::conditions::ReadyReason;
use crate::api::virtual_machine::State;
use crate::operator::error::Error;
use crate::operator::views::{PodConditionView, PodView};
use k8s_openapi::jiff::SignedDuration;
use std::time::Duration;

/// A pod that finds no node is normal for a moment, while its claims are being made. Only what lasts is a problem.
pub const GRACE: SignedDuration = SignedDuration::from_secs(1);

/// Something in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What kind of thing.
    pub reason: ReadyReason,
    /// What is wrong, where, and what to do.
    pub message: String,
}

impl From<&Invalid> for Problem {
    fn from(invalid: &Invalid) -> Self {
        let Invalid { field, why, next_step } = invalid;
        Self { reason: ReadyReason::InvalidSpec, message: format!("{field}: {why}; {next_step}") }
    }
}

impl Problem {
    /// The API server's refusal of an object.
    #[must_use]
    pub fn rejected(error: &Error) -> Self {
        let message = format!("{error}; correct the VM, or the policy or quota that the message names");
        Self { reason: ReadyReason::Rejected, message }
    }
}

/// What is in the way of a VM that should run and whose pod is there.
#[must_use]
pub fn explain(observed: &Observed) -> Option<Problem> {
    if observed.vm.spec.vm.state == State::Stopped {
        return None;
    }
    if observed.pod.is_some() && observed.own_pod().is_none() {
        let message = format!(
            "a pod named {0:?} is there and does not belong to this VM; delete it (kubectl delete pod {0}) or rename the VM",
            observed.name()
        );
        return Some(Problem { reason: ReadyReason::NameTaken, message });
    }
    let pod = observed.own_pod().filter(|pod| pod.metadata.deletion_timestamp.is_none())?;
    waiting_container(pod).or_else(|| unscheduled(observed, pod))
}

/// When to look again, if something may become a problem by lasting.
#[must_use]
pub fn recheck(observed: &Observed) -> Option<Duration> {
    let pod = observed.own_pod()?;
    let since = unschedulable(pod)?.last_transition_time.as_ref()?.0;
    let left = GRACE - observed.now.duration_since(since);
    // The API server's clock may be ahead of ours: never wait for longer than twice the grace.
    Duration::try_from(left).ok().filter(|left| !left.is_zero()).map(|left| left.min(GRACE.unsigned_abs() * 2))
}

fn waiting_container(pod: &PodView) -> Option<Problem> {
    let container = pod.status.container_statuses.iter().find(|c| c.state.waiting.is_some())?;
    let waiting = container.state.waiting.as_ref()?;
    let words = waiting.message.as_deref().unwrap_or("no details given");
    let image = &container.image;
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let (reason, message) = match waiting.reason.as_deref()? {
        why @ ("ErrImagePull"
        | "ImagePullBackOff"
        | "ErrImageNeverPull"
        | "InvalidImageName"
        | "RegistryUnavailable"
        | "ImageInspectError") => (
            ReadyReason::ImagePullFailed,
            format!(
                "image {image:?} cannot be had ({why}: {words}); correct spec.image, or runnerImage in the operator's \
                 ConfigMap, or load the image where the node finds it"
            ),
        ),
        why @ ("CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" | "CrashLoopBackOff") => (
            ReadyReason::ContainerFailed,
            format!("the container cannot be started ({why}: {words}); see kubectl describe pod {name}"),
        ),
        _ => return None,
    };
    Some(Problem { reason, message })
}

fn unschedulable(pod: &PodView) -> Option<&PodConditionView> {
    let conditions = &pod.status.conditions;
    conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")
}

fn unscheduled(observed: &Observed, pod: &PodView) -> Option<Problem> {
    let condition = unschedulable(pod)?;
    let since = condition.last_transition_time.as_ref().map(|t| t.0);
    if since.is_some_and(|since| observed.now.duration_since(since) < GRACE) {
        return None;
    }
    let words = condition.message.as_deref().unwrap_or("no details given");
    let mut claims = observed.claims.values().chain(observed.image_repository.as_ref());
    let about_storage = words.to_lowercase().contains("persistent");
    let Some(claim) = claims.find(|claim| about_storage && claim.status.phase != "Bound") else {
        let message = format!(
            "no node takes the pod ({words}); make room, or change spec.vm, spec.resources or the node selection"
        );
        return Some(Problem { reason: ReadyReason::Unschedulable, message });
    };
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let (reason, state) = match claim.status.phase.as_str() {
        "Lost" => (ReadyReason::ClaimLost, "has lost its volume"),
        _ => (ReadyReason::ClaimPending, "has no volume"),
    };
    let message = format!(
        "claim {name:?} {state} ({words}); provide a volume that fits it, or change its class, selector or size: see \
         kubectl describe pvc {name}"
    );
    Some(Problem { reason, message })
}
