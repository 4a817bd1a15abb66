//! Tests of the invariants with histories that violate them.

use super::{Entry, Value, final_violations, violations};
use serde_json::json;

fn entry(revision: u64, kind: &'static str, object: Value) -> Entry {
    Entry {
        revision,
        kind,
        deleted: false,
        object,
    }
}

fn vm(revision: u64, state: &str) -> Entry {
    let spec = json!({"vm": {"state": state}});
    entry(
        revision,
        "VirtualMachine",
        json!({"metadata": {"name": "vm", "uid": "vm-1"}, "spec": spec}),
    )
}

fn pod(revision: u64, uid: &str, phase: &str, owner: &str) -> Entry {
    let metadata = json!({"name": "vm", "uid": uid, "ownerReferences": [{"uid": owner}]});
    entry(
        revision,
        "Pod",
        json!({"metadata": metadata, "status": {"phase": phase}}),
    )
}

fn terminating(mut entry: Entry) -> Entry {
    entry.object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    entry
}

fn deleted(entry: Entry) -> Entry {
    Entry {
        deleted: true,
        ..entry
    }
}

fn claim(revision: u64) -> Entry {
    entry(
        revision,
        "PersistentVolumeClaim",
        json!({"metadata": {"name": "vm-system-disk", "uid": "claim-1"}}),
    )
}

/// The violations when this happens to a running VM.
fn violations_after(then: Vec<Entry>, external_deletions: usize) -> Vec<String> {
    let mut history = vec![
        vm(1, "Running"),
        claim(2),
        pod(3, "pod-1", "Pending", "vm-1"),
        pod(4, "pod-1", "Running", "vm-1"),
    ];
    history.extend(then);
    violations(&history, external_deletions)
}

#[test]
fn a_life_in_which_one_pod_comes_after_the_other_is_right() {
    let [failed, after] = [
        pod(5, "pod-1", "Failed", "vm-1"),
        pod(7, "pod-2", "Running", "vm-1"),
    ];
    let restarted = vec![failed, deleted(pod(6, "pod-1", "Failed", "vm-1")), after];
    assert_eq!(violations_after(restarted, 0), [""; 0]);
    let stopped = vec![
        vm(5, "Stopped"),
        terminating(pod(6, "pod-1", "Running", "vm-1")),
    ];
    assert_eq!(violations_after(stopped, 0), [""; 0]);
}

#[test]
fn two_living_pods_are_wrong_though_one_of_them_ends() {
    let [first, second] = [
        terminating(pod(6, "pod-1", "Running", "vm-1")),
        pod(7, "pod-2", "Pending", "vm-1"),
    ];
    assert_eq!(
        violations_after(vec![vm(5, "Stopped"), first, second], 0),
        ["at revision 7: 2 pods are alive"]
    );
}

#[test]
fn a_claim_that_is_deleted_is_wrong_whether_it_is_gone_or_not() {
    for deleted in [terminating(claim(5)), deleted(claim(5))] {
        assert_eq!(
            violations_after(vec![deleted], 0),
            ["at revision 5: claim vm-system-disk is deleted"]
        );
    }
}

#[test]
fn the_pod_of_a_vm_that_should_run_is_deleted_by_others_alone() {
    let deleted = || vec![terminating(pod(5, "pod-1", "Running", "vm-1"))];
    assert_eq!(
        violations_after(deleted(), 0),
        ["at revision 5: pod vm is deleted although it runs and should run"]
    );
    assert_eq!(violations_after(deleted(), 1), [""; 0]);
}

#[test]
fn the_pod_of_an_earlier_vm_may_be_deleted_and_no_other() {
    let left = |owner: &str| {
        let pods = [
            pod(1, "pod-0", "Running", owner),
            terminating(pod(3, "pod-0", "Running", owner)),
        ];
        let [before, after] = pods;
        violations(&[before, vm(2, "Running"), after], 0)
    };
    assert_eq!(left("vm-0"), [""; 0]);
    assert_eq!(
        left("vm-1"),
        ["at revision 3: pod vm is deleted although it runs and should run"]
    );
}

#[test]
fn a_pod_that_changes_its_owner_is_wrong() {
    let another = vec![pod(5, "pod-1", "Running", "vm-2")];
    assert_eq!(
        violations_after(another, 0),
        ["at revision 5: pod vm has another owner"]
    );
}

#[test]
fn a_restart_that_is_asked_for_ends_one_pod_and_no_more() {
    let restart = |revision| {
        let mut vm = vm(revision, "Running");
        vm.object["spec"]["vm"]["restartRequest"] = 1.into();
        vm
    };
    let first = [
        terminating(pod(6, "pod-1", "Running", "vm-1")),
        deleted(pod(7, "pod-1", "Running", "vm-1")),
    ];
    let once = || {
        [
            vec![restart(5)],
            first.to_vec(),
            vec![pod(8, "pod-2", "Running", "vm-1")],
        ]
        .concat()
    };
    assert_eq!(violations_after(once(), 0), [""; 0]);
    let twice = [
        once(),
        vec![terminating(pod(9, "pod-2", "Running", "vm-1"))],
    ]
    .concat();
    assert_eq!(
        violations_after(twice, 0),
        ["at revision 9: pod vm is deleted although it runs and should run"]
    );
}

