//! (pure) What is in a VM's way, in the words of somebody who has to mend it.

use super::observe::Observed;
use super::plan::Invalid;
use crate::api::conditions::ReadyReason;
use crate::api::virtual_machine::State;
use crate::operator::error::Error;
use crate::operator::views::{ClaimView, PodConditionView, PodView};
use k8s_openapi::jiff::SignedDuration;
use std::time::Duration;

/// A pod that finds no node is normal while volumes for its claims are being made, which takes seconds. Only what lasts
/// is a problem. The times that this is compared with are whole seconds, so it is up to one second less.
pub const GRACE: SignedDuration = SignedDuration::from_secs(5);

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
        if let Error::Foreign { kind, name } = error {
            let message = format!(
                "{error}; remove it (kubectl delete {} {name}) or give the VM or its disk another name",
                kind.to_lowercase()
            );
            return Self { reason: ReadyReason::NameTaken, message };
        }
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
    if observed.pod.as_ref().is_some_and(|pod| !of_a_namesake(pod) && pod.metadata.deletion_timestamp.is_none())
        && observed.own_pod().is_none()
    {
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

/// Whether the pod belongs to a VM of its name: this one, or an earlier one, with which it goes.
fn of_a_namesake(pod: &PodView) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.kind == "VirtualMachine" && Some(&owner.name) == pod.metadata.name.as_ref())
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
    let about_storage = words.to_lowercase().contains("persistent");
    match without_volume(observed).first().filter(|_| about_storage) {
        Some(claim) => Some(claim_problem(claim, words)),
        None => {
            let message = format!(
                "no node takes the pod ({words}); make room, or change spec.vm, spec.resources or the node selection"
            );
            Some(Problem { reason: ReadyReason::Unschedulable, message })
        }
    }
}

/// Claims without a volume, the likeliest culprit first: one whose class makes volumes often only waits for the pod to
/// get a node, while one that has lost its volume, or must find one that is there already, keeps the pod waiting.
fn without_volume(observed: &Observed) -> Vec<&ClaimView> {
    let has_cd_drive = observed.vm.spec.vm.disks.iter().any(|disk| disk.cdrom.is_some());
    let repository = observed.image_repository.as_ref().filter(|_| has_cd_drive);
    let claims = observed.claims.values().chain(repository).map(AsRef::as_ref);
    let mut claims: Vec<&ClaimView> = claims.filter(|claim| claim.status.phase != "Bound").collect();
    claims.sort_by_key(|claim| match (claim.status.phase.as_str(), claim.spec.storage_class_name.as_deref()) {
        ("Lost", _) => 0,
        (_, Some("")) => 1,
        _ => 2,
    });
    claims
}

fn claim_problem(claim: &ClaimView, words: &str) -> Problem {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let (reason, state) = match claim.status.phase.as_str() {
        "Lost" => (ReadyReason::ClaimLost, "has lost its volume"),
        _ => (ReadyReason::ClaimPending, "has no volume"),
    };
    let message = format!(
        "claim {name:?} {state} ({words}); provide a volume that fits it, or change its class, selector or size: see \
         kubectl describe pvc {name}"
    );
    Problem { reason, message }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{alone, now, pod, vm, with_pod};
    use super::*;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn running(status: Value) -> Observed {
        with_pod(vm(json!({"state": "Running"})), pod(status))
    }

    fn unschedulable_for(seconds: i64, message: &str) -> Observed {
        let since = now().checked_sub(SignedDuration::from_secs(seconds)).unwrap();
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": message, "lastTransitionTime": since,
        });
        running(json!({"phase": "Pending", "conditions": [condition]}))
    }

    #[test]
    fn an_image_that_cannot_be_had_is_named() {
        let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}});
        let problem =
            explain(&running(json!({"containerStatuses": [{"image": "no/such:1", "state": waiting}]}))).unwrap();
        assert_eq!(problem.reason, ReadyReason::ImagePullFailed);
        assert!(problem.message.contains("no/such:1") && problem.message.contains("spec.image"), "{}", problem.message);
    }

    #[test]
    fn a_pod_without_a_node_is_a_problem_only_if_it_lasts() {
        let words = "0/1 nodes are available: 1 Insufficient memory.";
        assert_eq!(explain(&unschedulable_for(4, words)), None);
        assert_eq!(recheck(&unschedulable_for(4, words)), Some(Duration::from_secs(1)));
        let lasting = unschedulable_for(5, words);
        assert_eq!(explain(&lasting).unwrap().reason, ReadyReason::Unschedulable);
        assert_eq!(recheck(&lasting), None);
    }

    #[test]
    fn a_claim_without_a_volume_is_named_with_what_to_do() {
        let mut observed = unschedulable_for(5, "pod has unbound immediate PersistentVolumeClaims");
        for (name, class) in [("vm-runner-data", "default"), ("vm-system-disk", "")] {
            let spec = json!({"storageClassName": class});
            let claim = json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": "Pending"}});
            observed.claims.insert(name.to_owned(), Arc::new(serde_json::from_value(claim).unwrap()));
        }
        let problem = explain(&observed).unwrap();
        assert_eq!(problem.reason, ReadyReason::ClaimPending);
        assert!(problem.message.contains("kubectl describe pvc vm-system-disk"), "{}", problem.message);
    }

    #[test]
    fn nothing_is_in_the_way_of_a_vm_that_runs_or_should_not() {
        assert_eq!(explain(&running(json!({"phase": "Running"}))), None);
        assert_eq!(explain(&alone(vm(json!({"state": "Running"})))), None);
        let mut stopped = unschedulable_for(60, "no node");
        Arc::make_mut(&mut stopped.vm).spec.vm.state = State::Stopped;
        assert_eq!(explain(&stopped), None);
    }
}
