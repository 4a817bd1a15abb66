//! (pure) Reasons why a pod does not start: its volumes, its container, a silent kubelet or runner. [`scheduling`] has the reasons
//! why it has no node.

use crate::api::conditions::find;
use crate::api::vm::conditions::{self, ConditionReason, ReadyReason as Reason};
use crate::api::vm::diagnosis::Diagnosis;
use crate::controllers::vm::diagnose::{EXPLAIN_DELAY, SILENCE_TIMEOUT, ending, scheduling};
use crate::controllers::vm::observe::{Observed, since};
use crate::controllers::vm::views::Warning;
use crate::k8s::views::{
    ClaimView, PodConditionStatus, PodConditionType, PodConditionView, PodView,
};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// The blocking condition of a pod that has not started. `claims` are its PVCs.
pub(super) fn explain(
    observed: &Observed,
    pod: &PodView,
    claims: &[&ClaimView],
) -> Option<Diagnosis> {
    waiting_container(pod).or_else(|| match unschedulable(pod) {
        Some(message) if has_waited(observed, pod, scheduling::explain_delay(message)) => {
            Some(scheduling::explain(observed, pod, message, claims))
        }
        None if is_overdue(observed, pod) => {
            warned(observed, pod).or_else(|| node_is_silent(observed, pod))
        }
        _ => None,
    })
}

/// The condition `PodScheduled` of a pod that waits for a node or for its containers.
fn scheduled(pod: &PodView) -> Option<&PodConditionView> {
    let is_pending = pod.status.phase == "Pending"
        && !pod.has_ended()
        && pod.metadata.deletion_timestamp.is_none();
    pod.status
        .conditions
        .iter()
        .find(|c| is_pending && c.type_ == PodConditionType::PodScheduled)
}

/// The time since which the pod waits.
pub(super) fn waits_since(pod: &PodView) -> Option<Timestamp> {
    time(scheduled(pod)?)
}

/// Whether the pod waits longer than pods usually do.
fn is_overdue(observed: &Observed, pod: &PodView) -> bool {
    has_waited(observed, pod, EXPLAIN_DELAY)
}

fn has_waited(observed: &Observed, pod: &PodView, delay: Duration) -> bool {
    delay.is_zero() || waits_since(pod).is_some_and(|start| since(start, observed.now) >= delay)
}

/// UIDs of the objects with events that may explain why the pod does not start.
pub(super) fn suspects(observed: &Observed, pod: &PodView, claims: &[&ClaimView]) -> Vec<String> {
    if waiting_container(pod).is_some() || !is_overdue(observed, pod) {
        return Vec::new();
    }
    match unschedulable(pod) {
        Some(message) => scheduling::unbound(message, claims)
            .into_iter()
            .filter_map(|claim| claim.metadata.uid.clone())
            .collect(),
        None => pod.metadata.uid.clone().into_iter().collect(),
    }
}

/// The pod has a node, and the node's kubelet has not reported its containers.
fn node_is_silent(observed: &Observed, pod: &PodView) -> Option<Diagnosis> {
    let start = waits_since(pod).filter(|_| pod.status.container_statuses.is_empty())?;
    let is_silent = since(start, observed.now) >= SILENCE_TIMEOUT;
    is_silent.then(|| ending::node_problem(observed, pod, "the VM's pod cannot start"))
}

/// The time since which the pod is ready without a report of its runner about this start or the VM's stop.
pub(super) fn runner_silent_since(observed: &Observed, pod: &PodView) -> Option<Timestamp> {
    let running = find(observed.conditions(), conditions::RUNNING);
    if running.is_some_and(|it| {
        ![ConditionReason::Creation, ConditionReason::VmStopped]
            .iter()
            .any(|reason| it.reason == reason.as_str())
    }) || pod.status.phase != "Running"
        || pod.import_claim().is_some()
        || pod.has_ended()
    {
        return None;
    }
    let ready = pod.condition(PodConditionType::Ready).and_then(time)?;
    Some(running.map_or(ready, |running| ready.max(running.last_transition_time.0)))
}

