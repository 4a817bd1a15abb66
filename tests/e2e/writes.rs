//! The number of requests for a VM, without events, the operator's Lease and the image repository, which is shared.

use super::harness::audit::Write;
use super::harness::vm::{SHUTDOWN, Vm, ready_reason};
use super::harness::{Space, e2e, eventually};
use serde_json::{Value, json};

/// Writes to a VM and its objects until it runs, by operator and runner together. Each further disk costs one more. The report takes
/// one for its creation and one for the copy, which includes the condition `Ready`.
const BUDGET: usize = 8;

fn all_writes(space: &Space) -> Vec<Write> {
    ["vm-operator", "vm-reporter"]
        .iter()
        .flat_map(|account| space.audit.writes_by(&space.name, account))
        .collect()
}

/// The VM without the metadata that each write changes.
fn settled(vm: &Vm<'_>) -> Value {
    let mut vm = vm.now();
    let metadata = vm["metadata"].as_object_mut().unwrap();
    metadata.retain(|name, _| !["resourceVersion", "managedFields"].contains(&name.as_str()));
    vm
}

/// Waits for the last part of a report: the two addresses, which the guest gets after its agent has started.
async fn has_addresses(vm: &Vm<'_>) {
    let has_both = |vm: &Value| {
        vm["status"]["guestIPs"]
            .as_array()
            .is_some_and(|ips| ips.len() == 2)
    };
    vm.until("the guest has its addresses", 60, has_both).await;
}

#[test]
fn a_vm_costs_few_writes_and_a_settled_one_none() {
    e2e(1, async |space| {
        let vm = space.create("vm", json!({})).await;
        vm.booted().await;
        let history = space.vms.history("vm");
        let running = history
            .iter()
            .find(|seen| ready_reason(&seen.object) == "Running")
            .unwrap();
        // A volume that is being created causes no warning.
        let mut reasons: Vec<String> = history
            .iter()
            .map(|seen| ready_reason(&seen.object))
            .collect();
        reasons.dedup();
        assert_eq!(
            reasons,
            ["NoOperator", "Starting", "Running"],
            "an ordinary start is reported as Normal"
        );
        let writes = all_writes(space);
        let until_running: Vec<_> = writes
            .iter()
            .filter(|write| write.at <= running.at)
            .collect();
        assert!(
            until_running.len() > 4,
            "the audit log knows of ConfigMap, claims, Secret and Pod: {until_running:#?}"
        );
        assert!(
            until_running.len() <= BUDGET + 1,
            "{} writes until Running: {until_running:#?}",
            until_running.len()
        );

        // A second, stopped VM, so that the new operator reconciles more than one.
        let stopped = space
            .create("stopped", json!({"spec": {"vm": {"state": "Stopped"}}}))
            .await;
        stopped.wait_for_reason("Stopped", SHUTDOWN).await;
        has_addresses(&vm).await;
        let before = [&vm, &stopped].map(settled);
        let old = space.operator().await;
        let uid = |pod: &Value| {
            pod["metadata"]["uid"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        space
            .kubectl(&["delete", "pod", old["metadata"]["name"].as_str().unwrap()])
            .await;
        let new = space.operator_other_than(&[uid(&old)]).await;
        let new = new["metadata"]["name"].as_str().unwrap().to_owned();
        eventually("the new operator has looked at both VMs", 60, async || {
            let counted = space.reconciles(&new).await?;
            if counted >= 2 {
                Ok(())
            } else {
                Err(format!("{counted} reconciles"))
            }
        })
        .await;
        let by_new = space
            .audit
            .all_writes_by(&space.name, "vm-operator")
            .into_iter();
        let (lease, others): (Vec<_>, Vec<_>) = by_new
            .filter(|write| write.pod == new)
            .partition(|write| write.resource == "leases");
        assert!(
            others.is_empty(),
            "a new operator writes nothing where all is settled: {others:#?}"
        );
        assert!(
            !lease.is_empty() && lease.iter().all(|write| write.object.1 == "vm-operator"),
            "but leads: {lease:#?}"
        );
        assert_eq!([&vm, &stopped].map(settled), before);
        let by_old = all_writes(space)
            .into_iter()
            .filter(|write| write.pod == old["metadata"]["name"]);
        assert!(
            by_old.count() > 0,
            "the audit log has the pod of each write"
        );
    });
}
