//! Pods that do not stop.

use super::*;

fn lost() -> Value {
    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]})
}

fn ending(mut observed: Observed, seconds_past_due: i64) -> Observed {
    let pod = Arc::make_mut(observed.pod.as_mut().unwrap());
    pod.metadata.deletion_timestamp = Some(Time(ago(seconds_past_due)));
    observed
}

#[test]
fn unreachable_node_is_reported_with_the_out_of_service_taint() {
    let mut observed = running(lost());
    Arc::make_mut(&mut observed.vm)
        .status
        .as_mut()
        .unwrap()
        .node_name = Some("node7".to_owned());
    let taint = "kubectl taint node node7 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
    is_explained(
        &observed,
        Reason::NodeUnreachable,
        &["\"node7\"", "bring the node back", taint],
    );
    is_explained(
        &running(json!({"phase": "Unknown"})),
        Reason::NodeUnreachable,
        &["the node of the VM's pod"],
    );
    is_explained(
        &running(json!({"phase": "Running", "reason": "NodeLost"})),
        Reason::NodeUnreachable,
        &[],
    );
    // A reachable kubelet sets a reason.
    let not_ready = json!([{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}]);
    assert_eq!(
        explain(&running(
            json!({"phase": "Running", "conditions": not_ready})
        )),
        None
    );
}

#[test]
fn overdue_termination_is_explained_for_every_desired_state() {
    let taint =
        json!([{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]);
    for state in ["Running", "Stopped"] {
        let observed = |status| with_pod(vm(json!({"state": state})), pod(status));
        is_explained_after(&ending(observed(json!({"phase": "Running"})), -30), 40);
        // A node that does not answer does not use the grace period.
        for seconds_past_due in [-900, 9, 10] {
            is_explained(
                &ending(observed(lost()), seconds_past_due),
                Reason::NodeUnreachable,
                &["out-of-service"],
            );
        }
        let overdue = ending(observed(json!({"phase": "Running"})), 10);
        is_explained(
            &overdue,
            Reason::TerminationOverdue,
            &["2026-01-01T11:59:50Z", "kubectl describe pod vm"],
        );
        let tainted = observed(json!({"phase": "Running", "conditions": taint}));
        is_explained(
            &ending(tainted, 10),
            Reason::NodeUnreachable,
            &["out-of-service"],
        );
        let mut held = overdue;
        Arc::make_mut(held.pod.as_mut().unwrap())
            .metadata
            .finalizers = Some(vec!["example.org/hold".to_owned()]);
        is_explained(
            &held,
            Reason::TerminationOverdue,
            &["has the finalizer example.org/hold"],
        );
    }
}
