//! The scenarios of pools. No controller of VMs runs.

use super::WAITS;
use crate::components::{Cluster, api};
use crate::enumeration::run::Run;
use crate::enumeration::{Scenario, Step};
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use std::time::Duration;
use vm_operator::api::pool::names;

const VERSION: &str = "vmoperator.jdrupes.org/v1";

const fn scenario(
    name: &'static str,
    spec: &'static str,
    before: &'static [Step],
    steps: &'static [Step],
    ready: &'static str,
    says: (&'static str, &'static str),
) -> Scenario {
    let says = Some(says);
    Scenario {
        name,
        spec,
        before,
        steps,
        ready,
        says,
    }
}

async fn make_vm(run: &Run, name: &str, status: Value) {
    let vm = json!({
        "apiVersion": VERSION, "kind": "VirtualMachine", "metadata": {"name": name},
        "spec": {"pools": ["pool"], "vm": {"state": "Stopped"}},
    });
    run.cluster.make(&run.namespace, "VirtualMachine", vm).await;
    if !status.is_null() {
        let status = json!({"status": status});
        let kind = "VirtualMachine";
        let merged = run
            .cluster
            .merge(kind, &run.namespace, name, "status", status);
        merged.await.unwrap();
    }
}

async fn make_assignment(run: &Run, user: &str, waits: bool) {
    let annotations = if waits {
        json!({WAITS: "true"})
    } else {
        json!({})
    };
    let assignment = json!({
        "apiVersion": VERSION, "kind": "VmAssignment",
        "metadata": {"name": names::assignment("pool", user), "annotations": annotations},
        "spec": {"pool": "pool", "user": user},
    });
    run.cluster
        .make(&run.namespace, "VmAssignment", assignment)
        .await;
}

/// Carries out restart requests, as the controller of VMs does.
async fn restart_vms(cluster: Cluster, namespace: String) {
    loop {
        for ((kind, name), vm) in cluster.present(&namespace) {
            let requested = &vm["spec"]["vm"]["restartRequest"];
            if kind != "VirtualMachine" || *requested == vm["status"]["observedRestartRequest"] {
                continue;
            }
            let status = json!({"status": {"observedRestartRequest": requested}});
            let _ = cluster
                .merge(kind, &namespace, &name, "status", status)
                .await;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
}

fn one_vm<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    tokio::spawn(restart_vms(run.cluster.clone(), run.namespace.clone()));
    async { make_vm(run, "one", Value::Null).await }.boxed()
}

fn two_vms<'a>(run: &'a mut Run, scenario: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        one_vm(run, scenario).await;
        make_vm(run, "two", Value::Null).await;
    }
    .boxed()
}

/// A VM that the Java VM-Operator has assigned, and another one that it has assigned to the same user before.
fn java_vms<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        for (name, last_used) in [
            ("one", "2026-01-01T00:00:00Z"),
            ("two", "2026-01-01T01:00:00Z"),
        ] {
            let assignment = json!({"pool": "pool", "user": "anna", "lastUsed": last_used});
            make_vm(run, name, json!({"assignment": assignment})).await;
        }
    }
    .boxed()
}

fn anna<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async { make_assignment(run, "anna", false).await }.boxed()
}

fn berta<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async { make_assignment(run, "berta", false).await }.boxed()
}

fn berta_waits<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async { make_assignment(run, "berta", true).await }.boxed()
}

async fn delete(run: &Run, kind: &str, name: &str) {
    let objects = api(&run.cluster.client, kind, Some(&run.namespace));
    objects
        .delete(name, &DeleteParams::default())
        .await
        .unwrap();
}

fn anna_leaves<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async { delete(run, "VmAssignment", &names::assignment("pool", "anna")).await }.boxed()
}

async fn set_pools(run: &Run, pools: Value) {
    let spec = json!({"spec": {"pools": pools}});
    let kind = "VirtualMachine";
    let merged = run.cluster.merge(kind, &run.namespace, "one", "", spec);
    merged.await.unwrap();
}

fn vm_joins<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async { set_pools(run, json!(["pool"])).await }.boxed()
}

fn vm_leaves<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async { set_pools(run, json!([])).await }.boxed()
}

fn vm_is_deleted<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async { delete(run, "VirtualMachine", "one").await }.boxed()
}

/// The user opens a console.
fn console_opens<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        let condition = json!({
            "type": "ConsoleConnected", "status": "True", "reason": "Connected", "message": "",
            "lastTransitionTime": crate::timings::now().to_string(),
        });
        let status = json!({"status": {"conditions": [condition]}});
        let merged = run
            .cluster
            .merge("VirtualMachine", &run.namespace, "one", "status", status);
        merged.await.unwrap();
    }
    .boxed()
}

const PLAIN: &str = r#"{"permissions": []}"#;
const MINUTE: &str = r#"{"permissions": [], "retention": "PT1M"}"#;
const RESTART: &str = r#"{"permissions": [], "retention": "PT1M", "onRelease": "Restart"}"#;
const ENDING: &str =
    r#"{"permissions": [], "retention": "PT20S", "onRelease": "Stop", "onExpiry": "Release"}"#;