/// The pod is ready, and its runner has reported nothing for too long.
pub(super) fn runner_is_silent(observed: &Observed, pod: &PodView) -> Option<Diagnosis> {
    let silent = since(runner_silent_since(observed, pod)?, observed.now);
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let problem = format!(
        "pod {name:?} is running, but vm-runner in the pod has not reported the state of the VM for {} s",
        SILENCE_TIMEOUT.as_secs()
    );
    (silent >= SILENCE_TIMEOUT).then(|| Diagnosis::documented(Reason::RunnerSilent, &problem, name))
}

fn waiting_container(pod: &PodView) -> Option<Diagnosis> {
    let container = pod
        .status
        .container_statuses
        .iter()
        .find(|c| c.state.waiting.is_some())?;
    let waiting = container.state.waiting.as_ref()?;
    let message = waiting
        .message
        .as_deref()
        .unwrap_or("the kubelet does not report why the container is waiting");
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    match waiting.reason.as_deref()? {
        why @ ("ErrImagePull"
        | "ImagePullBackOff"
        | "ErrImageNeverPull"
        | "InvalidImageName"
        | "RegistryUnavailable"
        | "SignatureValidationFailed"
        | "ImageInspectError") => {
            let problem = format!(
                "the kubelet cannot pull the image {:?} ({why}: {message})",
                container.image
            );
            Some(Diagnosis::documented(
                Reason::ImagePullFailed,
                &problem,
                name,
            ))
        }
        why @ ("CreateContainerConfigError"
        | "CreateContainerError"
        | "RunContainerError"
        | "CrashLoopBackOff") => {
            let problem = format!(
                "the kubelet cannot start the container of pod {name:?} ({why}: {message})"
            );
            Some(Diagnosis::documented(
                Reason::ContainerFailed,
                &problem,
                name,
            ))
        }
        _ => None,
    }
}

/// The scheduler's message about a pod without a node.
fn unschedulable(pod: &PodView) -> Option<&str> {
    let condition =
        scheduled(pod).filter(|condition| condition.status == PodConditionStatus::False)?;
    Some(
        condition
            .message
            .as_deref()
            .unwrap_or("the scheduler does not report why the pod has no node"),
    )
}

fn time(condition: &PodConditionView) -> Option<Timestamp> {
    condition.last_transition_time.as_ref().map(|t| t.0)
}

/// Reasons of warnings about steps before the first container. They are obsolete when the pod is ready to start containers.
const BEFORE_CONTAINERS: [&str; 4] = [
    "FailedMount",
    "FailedMapVolume",
    "FailedAttachVolume",
    "FailedCreatePodSandBox",
];

/// The pod has a node, and there is a warning about it.
fn warned(observed: &Observed, pod: &PodView) -> Option<Diagnosis> {
    let Warning { reason, note } = observed.warnings.get(pod.metadata.uid.as_ref()?)?;
    if pod
        .condition(PodConditionType::PodReadyToStartContainers)
        .is_some()
        && BEFORE_CONTAINERS.contains(&reason.as_str())
    {
        return None;
    }
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let (reason, problem) = match reason.as_str() {
        "FailedMount" | "FailedMapVolume" if note.contains("volumeMode") => (
            Reason::ClaimWrongMode,
            "the pod uses a PVC in a volume mode that differs from the mode of the PVC",
        ),
        "FailedMount" if note.contains("secret") => (
            Reason::SecretMissing,
            "the kubelet cannot mount a Secret of the VM",
        ),
        "FailedMount" => (
            Reason::VolumeMountFailed,
            "the kubelet cannot mount a volume of the VM on the node",
        ),
        "FailedMapVolume" => (
            Reason::VolumeMountFailed,
            "the kubelet cannot map a block volume of the VM on the node",
        ),
        "FailedAttachVolume" => (
            Reason::VolumeAttachFailed,
            "a volume of the VM cannot be attached to the node",
        ),
        "FailedCreatePodSandBox" => (
            Reason::SandboxFailed,
            "the kubelet cannot create the sandbox of the VM's pod",
        ),
        other => (
            Reason::PodWarning,
            &*format!("Kubernetes reports the warning event {other} about pod {name:?}"),
        ),
    };
    Some(Diagnosis::documented(
        reason,
        &format!("{problem} ({note})"),
        name,
    ))
}
