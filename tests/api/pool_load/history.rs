//! Checks each version of the VMs and assignments of a run.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use support::components::Entry;
use vm_operator::api::pool::names;
use vm_operator::api::vm::conditions;

/// The events of a run, and the violations of the rules.
#[derive(Debug, Default)]
pub struct Checked {
    /// Assignments that became bound.
    pub assigned: usize,
    /// VMs that went to another user after the retention.
    pub reclaimed: usize,
    /// VMs that had to restart before the next user.
    pub restarted: usize,
    /// VMs to which a console was connected.
    pub connected: usize,
    /// VMs that went from one pool to another.
    pub lent: usize,
    pub violations: Vec<String>,
}

/// The present versions, by UID.
#[derive(Default)]
struct Versions<'a> {
    vms: BTreeMap<&'a str, &'a Value>,
    claims: BTreeMap<&'a str, &'a Value>,
    /// The last pool that has assigned the VM, by UID of the VM.
    pools: BTreeMap<&'a str, &'a str>,
    /// Assignments that have reserved a VM and are not bound yet, each with the earlier assignments that have still waited then. One
    /// decision gives VMs to many assignments, and its writes are concurrent. An earlier one gets its VM by the same decision.
    overtaken: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Versions<'a> {
    /// The assignments of the same pool that wait and precede that one in the queue.
    fn waiting_before(&self, claim: &Value) -> BTreeSet<&'a str> {
        let claims = self.claims.iter().filter(|(_, other)| {
            other["spec"]["pool"] == claim["spec"]["pool"]
                && text(other, "/status/conditions/0/reason") == "Waiting"
                && !is_ending(other)
                && place(other) < place(claim)
        });
        claims.map(|(uid, _)| *uid).collect()
    }
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// The UID of the assignment that the VM names.
fn holder(vm: &Value) -> &str {
    text(vm, "/status/assignment/uid")
}

fn is_bound(claim: &Value) -> bool {
    text(claim, "/status/conditions/0/status") == "True"
}

fn is_ending(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn is_connected(vm: &Value) -> bool {
    let conditions = vm["status"]["conditions"].as_array().into_iter().flatten();
    let mut found = conditions.filter(|it| it["type"] == conditions::CONSOLE_CONNECTED);
    found.any(|it| it["status"] == "True")
}

/// The time of the last write by the controller of pools. Both have whole seconds in UTC, so texts can be compared.
fn written_at(object: &Value) -> &str {
    let managers = object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten();
    let own = managers.filter(|it| it["manager"] == names::MANAGER_POOLS);
    own.map(|it| text(it, "/time")).max().unwrap_or_default()
}

/// The place in the queue.
fn place(claim: &Value) -> (&str, &str) {
    let created = text(claim, "/metadata/creationTimestamp");
    (created, text(claim, "/metadata/name"))
}

impl Checked {
    /// Checks a history in its order.
    pub fn of(history: &[Entry]) -> Self {
        let (mut checked, mut versions) = (Self::default(), Versions::default());
        for entry in history {
            let is_vm = entry.kind == "VirtualMachine";
            if !is_vm && entry.kind != "VmAssignment" {
                continue;
            }
            let stored = if is_vm {
                &mut versions.vms
            } else {
                &mut versions.claims
            };
            let uid = uid(&entry.object);
            let before = match entry.deleted {
                true => stored.remove(uid),
                false => stored.insert(uid, &entry.object),
            };
            let violations = match is_vm {
                true => checked.vm(&mut versions, before, &entry.object),
                false => checked.claim(&mut versions, before, &entry.object, entry.deleted),
            };
            let all = violations.into_iter().chain(two_users(&versions));
            let all = all.map(|violation| format!("revision {}: {violation}", entry.revision));
            checked.violations.extend(all.take(3));
        }
        checked.violations.truncate(20);
        checked
    }

    /// A new version of a VM.
    fn vm<'a>(
        &mut self,
        versions: &mut Versions<'a>,
        before: Option<&Value>,
        vm: &'a Value,
    ) -> Vec<String> {
        let mut violations = Vec::new();
        let none = Value::Null;
        let before = before.unwrap_or(&none);
        let (old, new, name) = (holder(before), holder(vm), text(vm, "/metadata/name"));
        if is_connected(vm) && !is_connected(before) {
            self.connected += 1;
        }
        if old == new {
            return violations;
        }
        // The user loses the VM by the deletion of the assignment, or after its expiry.
        let loser = versions
            .claims
            .get(old)
            .filter(|claim| is_bound(claim) && !is_ending(claim));
        if let Some(loser) = loser {
            self.reclaimed += 1;
            let expires = text(loser, "/status/expires");
            if expires.is_empty() || expires > written_at(vm) {
                violations.push(format!(
                    "{name} is taken at {} before {expires}",
                    written_at(vm)
                ));
            }
            if is_connected(before) {
                violations.push(format!("{name} is taken while a console is connected"));
            }
        }
        let needed = before["status"]["assignment"]["restart"].as_i64();
        if let Some(needed) = needed.filter(|_| !new.is_empty()) {
            self.restarted += 1;
            let done = vm["status"]["observedRestartRequest"].as_i64();
            if done.is_none_or(|done| done < needed) {
                violations.push(format!(
                    "{name} is assigned before its restart {needed}: {done:?}"
                ));
            }
        }
        if !new.is_empty() {
            let pool = text(vm, "/status/assignment/pool");
            let previous = versions.pools.insert(uid(vm), pool);
            self.lent += usize::from(previous.is_some_and(|previous| previous != pool));
        }
        violations
    }

    /// A new version of an assignment.
    fn claim<'a>(
        &mut self,
        versions: &mut Versions<'a>,
        before: Option<&Value>,
        claim: &'a Value,
        is_deleted: bool,
    ) -> Vec<String> {
        let mut violations = Vec::new();
        let none = Value::Null;
        let before = before.unwrap_or(&none);
        let (user, own) = (text(claim, "/spec/user"), uid(claim));
        let vm = versions.vms.get(text(claim, "/status/vm/uid"));
        let is_named = vm.is_some_and(|vm| holder(vm) == own);
        let is_reserved = before["status"]["vm"].is_null() && !claim["status"]["vm"].is_null();
        // An assignment that the VM names already takes it again.
        if is_reserved && !is_named {
            let earlier = versions.waiting_before(claim);
            versions.overtaken.insert(own, earlier);
        }
        if is_reserved || is_deleted || is_ending(claim) {
            for users in versions.overtaken.values_mut() {
                users.remove(own);
            }
        }
        if is_bound(claim) && !is_bound(before) {
            self.assigned += 1;
            if !is_named {
                violations.push(format!(
                    "{user} is bound to a VM that names another assignment"
                ));
            }
            for other in versions.overtaken.remove(own).into_iter().flatten() {
                let other = versions
                    .claims
                    .get(other)
                    .map(|other| text(other, "/spec/user"));
                violations.push(format!("{user} gets a VM before {other:?}"));
            }
        }
        violations
    }
}