const ONE_VM: Step = Step::Act(one_vm);
const TWO_VMS: Step = Step::Act(two_vms);
const ANNA: Step = Step::Act(anna);
const BERTA: Step = Step::Act(berta);
const BERTA_WAITS: Step = Step::Act(berta_waits);
const VM_LEAVES: Step = Step::Act(vm_leaves);
const ASSIGNED: &[Step] = &[ONE_VM, Step::Create, Step::Start, ANNA];

/// `printf 'pool\0anna' | sha256sum`, and the same for berta.
const OF_ANNA: &str = "VmAssignment/a-414f59df430b7ee49d6e955da365c872";
const OF_BERTA: &str = "VmAssignment/a-684c411779a897946af5271ba4e888e1";
const VM: &str = "VirtualMachine/one";
const POOL: &str = "VmPool/pool";
const IS_ASSIGNED: &str = r#""reason":"Assigned""#;

/// All scenarios of pools.
pub const SCENARIOS: &[Scenario] = &[
    scenario(
        "assigned",
        PLAIN,
        &[],
        &[TWO_VMS, Step::Create, Step::Start, ANNA],
        "Usable",
        (VM, r#""user":"anna""#),
    ),
    scenario(
        "two-users",
        PLAIN,
        // If a request for the older assignment fails, a younger one can overtake it, and get the other VM.
        &[TWO_VMS, Step::Create, Step::Start, ANNA],
        &[BERTA],
        "Exhausted",
        ("VirtualMachine/two", r#""user":"berta""#),
    ),
    scenario(
        "waiting",
        PLAIN,
        ASSIGNED,
        &[BERTA_WAITS],
        "Exhausted",
        (OF_BERTA, "position 1 in the queue"),
    ),
    scenario(
        "restart-of-operator",
        PLAIN,
        ASSIGNED,
        &[Step::Start],
        "Exhausted",
        (OF_ANNA, IS_ASSIGNED),
    ),
    scenario(
        "released",
        PLAIN,
        ASSIGNED,
        &[Step::Act(anna_leaves)],
        "Usable",
        (VM, r#""assignment":{}"#),
    ),
    scenario(
        "released-restarted",
        RESTART,
        ASSIGNED,
        &[Step::Act(anna_leaves), BERTA],
        "Usable",
        (VM, r#""restartRequest":1"#),
    ),
    scenario(
        "reclaimed",
        MINUTE,
        ASSIGNED,
        &[BERTA],
        "Usable",
        (OF_BERTA, IS_ASSIGNED),
    ),
    scenario(
        "reclaimed-restarted",
        RESTART,
        ASSIGNED,
        &[BERTA],
        "Usable",
        (OF_BERTA, IS_ASSIGNED),
    ),
    scenario(
        "expired",
        ENDING,
        &[],
        ASSIGNED,
        "Usable",
        (VM, r#""state":"Stopped""#),
    ),
    scenario(
        "pool-deleted",
        PLAIN,
        ASSIGNED,
        &[Step::Delete],
        "",
        (VM, r#""assignment":{}"#),
    ),
    scenario(
        "vm-deleted",
        PLAIN,
        ASSIGNED,
        &[Step::Act(vm_is_deleted)],
        "NoMembers",
        (POOL, "no VM has pool in spec.pools"),
    ),
    scenario(
        "vm-joins",
        PLAIN,
        &[ONE_VM, VM_LEAVES, Step::Create, Step::Start, BERTA_WAITS],
        &[Step::Act(vm_joins)],
        "Exhausted",
        (OF_BERTA, IS_ASSIGNED),
    ),
    scenario(
        "vm-leaves",
        PLAIN,
        ASSIGNED,
        &[VM_LEAVES, Step::Act(anna_leaves)],
        "NoMembers",
        // The VM was started when it was assigned.
        (VM, r#""state":"Running""#),
    ),
    scenario(
        "adopted",
        PLAIN,
        &[],
        &[Step::Act(java_vms), Step::Create, Step::Start],
        "Usable",
        (OF_ANNA, IS_ASSIGNED),
    ),
    scenario(
        "prewarm",
        PLAIN,
        &[TWO_VMS, Step::Create, Step::Start],
        &[Step::Patch(r#"{"spec": {"prewarm": 1}}"#)],
        "Usable",
        (VM, r#""state":"Running""#),
    ),
    scenario(
        "login",
        PLAIN,
        ASSIGNED,
        &[Step::Patch(r#"{"spec": {"loginOnAssignment": true}}"#)],
        "Exhausted",
        (VM, r#""login":true"#),
    ),
    scenario(
        "console",
        MINUTE,
        ASSIGNED,
        &[Step::Act(console_opens), BERTA_WAITS],
        "Exhausted",
        (OF_BERTA, "position 1 in the queue"),
    ),
];
