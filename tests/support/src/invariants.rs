//! Invariants of each revision of a run. A VM has at most one living pod. No PVC is deleted. No running pod of a VM
//! that should run is deleted. No status reports a stopped VM as running.

use crate::components::Entry;
use crate::final_state::ready;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use vm_operator::api::conditions;

/// The state of a VM and its pods at a revision.
struct VmState<'a> {
    vm: Option<&'a Value>,
    /// Pods by UID.
    pods: BTreeMap<&'a str, &'a Value>,
    owner_of_pod: BTreeMap<&'a str, &'a Value>,
    /// The number of pods that others than the operator may still delete.
    external_deletions: usize,
    /// The last restart request that was carried out.
    restarted: i64,
}

fn has_finished(pod: &Value) -> bool {
    matches!(
        pod["status"]["phase"].as_str(),
        Some("Failed" | "Succeeded")
    )
}

fn is_terminating(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn restart_of(vm: &Value) -> i64 {
    vm["spec"]["vm"]["restartRequest"].as_i64().unwrap_or(0)
}

/// A part of the status that only a running VM has.
fn running_by_status(vm: &Value) -> Option<String> {
    let status = &vm["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut true_types = conditions
        .filter(|c| c["status"] == "True")
        .filter_map(|c| c["type"].as_str());
    if let Some(type_) = true_types.find(|type_| conditions::INITIAL.contains(type_)) {
        return Some(format!("{type_}=True"));
    }
    let fields = [
        ("cpus", "0"),
        ("ram", "0"),
        ("consoleClient", ""),
        ("consoleUser", ""),
    ];
    let text = |field: &str| match &status[field] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    let (field, value) = fields
        .iter()
        .find_map(|(field, none)| Some((field, text(field).filter(|v| v != none)?)))?;
    Some(format!("{field}={value}"))
}

/// The part of the status that the operator owns.
fn operator_status(vm: &Value) -> Value {
    let of_operator = |condition: &&Value| {
        !conditions::INITIAL
            .iter()
            .any(|type_| condition["type"] == *type_)
    };
    let conditions = vm["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(of_operator);
    let mut status = Map::from_iter([("conditions".to_owned(), conditions.cloned().collect())]);
    for field in ["observedGeneration", "restarts", "observedRestartRequest"] {
        status.insert(field.to_owned(), vm["status"][field].clone());
    }
    status.into()
}

/// Reasons that the operator reports only if it knows that no QEMU runs.
const STOPPED_REASONS: [&str; 3] = ["Stopped", "RestartBackoff", "Starting"];

impl<'a> VmState<'a> {
    fn new(external_deletions: usize) -> Self {
        Self {
            vm: None,
            pods: BTreeMap::new(),
            owner_of_pod: BTreeMap::new(),
            external_deletions,
            restarted: 0,
        }
    }

    /// Whether the VM has no living pod.
    fn has_no_living_pod(&self, vm: &Value) -> bool {
        !self
            .pods
            .values()
            .any(|pod| !has_finished(pod) && is_of(pod, vm))
    }

    fn vm_changed(&mut self, vm: Option<&'a Value>, report: &mut impl FnMut(String)) {
        let before = std::mem::replace(&mut self.vm, vm);
        let Some(vm) = vm.filter(|vm| self.has_no_living_pod(vm)) else {
            return;
        };
        let is_written =
            before.is_some_and(|before| operator_status(before) != operator_status(vm));
        // A writer of this status knows that no QEMU runs, and the rest of the status that its write is based on.
        let reason = ready(Some(vm));
        if let Some(alive) = running_by_status(vm)
            .filter(|_| is_written && STOPPED_REASONS.contains(&reason.as_str()))
        {
            report(format!(
                "{reason} is written while the status still has {alive}"
            ));
        }
    }

    /// Whether a running pod may be deleted now. A pod of a previous VM always may.
    fn may_end(&mut self, pod: &Value, before: Option<&Value>) -> bool {
        let wanted = self
            .vm
            .filter(|vm| {
                is_of(pod, vm) && vm["spec"]["vm"]["state"] == "Running" && !is_terminating(vm)
            })
            .filter(|_| !before.is_some_and(has_finished));
        let Some(vm) = wanted else { return true };
        if restart_of(vm) > self.restarted {
            self.restarted = restart_of(vm);
            return true;
        }
        let external_deletions = self.external_deletions > 0;
        self.external_deletions = self.external_deletions.saturating_sub(1);
        external_deletions
    }

    fn pod_changed(&mut self, pod: &'a Value, deleted: bool, report: &mut impl FnMut(String)) {
        let text = |field: &str| pod["metadata"][field].as_str();
        let (name, uid) = (
            text("name").unwrap_or_default(),
            text("uid").unwrap_or_default(),
        );
        let before = self.pods.get(uid).copied();
        if (is_terminating(pod) || deleted)
            && !before.is_some_and(is_terminating)
            && !self.may_end(pod, before)
        {
            report(format!(
                "pod {name} is deleted although it runs and should run"
            ));
        }
        let owner = &pod["metadata"]["ownerReferences"][0]["uid"];
        match self.owner_of_pod.insert(uid, owner) {
            Some(before) if before != owner => report(format!("pod {name} has another owner")),
            Some(_) => {}
            None => {
                let alive = self
                    .vm
                    .filter(|vm| is_of(pod, vm))
                    .and_then(running_by_status);
                if let Some(alive) = alive {
                    report(format!(
                        "pod {name} is created while the status has {alive} of the previous pod"
                    ));
                }
            }
        }
        match deleted {
            true => self.pods.remove(uid),
            false => self.pods.insert(uid, pod),
        };
        let alive = self.pods.values().filter(|pod| !has_finished(pod)).count();
        if alive > 1 {
            report(format!("{alive} pods are alive"));
        }
    }
}

fn is_of(pod: &Value, vm: &Value) -> bool {
    pod["metadata"]["ownerReferences"][0]["uid"] == vm["metadata"]["uid"]
}

/// The violations of the invariants in a history. `external_deletions` is the number of pods that others than the operator
/// delete.
#[must_use]
pub fn violations(history: &[Entry], external_deletions: usize) -> Vec<String> {
    let (mut found, mut state) = (Vec::new(), VmState::new(external_deletions));
    for Entry {
        revision,
        kind,
        deleted,
        object,
    } in history
    {
        let mut report = |what: String| found.push(format!("at revision {revision}: {what}"));
        match *kind {
            "VirtualMachine" => state.vm_changed((!deleted).then_some(object), &mut report),
            "PersistentVolumeClaim" if *deleted || is_terminating(object) => {
                report(format!(
                    "claim {} is deleted",
                    object["metadata"]["name"].as_str().unwrap_or_default()
                ));
            }
            "Pod" => state.pod_changed(object, *deleted, &mut report),
            _ => {}
        }
    }
    found
}

/// The violations of a final state: a stopped VM that is reported as running, a status of an older generation, or a VM
/// that does not run and has no message.
#[must_use]
pub fn final_violations(history: &[Entry]) -> Vec<String> {
    let mut state = VmState::new(usize::MAX);
    for Entry {
        kind,
        deleted,
        object,
        ..
    } in history
    {
        match *kind {
            "VirtualMachine" => state.vm_changed((!deleted).then_some(object), &mut |_| ()),
            "Pod" => state.pod_changed(object, *deleted, &mut |_| ()),
            _ => {}
        }
    }
    let Some(vm) = state.vm else {
        return Vec::new();
    };
    let mut wrong = Vec::new();
    if let Some(alive) = running_by_status(vm).filter(|_| state.has_no_living_pod(vm)) {
        wrong.push(format!(
            "at the end the status has {alive}, though no pod is alive"
        ));
    }
    if vm["status"]["observedGeneration"] != vm["metadata"]["generation"] {
        wrong.push("at the end the status is not of the newest generation".to_owned());
    }
    let conditions = vm["status"]["conditions"].as_array().into_iter().flatten();
    let message = conditions
        .filter(|c| c["type"] == conditions::READY)
        .find_map(|c| c["message"].as_str());
    if message.is_none_or(str::is_empty) {
        wrong.push(format!(
            "at the end the condition has no message, and the reason is {:?}",
            ready(Some(vm))
        ));
    }
    if ready(Some(vm)) == "Running" && state.has_no_living_pod(vm) {
        wrong.push("at the end the VM is reported as running, though no pod is alive".to_owned());
    }
    wrong
}

/// Tests of the invariants with histories that violate them.
#[cfg(test)]
mod tests {
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
    fn a_status_that_is_written_says_of_no_dead_vm_that_it_runs() {
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
            let wrong = format!(
                "at revision 7: {reason} is written while the status still has Running=True"
            );
            assert_eq!(after(vec![status_entry(7, true, 1, reason)]), [wrong]);
            let wrong =
                format!("at revision 7: {reason} is written while the status still has cpus=1");
            assert_eq!(after(vec![status_entry(7, false, 1, reason)]), [wrong]);
        }
    }

    #[test]
    fn no_pod_is_made_before_what_the_last_one_told_is_taken_back() {
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
    fn at_the_end_a_dead_vm_is_told_to_be_dead_and_everything_is_told_of_the_newest_generation() {
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
}