/// A VM with that status.
fn status_entry(revision: u64, running: bool, cpus: u64, reason: &str) -> Entry {
    let mut vm = vm(revision, "Running");
    let running = json!({"type": "Running", "status": if running { "True" } else { "False" }});
    let ready = json!({"type": "Ready", "status": "True", "reason": reason, "message": "m"});
    vm.object["status"] = json!({"cpus": cpus, "conditions": [running, ready]});
    vm
}

#[test]
fn status_that_reports_a_dead_vm_as_running_is_a_violation() {
    let failed = || {
        vec![
            status_entry(5, true, 1, "Running"),
            pod(6, "pod-1", "Failed", "vm-1"),
        ]
    };
    let after = |then: Vec<Entry>| violations_after([failed(), then].concat(), 0);
    assert_eq!(
        after(vec![
            status_entry(7, false, 0, "Running"),
            status_entry(8, false, 0, "RestartBackoff")
        ]),
        [""; 0]
    );
    assert_eq!(
        after(vec![status_entry(7, true, 1, "Stopping")]),
        [""; 0],
        "the operator has not received it yet"
    );
    for reason in ["Starting", "Stopped", "RestartBackoff"] {
        let wrong =
            format!("at revision 7: {reason} is written while the status still has Running=True");
        assert_eq!(after(vec![status_entry(7, true, 1, reason)]), [wrong]);
        let wrong = format!("at revision 7: {reason} is written while the status still has cpus=1");
        assert_eq!(after(vec![status_entry(7, false, 1, reason)]), [wrong]);
    }
}

#[test]
fn new_pod_before_reset_of_the_stale_status_is_a_violation() {
    let [dead, next] = [
        deleted(pod(6, "pod-1", "Running", "vm-1")),
        pod(8, "pod-2", "Pending", "vm-1"),
    ];
    let violations_after = |status: Entry| {
        violations_after(
            vec![
                status_entry(5, true, 1, "Running"),
                dead.clone(),
                status,
                next.clone(),
            ],
            1,
        )
    };
    assert_eq!(
        violations_after(status_entry(7, false, 0, "Starting")),
        [""; 0]
    );
    let wrong = |what: &str| {
        [format!(
            "at revision 8: pod vm is created while the status has {what} of the previous pod"
        )]
    };
    assert_eq!(
        violations_after(status_entry(7, true, 0, "Running")),
        wrong("Running=True")
    );
    assert_eq!(
        violations_after(status_entry(7, false, 1, "Running")),
        wrong("cpus=1")
    );
}

#[test]
fn final_status_that_is_stale_or_reports_a_dead_vm_as_running_is_a_violation() {
    let dead = |vm: Entry| final_violations(&[vm, deleted(pod(6, "pod-1", "Running", "vm-1"))]);
    assert_eq!(dead(status_entry(5, false, 0, "Stopped")), [""; 0]);
    assert_eq!(
        dead(status_entry(5, false, 2, "Stopped")),
        ["at the end the status has cpus=2, though no pod is alive"]
    );
    assert_eq!(
        dead(status_entry(5, false, 0, "Running")),
        ["at the end the VM is reported as running, though no pod is alive"]
    );
    let mut older = status_entry(5, false, 0, "Stopped");
    older.object["metadata"]["generation"] = 2.into();
    assert_eq!(
        dead(older),
        ["at the end the status is not of the newest generation"]
    );
    let mut silent = status_entry(5, false, 0, "Starting");
    silent.object["status"]["conditions"][1]["message"] = "".into();
    assert_eq!(
        dead(silent),
        [r#"at the end the condition has no message, and the reason is "Starting""#]
    );
}

#[test]
fn the_report_of_a_previous_pod_is_never_copied() {
    let copied = |uid: &str| {
        let mut copied = status_entry(7, true, 1, "Running");
        copied.object["status"]["conditions"][0]["message"] = uid.into();
        let next = vec![
            pod(5, "pod-1", "Failed", "vm-1"),
            deleted(pod(5, "pod-1", "Failed", "vm-1")),
            pod(6, "pod-2", "Running", "vm-1"),
            copied,
        ];
        violations_after(next, 0)
    };
    assert_eq!(copied("pod-2"), [""; 0]);
    assert_eq!(
        copied("pod-1"),
        ["at revision 7: the report of the previous pod pod-1 is copied"]
    );
}
