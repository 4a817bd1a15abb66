//! Invariants of each revision of a run. A VM has at most one living pod. No PVC is deleted. No running pod of a VM
//! that should run is deleted. No status reports a stopped VM as running. No report of a previous pod is copied.

use crate::components::Entry;
use crate::final_state::ready;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use vm_operator::api::vm::conditions;

/// Label of a PVC that the scenario itself deletes.
pub const DELETED_BY_PERSON: &str = "deleted-by-person";

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

/// The pod that the condition `Running` names.
fn running_pod(vm: &Value) -> Option<&str> {
    let conditions = vm["status"]["conditions"].as_array().into_iter().flatten();
    let mut running = conditions
        .filter(|c| c["type"] == conditions::RUNNING && c["status"] == "True")
        .filter_map(|c| c["message"].as_str());
    running.next()
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
        self.report_copied(before, vm, report);
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

    /// Checks that a change of the status to running comes from a pod that exists. The played runner names its pod in the message.
    fn report_copied(
        &self,
        before: Option<&Value>,
        vm: Option<&Value>,
        report: &mut impl FnMut(String),
    ) {
        let (before, now) = (before.and_then(running_pod), vm.and_then(running_pod));
        let Some(uid) = now.filter(|_| before != now) else {
            return;
        };
        // An operator may not know yet that a pod is gone. It knows when it has created the next one.
        let is_previous = self.owner_of_pod.contains_key(uid) && !self.pods.contains_key(uid);
        if is_previous && !self.pods.is_empty() {
            report(format!("the report of the previous pod {uid} is copied"));
        }
    }

    /// Whether a running pod may be deleted now. A pod of a previous VM always may.
    fn may_end(&mut self, pod: &Value, before: Option<&Value>) -> bool {
        // Such a pod waits for a PVC that was deleted before the operator knew it.
        let is_waiting =
            |pod: &Value| pod["spec"]["nodeName"].is_null() && pod["status"]["phase"] == "Pending";
        if before.is_some_and(is_waiting) {
            return true;
        }
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
            "PersistentVolumeClaim"
                if (*deleted || is_terminating(object))
                    && object["metadata"]["labels"][DELETED_BY_PERSON].is_null() =>
            {
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

#[cfg(test)]
mod tests;
