//! The controller of pools and its scenarios for the [`enumeration`](crate::enumeration).

mod scenarios;

pub use scenarios::SCENARIOS;

use crate::components::{Cluster, VIRTUAL_MACHINE, VM_ASSIGNMENT, VM_POOL, VM_REPORT};
use crate::enumeration::{self, Controller, History, Started};
use crate::install;
use crate::layer::Layer;
use crate::timings::Timings;
use futures::FutureExt;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use vm_operator::controllers::pool;
use vm_operator::controllers::pool::context::PoolController;
use vm_operator::controllers::pool::orphans::Orphans;
use vm_operator::k8s::controller;
use vm_operator::k8s::tasks::Tasks;

/// The controller of pools.
pub const CONTROLLER: Controller = Controller {
    kinds: &[VM_POOL, VM_ASSIGNMENT, VIRTUAL_MACHINE, VM_REPORT],
    name: "pool",
    follows: &["vmpools", "vmassignments", "vms"],
    definitions: install::definitions,
    prepare: |_| futures::future::ready(()).boxed(),
    start,
    is_settled,
    is_reported: |_, _| false,
    reports: |_, _, _| false,
    judge,
};

/// Annotation of assignments that wait at the end of a scenario.
pub const WAITS: &str = "example.org/waits";

fn start(layer: &Layer, namespace: &str, timings: &Timings) -> Started {
    let cluster = enumeration::cluster(layer, namespace, timings, pool::MANAGER);
    let ctx = Arc::new(PoolController::new(cluster, namespace.to_owned()));
    let orphans = Orphans::new(&ctx);
    let mut tasks = Tasks::default();
    let watched = pool::watch(&ctx, &mut tasks);
    let never = std::future::pending().boxed().shared();
    let both = futures::future::join(
        controller::run(ctx.clone(), watched.pools, never.clone()),
        controller::run(orphans.clone(), watched.vms, never),
    );
    let task = tokio::spawn(async move {
        tokio::select! {
            _ = both => {}
            ended = tasks.ended() => panic!("{ended}"),
        }
    });
    let busy_reason = move || {
        let failing = ctx.states.failing() + orphans.failing();
        (failing > 0).then(|| "the last reconcile has failed".to_owned())
    };
    Started {
        task,
        busy_reason: Box::new(busy_reason),
    }
}

fn bound(assignment: &Value) -> bool {
    assignment["status"]["conditions"][0]["status"] == "True"
}

/// Each assignment has its VM, or waits as the scenario expects, and each assigned VM has its assignment.
fn is_settled(cluster: &Cluster, namespace: &str) -> bool {
    let present = cluster.present(namespace);
    let of_kind = |kind: &'static str| present.iter().filter(move |((of, _), _)| *of == kind);
    let is_pending = |assignment: &Value| {
        !bound(assignment) && assignment["metadata"]["annotations"][WAITS].is_null()
    };
    let pools = of_kind("VmPool")
        .all(|(_, pool)| pool["status"]["observedGeneration"] == pool["metadata"]["generation"]);
    let assignments = of_kind("VmAssignment").all(|(_, assignment)| !is_pending(assignment));
    let holds = |vm: &Value, assignment: &Value| {
        assignment["status"]["vm"]["uid"] == vm["metadata"]["uid"]
            && vm["status"]["assignment"]["uid"] == assignment["metadata"]["uid"]
            && bound(assignment)
    };
    let is_known = |vm: &Value| {
        vm["status"]["assignment"]["user"].is_null()
            || of_kind("VmAssignment").any(|(_, assignment)| holds(vm, assignment))
    };
    pools && assignments && of_kind("VirtualMachine").all(|(_, vm)| is_known(vm))
}

/// Checks each revision: no VM changes from one user to another without the end of the retention, no assigned VM is started, and a VM
/// of a pool with `onRelease: Restart` is restarted before it changes its user.
fn judge(run: &History) -> Vec<String> {
    let mut found = Vec::new();
    let mut present: BTreeMap<(&str, String), Value> = BTreeMap::new();
    for entry in &run.history {
        let name = entry.object["metadata"]["name"]
            .as_str()
            .unwrap_or_default();
        let key = (entry.kind, name.to_owned());
        if entry.deleted {
            present.remove(&key);
            continue;
        }
        let before = present.insert(key, entry.object.clone());
        if let Some(before) = before.filter(|_| entry.kind == "VirtualMachine") {
            let pool = present.get(&("VmPool", "pool".to_owned()));
            let holder = present.values().find(|assignment| {
                assignment["kind"] == "VmAssignment"
                    && bound(assignment)
                    && assignment["metadata"]["uid"] == before["status"]["assignment"]["uid"]
                    && assignment["status"]["vm"]["uid"] == before["metadata"]["uid"]
            });
            found.extend(change_of_vm(&before, &entry.object, holder, pool));
        }
        found.extend(two_users(&present));
    }
    found
}

fn change_of_vm(
    before: &Value,
    after: &Value,
    holder: Option<&Value>,
    pool: Option<&Value>,
) -> Option<String> {
    let uid = |vm: &Value| vm["status"]["assignment"]["uid"].clone();
    let connected = |vm: &Value| {
        let conditions = vm["status"]["conditions"].as_array().into_iter().flatten();
        conditions
            .filter(|condition| condition["type"] == "ConsoleConnected")
            .any(|condition| condition["status"] == "True")
    };
    let lost = !uid(before).is_null() && uid(before) != uid(after);
    let name = &before["metadata"]["name"];
    if let Some(holder) = holder {
        if lost && connected(before) {
            return Some(format!("{name} is taken from a connected user"));
        }
        if lost && holder["status"]["expires"].is_null() {
            return Some(format!("{name} is taken before the retention ends"));
        }
        let started =
            before["spec"]["vm"]["state"] == "Stopped" && after["spec"]["vm"]["state"] == "Running";
        if started {
            return Some(format!("{name} is started although a user has it"));
        }
    }
    let restarts = pool.is_some_and(|pool| pool["spec"]["onRelease"] == "Restart");
    let restart = |vm: &Value| vm["status"]["assignment"]["restart"].is_null();
    (lost && restarts && uid(after).is_null() && restart(after))
        .then(|| format!("{name} loses its user without a restart"))
}

/// No user has two VMs.
fn two_users(present: &BTreeMap<(&str, String), Value>) -> Option<String> {
    let mut users = BTreeMap::new();
    for vm in present
        .values()
        .filter(|object| object["kind"] == "VirtualMachine")
    {
        let held = &vm["status"]["assignment"];
        let is_held = present.values().any(|assignment| {
            assignment["kind"] == "VmAssignment"
                && bound(assignment)
                && assignment["metadata"]["uid"] == held["uid"]
                && assignment["status"]["vm"]["uid"] == vm["metadata"]["uid"]
        });
        if is_held && users.insert(held["user"].to_string(), ()).is_some() {
            return Some(format!("{} has two VMs", held["user"]));
        }
    }
    None
}
