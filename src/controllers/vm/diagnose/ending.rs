//! (pure) Reasons why a pod does not stop: a finalizer, or a node that does not answer.
//!
//! The operator never deletes a pod by force: a pod on an unreachable node may still run its guest, and a second guest
//! would corrupt the disks. An administrator sets the taint `out-of-service` on a node that is certainly powered off.
//! Kubernetes then removes the pod, and the VM starts on another node.

use crate::api::vm::conditions::ReadyReason as Reason;
use crate::api::vm::diagnosis::Diagnosis;
use crate::controllers::vm::diagnose::EXPLAIN_DELAY;
use crate::controllers::vm::observe::{Observed, since};
use crate::k8s::views::{PodConditionStatus, PodConditionType, PodView};

/// The blocking condition of a pod that does not stop, or of a pod on a node that does not answer.
pub(super) fn explain(observed: &Observed, pod: &PodView) -> Option<Diagnosis> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let node_problem = || {
        node_problem(
            observed,
            pod,
            "it is unknown whether the VM's pod has stopped",
        )
    };
    // Also before the end of the grace period, because a lost node does not stop the pod at its end.
    if is_on_lost_node(pod) {
        return Some(node_problem());
    }
    // The deletion time includes the grace period; kubelet and API server need some time after it.
    let until = pod.metadata.deletion_timestamp.as_ref()?.0;
    if since(until, observed.now) < EXPLAIN_DELAY {
        return None;
    }
    if was_evicted_from_lost_node(pod) {
        return Some(node_problem());
    }
    let finalizers = pod.metadata.finalizers.iter().flatten();
    let finalizers: Vec<&str> = finalizers.map(String::as_str).collect();
    let state = match finalizers.as_slice() {
        [] => "the pod still exists".to_owned(),
        [finalizer] => format!("the pod still has the finalizer {finalizer}"),
        finalizers => format!("the pod still has the finalizers {}", finalizers.join(", ")),
    };
    let problem = format!("pod {name:?} should have stopped before {until}, but {state}");
    Some(Diagnosis::documented(
        Reason::TerminationOverdue,
        &problem,
        name,
    ))
}

/// The pod's node does not answer, with this consequence. The status of the VM names the node only if the pod does not:
/// it may be the node of a previous pod.
pub(super) fn node_problem(observed: &Observed, pod: &PodView, consequence: &str) -> Diagnosis {
    let of_status = || {
        observed
            .vm
            .status
            .as_ref()
            .and_then(|status| status.node_name.as_deref())
    };
    let node = pod.spec.node_name.as_deref().or_else(of_status);
    match node {
        Some(node) => Diagnosis::documented(
            Reason::NodeUnreachable,
            &format!("node {node:?} does not answer, so {consequence}"),
            node,
        ),
        None => Diagnosis::documented(
            Reason::NodeUnreachable,
            &format!("the node of the VM's pod does not answer, so {consequence}"),
            "<node>",
        ),
    }
}

/// Whether the control plane has lost the pod's node. It then sets the pod's condition `Ready` to `False` without a
/// reason. A kubelet always sets a reason.
fn is_on_lost_node(pod: &PodView) -> bool {
    let lost = pod.status.conditions.iter().any(|c| {
        c.type_ == PodConditionType::Ready
            && c.status != PodConditionStatus::True
            && c.reason.as_deref().is_none_or(str::is_empty)
    });
    let unknown = pod.status.phase == "Unknown" || pod.status.reason.as_deref() == Some("NodeLost");
    unknown || (lost && pod.status.phase == "Running" && !pod.has_ended())
}

/// Whether the control plane has deleted the pod because its node does not answer.
fn was_evicted_from_lost_node(pod: &PodView) -> bool {
    let by_taint =
        |reason: Option<&str>| matches!(reason, Some("DeletionByTaintManager" | "DeletionByPodGC"));
    let evicted = pod.condition(PodConditionType::DisruptionTarget);
    evicted.is_some_and(|it| by_taint(it.reason.as_deref()))
}