/// VMs with two users, and users with two VMs of a pool.
fn two_users(versions: &Versions<'_>) -> Vec<String> {
    let (mut vms, mut users) = (BTreeSet::new(), BTreeSet::new());
    let mut violations = Vec::new();
    for claim in versions
        .claims
        .values()
        .filter(|claim| is_bound(claim) && !is_ending(claim))
    {
        let vm = text(claim, "/status/vm/uid");
        let assignment = versions.vms.get(vm).map(|vm| &vm["status"]["assignment"]);
        // As a reader sees it who compares names, not UIDs.
        let has_vm = assignment.is_some_and(|assignment| {
            assignment["user"] == claim["spec"]["user"]
                && assignment["pool"] == claim["spec"]["pool"]
        });
        if has_vm
            && !(vms.insert(vm)
                && users.insert((text(claim, "/spec/pool"), text(claim, "/spec/user"))))
        {
            violations.push(format!(
                "{} and another assignment have {vm}",
                text(claim, "/spec/user")
            ));
        }
    }
    violations
}

fn entry(revision: u64, kind: &'static str, object: Value) -> Entry {
    Entry {
        revision,
        kind,
        deleted: false,
        object,
    }
}

/// A version of the only VM, which names that assignment.
fn vm(revision: u64, holder: &str, written: &str, connected: &str) -> Entry {
    let vm = json!({
        "metadata": {"name": "vm", "uid": "vm", "managedFields": [{"manager": names::MANAGER_POOLS, "time": written}]},
        "status": {
            "assignment": {"pool": "p", "user": holder, "uid": holder},
            "conditions": [{"type": conditions::CONSOLE_CONNECTED, "status": connected}],
        },
    });
    entry(revision, "VirtualMachine", vm)
}

/// A version of the assignment of that user. Names have the order of creation.
fn claim(revision: u64, user: &str, reason: &str) -> Entry {
    let bound = if reason == "Assigned" {
        "True"
    } else {
        "False"
    };
    let vm = if reason == "Waiting" {
        Value::Null
    } else {
        json!({"uid": "vm"})
    };
    let claim = json!({
        "metadata": {"name": user, "uid": user, "creationTimestamp": "2030-01-01T00:00:00Z"},
        "spec": {"pool": "p", "user": user},
        "status": {
            "vm": vm, "expires": "2030-01-01T01:00:00Z", "conditions": [{"type": "Bound", "reason": reason, "status": bound}],
        },
    });
    entry(revision, "VmAssignment", claim)
}

#[test]
fn planted_violations_are_found() {
    let (early, late) = ("2030-01-01T00:30:00Z", "2030-01-01T02:00:00Z");
    let taken = |at: &str, connected: &str| {
        let history = [
            vm(1, "a", early, connected),
            claim(2, "a", "Assigned"),
            vm(3, "b", at, connected),
            claim(4, "b", "Assigned"),
        ];
        Checked::of(&history).violations
    };
    assert_eq!(taken(late, "False"), [""; 0]);
    assert!(taken(early, "False")[0].contains("before 2030"));
    assert!(taken(late, "True")[0].contains("console"));
    let unnamed = [vm(1, "a", early, "False"), claim(2, "b", "Assigned")];
    assert!(Checked::of(&unnamed).violations[0].contains("names another"));
    let passed = [
        vm(1, "", early, "False"),
        claim(2, "a", "Waiting"),
        claim(3, "b", "Waiting"),
        claim(4, "b", "Binding"),
        vm(5, "b", early, "False"),
        claim(6, "b", "Assigned"),
    ];
    assert!(Checked::of(&passed).violations[0].contains("gets a VM before"));
}
