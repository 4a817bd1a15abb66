//! What must hold at every revision of a run: at most one pod, no claim deleted, no pod ended that runs and should, and no
//! VM that is told to run and does not.

use crate::judge::ready;
use crate::played::Entry;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use vm_operator::api::conditions;

/// What is known of a VM's life so far.
struct Life<'a> {
    vm: Option<&'a Value>,
    /// By UID.
    pods: BTreeMap<&'a str, &'a Value>,
    owner_of_pod: BTreeMap<&'a str, &'a Value>,
    /// How many pods somebody else than the operator may still delete.
    by_others: usize,
    /// The restart that was carried out last.
    restarted: i64,
}

fn has_ended(pod: &Value) -> bool {
    matches!(
        pod["status"]["phase"].as_str(),
        Some("Failed" | "Succeeded")
    )
}

fn is_leaving(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn restart_of(vm: &Value) -> i64 {
    vm["spec"]["vm"]["restartRequest"].as_i64().unwrap_or(0)
}

/// What the status says that only a VM that runs has.
fn alive_by_status(vm: &Value) -> Option<String> {
    let status = &vm["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut told = conditions
        .filter(|c| c["status"] == "True")
        .filter_map(|c| c["type"].as_str());
    if let Some(type_) = told.find(|type_| conditions::INITIAL.contains(type_)) {
        return Some(format!("{type_}=True"));
    }
    let fields = [
        ("cpus", "0"),
        ("ram", "0"),
        ("consoleClient", ""),
        ("consoleUser", ""),
    ];
    let told = |field: &str| match &status[field] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    let (field, value) = fields
        .iter()
        .find_map(|(field, none)| Some((field, told(field).filter(|v| v != none)?)))?;
    Some(format!("{field}={value}"))
}

/// The operator's part of the status.
fn told(vm: &Value) -> Value {
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
    let mut told = Map::from_iter([("conditions".to_owned(), conditions.cloned().collect())]);
    for field in ["observedGeneration", "restarts", "observedRestartRequest"] {
        told.insert(field.to_owned(), vm["status"][field].clone());
    }
    told.into()
}

/// What the operator says only of a VM of which it knows that nothing runs.
const DEAD: [&str; 3] = ["Stopped", "RestartBackoff", "Starting"];

impl<'a> Life<'a> {
    fn new(by_others: usize) -> Self {
        Self {
            vm: None,
            pods: BTreeMap::new(),
            owner_of_pod: BTreeMap::new(),
            by_others,
            restarted: 0,
        }
    }

    /// Whether no pod of the VM's is alive.
    fn is_dead(&self, vm: &Value) -> bool {
        !self
            .pods
            .values()
            .any(|pod| !has_ended(pod) && is_of(pod, vm))
    }

    fn vm_changed(&mut self, vm: Option<&'a Value>, note: &mut impl FnMut(String)) {
        let before = std::mem::replace(&mut self.vm, vm);
        let Some(vm) = vm.filter(|vm| self.is_dead(vm)) else {
            return;
        };
        let is_written = before.is_some_and(|before| told(before) != told(vm));
        // Who writes that has seen that nothing runs; and sees what the status says besides, as of which it writes.
        let reason = ready(Some(vm));
        if let Some(alive) =
            alive_by_status(vm).filter(|_| is_written && DEAD.contains(&reason.as_str()))
        {
            note(format!(
                "{reason} is written, and the status still says {alive}"
            ));
        }
    }

    /// Whether somebody wanted that a pod that runs ends now. One of an earlier VM may always.
    fn may_end(&mut self, pod: &Value, before: Option<&Value>) -> bool {
        let wanted = self
            .vm
            .filter(|vm| {
                is_of(pod, vm) && vm["spec"]["vm"]["state"] == "Running" && !is_leaving(vm)
            })
            .filter(|_| !before.is_some_and(has_ended));
        let Some(vm) = wanted else { return true };
        if restart_of(vm) > self.restarted {
            self.restarted = restart_of(vm);
            return true;
        }
        let by_others = self.by_others > 0;
        self.by_others = self.by_others.saturating_sub(1);
        by_others
    }

    fn pod_changed(&mut self, pod: &'a Value, deleted: bool, note: &mut impl FnMut(String)) {
        let text = |field: &str| pod["metadata"][field].as_str();
        let (name, uid) = (
            text("name").unwrap_or_default(),
            text("uid").unwrap_or_default(),
        );
        let before = self.pods.get(uid).copied();
        if (is_leaving(pod) || deleted)
            && !before.is_some_and(is_leaving)
            && !self.may_end(pod, before)
        {
            note(format!("pod {name} is deleted though it runs and should"));
        }
        let owner = &pod["metadata"]["ownerReferences"][0]["uid"];
        match self.owner_of_pod.insert(uid, owner) {
            Some(before) if before != owner => note(format!("pod {name} has another owner")),
            Some(_) => {}
            None => {
                let alive = self
                    .vm
                    .filter(|vm| is_of(pod, vm))
                    .and_then(alive_by_status);
                if let Some(alive) = alive {
                    note(format!(
                        "pod {name} is made while the status says {alive} of the one before"
                    ));
                }
            }
        }
        match deleted {
            true => self.pods.remove(uid),
            false => self.pods.insert(uid, pod),
        };
        let alive = self.pods.values().filter(|pod| !has_ended(pod)).count();
        if alive > 1 {
            note(format!("{alive} pods are alive"));
        }
    }
}

fn is_of(pod: &Value, vm: &Value) -> bool {
    pod["metadata"]["ownerReferences"][0]["uid"] == vm["metadata"]["uid"]
}

/// Goes through all that has happened; gives what must never happen. `by_others` is how often somebody else than the
/// operator deletes a pod.
#[must_use]
pub fn broken(history: &[Entry], by_others: usize) -> Vec<String> {
    let (mut broken, mut life) = (Vec::new(), Life::new(by_others));
    for Entry {
        revision,
        kind,
        deleted,
        object,
    } in history
    {
        let mut note = |what: String| broken.push(format!("at revision {revision}: {what}"));
        match *kind {
            "VirtualMachine" => life.vm_changed((!deleted).then_some(object), &mut note),
            "PersistentVolumeClaim" if *deleted || is_leaving(object) => {
                note(format!(
                    "claim {} is deleted",
                    object["metadata"]["name"].as_str().unwrap_or_default()
                ));
            }
            "Pod" => life.pod_changed(object, *deleted, &mut note),
            _ => {}
        }
    }
    broken
}

/// What must not be so once nothing more happens: a VM that is told to run and does not, or of whose newest generation
/// nothing is told, or that neither runs nor says why.
#[must_use]
pub fn at_end(history: &[Entry]) -> Vec<String> {
    let mut life = Life::new(usize::MAX);
    for Entry {
        kind,
        deleted,
        object,
        ..
    } in history
    {
        match *kind {
            "VirtualMachine" => life.vm_changed((!deleted).then_some(object), &mut |_| ()),
            "Pod" => life.pod_changed(object, *deleted, &mut |_| ()),
            _ => {}
        }
    }
    let Some(vm) = life.vm else { return Vec::new() };
    let mut wrong = Vec::new();
    if let Some(alive) = alive_by_status(vm).filter(|_| life.is_dead(vm)) {
        wrong.push(format!(
            "at the end the status says {alive}, though no pod is alive"
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
            "at the end it is not said what is the matter, but {:?}",
            ready(Some(vm))
        ));
    }
    if ready(Some(vm)) == "Running" && life.is_dead(vm) {
        wrong.push("at the end the VM is said to run, though no pod is alive".to_owned());
    }
    wrong
}

/// That the judge can fail: histories with what must never happen.
#[cfg(test)]
mod tests {
    use super::{Entry, Value, at_end, broken};
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

    fn ending(mut entry: Entry) -> Entry {
        entry.object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        entry
    }

    fn gone(entry: Entry) -> Entry {
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

    /// What the judge says to a running VM to which this happens.
    fn judged(then: Vec<Entry>, by_others: usize) -> Vec<String> {
        let mut history = vec![
            vm(1, "Running"),
            claim(2),
            pod(3, "pod-1", "Pending", "vm-1"),
            pod(4, "pod-1", "Running", "vm-1"),
        ];
        history.extend(then);
        broken(&history, by_others)
    }

    #[test]
    fn a_life_in_which_one_pod_comes_after_the_other_is_right() {
        let [failed, after] = [
            pod(5, "pod-1", "Failed", "vm-1"),
            pod(7, "pod-2", "Running", "vm-1"),
        ];
        let restarted = vec![failed, gone(pod(6, "pod-1", "Failed", "vm-1")), after];
        assert_eq!(judged(restarted, 0), [""; 0]);
        let stopped = vec![vm(5, "Stopped"), ending(pod(6, "pod-1", "Running", "vm-1"))];
        assert_eq!(judged(stopped, 0), [""; 0]);
    }

    #[test]
    fn two_living_pods_are_wrong_though_one_of_them_ends() {
        let [first, second] = [
            ending(pod(6, "pod-1", "Running", "vm-1")),
            pod(7, "pod-2", "Pending", "vm-1"),
        ];
        assert_eq!(
            judged(vec![vm(5, "Stopped"), first, second], 0),
            ["at revision 7: 2 pods are alive"]
        );
    }

    #[test]
    fn a_claim_that_is_deleted_is_wrong_whether_it_is_gone_or_not() {
        for deleted in [ending(claim(5)), gone(claim(5))] {
            assert_eq!(
                judged(vec![deleted], 0),
                ["at revision 5: claim vm-system-disk is deleted"]
            );
        }
    }

    #[test]
    fn the_pod_of_a_vm_that_should_run_is_deleted_by_others_alone() {
        let deleted = || vec![ending(pod(5, "pod-1", "Running", "vm-1"))];
        assert_eq!(
            judged(deleted(), 0),
            ["at revision 5: pod vm is deleted though it runs and should"]
        );
        assert_eq!(judged(deleted(), 1), [""; 0]);
    }

    #[test]
    fn the_pod_of_an_earlier_vm_may_be_deleted_and_no_other() {
        let left = |owner: &str| {
            let pods = [
                pod(1, "pod-0", "Running", owner),
                ending(pod(3, "pod-0", "Running", owner)),
            ];
            let [before, after] = pods;
            broken(&[before, vm(2, "Running"), after], 0)
        };
        assert_eq!(left("vm-0"), [""; 0]);
        assert_eq!(
            left("vm-1"),
            ["at revision 3: pod vm is deleted though it runs and should"]
        );
    }

    #[test]
    fn a_pod_that_changes_its_owner_is_wrong() {
        let another = vec![pod(5, "pod-1", "Running", "vm-2")];
        assert_eq!(
            judged(another, 0),
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
            ending(pod(6, "pod-1", "Running", "vm-1")),
            gone(pod(7, "pod-1", "Running", "vm-1")),
        ];
        let once = || {
            [
                vec![restart(5)],
                first.to_vec(),
                vec![pod(8, "pod-2", "Running", "vm-1")],
            ]
            .concat()
        };
        assert_eq!(judged(once(), 0), [""; 0]);
        let twice = [once(), vec![ending(pod(9, "pod-2", "Running", "vm-1"))]].concat();
        assert_eq!(
            judged(twice, 0),
            ["at revision 9: pod vm is deleted though it runs and should"]
        );
    }

    /// A VM of which that is told.
    fn told(revision: u64, running: bool, cpus: u64, reason: &str) -> Entry {
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
                told(5, true, 1, "Running"),
                pod(6, "pod-1", "Failed", "vm-1"),
            ]
        };
        let after = |then: Vec<Entry>| judged([failed(), then].concat(), 0);
        assert_eq!(
            after(vec![
                told(7, false, 0, "Running"),
                told(8, false, 0, "RestartBackoff")
            ]),
            [""; 0]
        );
        assert_eq!(
            after(vec![told(7, true, 1, "Stopping")]),
            [""; 0],
            "nobody has told the operator yet"
        );
        for reason in ["Starting", "Stopped", "RestartBackoff"] {
            let wrong = format!(
                "at revision 7: {reason} is written, and the status still says Running=True"
            );
            assert_eq!(after(vec![told(7, true, 1, reason)]), [wrong]);
            let wrong =
                format!("at revision 7: {reason} is written, and the status still says cpus=1");
            assert_eq!(after(vec![told(7, false, 1, reason)]), [wrong]);
        }
    }

    #[test]
    fn no_pod_is_made_before_what_the_last_one_told_is_taken_back() {
        let [dead, next] = [
            gone(pod(6, "pod-1", "Running", "vm-1")),
            pod(8, "pod-2", "Pending", "vm-1"),
        ];
        let judged = |told_then: Entry| {
            judged(
                vec![
                    told(5, true, 1, "Running"),
                    dead.clone(),
                    told_then,
                    next.clone(),
                ],
                1,
            )
        };
        assert_eq!(judged(told(7, false, 0, "Starting")), [""; 0]);
        let wrong = |what: &str| {
            [format!(
                "at revision 8: pod vm is made while the status says {what} of the one before"
            )]
        };
        assert_eq!(judged(told(7, true, 0, "Running")), wrong("Running=True"));
        assert_eq!(judged(told(7, false, 1, "Running")), wrong("cpus=1"));
    }

    #[test]
    fn at_the_end_a_dead_vm_is_told_to_be_dead_and_everything_is_told_of_the_newest_generation() {
        let dead = |vm: Entry| at_end(&[vm, gone(pod(6, "pod-1", "Running", "vm-1"))]);
        assert_eq!(dead(told(5, false, 0, "Stopped")), [""; 0]);
        assert_eq!(
            dead(told(5, false, 2, "Stopped")),
            ["at the end the status says cpus=2, though no pod is alive"]
        );
        assert_eq!(
            dead(told(5, false, 0, "Running")),
            ["at the end the VM is said to run, though no pod is alive"]
        );
        let mut older = told(5, false, 0, "Stopped");
        older.object["metadata"]["generation"] = 2.into();
        assert_eq!(
            dead(older),
            ["at the end the status is not of the newest generation"]
        );
        let mut silent = told(5, false, 0, "Starting");
        silent.object["status"]["conditions"][1]["message"] = "".into();
        assert_eq!(
            dead(silent),
            [r#"at the end it is not said what is the matter, but "Starting""#]
        );
    }
}
