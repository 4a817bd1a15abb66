//! (pure) What keeps a pod from ending, and pods of whose end nobody can be sure.
//!
//! Nothing is ever forced: a pod that cannot be reached may still run its guest, and a second one on the same disks
//! would destroy them. Where a node is off for sure, its administrator says so by the taint `out-of-service`;
//! Kubernetes then removes the pod, and the VM comes back elsewhere by itself.

use crate::api::conditions::ReadyReason as Reason;
use crate::api::diagnosis::Diagnosis;
use crate::controllers::vm::diagnose::EXPLAIN_DELAY;
use crate::controllers::vm::observe::{Observed, since};
use crate::controllers::vm::views::PodView;

/// What is wrong with a pod that is ending, or whose node does not answer.
pub(super) fn explain(observed: &Observed, pod: &PodView) -> Option<Diagnosis> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let node_problem = || {
        node_problem(
            observed,
            pod,
            "does not answer and cannot say whether the pod has ended",
        )
    };
    // Before and after the pod is deleted: it has all of its grace period, though nobody is there to use it.
    if unreachable(pod) {
        return Some(node_problem());
    }
    // The deletion time includes the grace period; kubelet and API server need some time after it.
    let until = pod.metadata.deletion_timestamp.as_ref()?.0;
    if since(until, observed.now) < EXPLAIN_DELAY {
        return None;
    }
    if taken_for_dead(pod) {
        return Some(node_problem());
    }
    let held = pod
        .metadata
        .finalizers
        .iter()
        .flatten()
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    let what = match held.is_empty() {
        true => format!("pod {name:?} should have ended by {until} and is still there"),
        false => {
            format!("pod {name:?} should have ended by {until} and is held by the finalizer {held}")
        }
    };
    Some(Diagnosis::documented(
        Reason::TerminationOverdue,
        &what,
        name,
    ))
}

/// The node is the pod's own, and not that on which the VM has run before.
pub(super) fn node_problem(observed: &Observed, pod: &PodView, what: &str) -> Diagnosis {
    let told = || {
        observed
            .vm
            .status
            .as_ref()
            .and_then(|status| status.node_name.as_deref())
    };
    let node = pod.spec.node_name.as_deref().or_else(told);
    match node {
        Some(node) => Diagnosis::documented(
            Reason::NodeUnreachable,
            &format!("node {node:?} {what}"),
            node,
        ),
        None => Diagnosis::documented(
            Reason::NodeUnreachable,
            &format!("the pod's node {what}"),
            "<node>",
        ),
    }
}

/// Whether the control plane has lost the pod's node. It then sets the pod's `Ready` to false and leaves out the
/// reason, which a kubelet always gives.
fn unreachable(pod: &PodView) -> bool {
    let lost = pod.status.conditions.iter().any(|c| {
        c.type_ == "Ready" && c.status != "True" && c.reason.as_deref().is_none_or(str::is_empty)
    });
    let unknown = pod.status.phase == "Unknown" || pod.status.reason.as_deref() == Some("NodeLost");
    unknown || (lost && pod.status.phase == "Running" && !pod.has_ended())
}

/// Whether the pod was deleted because its node did not answer.
fn taken_for_dead(pod: &PodView) -> bool {
    let by_taint =
        |reason: Option<&str>| matches!(reason, Some("DeletionByTaintManager" | "DeletionByPodGC"));
    pod.status.conditions.iter().any(|c| {
        c.type_ == "DisruptionTarget" && c.status == "True" && by_taint(c.reason.as_deref())
    })
}
