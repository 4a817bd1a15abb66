//! Hardware acceleration in restricted pods that have the device from the device plugin. The guest is a boot sector, because
//! the KVM of some machines runs no operating system.

use super::devices::{KVM, node_offers, slots};
use super::harness::vm::{SHUTDOWN, Vm, condition};
use super::harness::{console, e2e, eventually};
use serde_json::{Value, json};
use support::boot_sector::machine_has_kvm;

/// Waits until the guest has written that text since its boot.
async fn writes(vm: &Vm<'_>, text: &str) {
    eventually(&format!("the guest writes {text:?}"), 120, async || {
        let log = console::log(vm.space, &vm.name).await?;
        if log.contains(text) { Ok(()) } else { Err(log) }
    })
    .await;
}

/// The columns of `kubectl get vms` for that VM.
async fn columns(vm: &Vm<'_>) -> String {
    vm.space
        .kubectl(&["get", "vms", &vm.name, "--no-headers"])
        .await
}

fn accelerated(vm: &Value) -> Value {
    condition(vm, "Accelerated")
}

#[test]
fn a_boot_sector_runs_under_kvm_in_a_restricted_pod() {
    if !machine_has_kvm() {
        return;
    }
    e2e(1, async |space| {
        node_offers(KVM, slots("/dev/kvm")).await;
        space
            .configure(&json!({"accelerator": {"policy": "kvm", "kvmResource": KVM}}))
            .await;
        let cpus = json!({"spec": {"vm": {"maximumCpus": 2, "currentCpus": 1}}});
        let vm = space.create_boot_sector("vm", cpus).await;
        writes(&vm, "SECTOR boot=1").await;
        let status = vm.wait_for_reason("Running", 60).await;
        let accelerated = accelerated(&status);
        assert_eq!(
            (&accelerated["status"], &accelerated["reason"]),
            (&json!("True"), &json!("Kvm"))
        );
        assert_eq!(condition(&status, "Ready")["message"], "the VM is running");
        let columns = columns(&vm).await;
        assert!(columns.contains(" Kvm "), "{columns}");
        let check = space
            .kubectl(&["exec", &vm.name, "--", "vm-runner", "kvm-check", "--basic"])
            .await;
        assert!(check.trim_end().ends_with("KVM works"), "{check}");

        console::write_line(space, &vm.name, "hi").await.unwrap();
        writes(&vm, "<h><i>").await;
        vm.patch(&json!({"spec": {"vm": {"currentCpus": 2}}})).await;
        vm.until("2 CPUs", 60, |vm| vm["status"]["cpus"] == 2).await;
        vm.patch(&json!({"spec": {"vm": {"resetRequest": 1}}}))
            .await;
        writes(&vm, "SECTOR boot=2").await;
        let pod = vm.pod_uid();
        vm.patch(&json!({"spec": {"vm": {"restartRequest": 1}}}))
            .await;
        vm.pod_after(&pod, SHUTDOWN).await;
        writes(&vm, "SECTOR boot=3").await;
        // The guest obeys the power button.
        vm.set_state("Stopped").await;
        vm.pod_gone(SHUTDOWN).await;
        vm.set_state("Running").await;
        writes(&vm, "SECTOR boot=4").await;
        space
            .kubectl(&["delete", "vm", &vm.name, "--wait=false"])
            .await;
        vm.pod_gone(SHUTDOWN).await;
    });
}

#[test]
fn with_policy_auto_a_kvm_that_runs_no_operating_system_is_not_used_and_the_cause_is_shown() {
    if !machine_has_kvm() {
        return;
    }
    e2e(1, async |space| {
        node_offers(KVM, slots("/dev/kvm")).await;
        space
            .configure(&json!({"accelerator": {"policy": "auto", "kvmResource": KVM}}))
            .await;
        let vm = space.create_boot_sector("vm", json!({})).await;
        writes(&vm, "SECTOR boot=1").await;
        let status = vm.wait_for_reason("Running", 60).await;
        let accelerated = accelerated(&status);
        if accelerated["status"] == "True" {
            return;
        }
        assert_eq!(accelerated["reason"], "KvmDoesNotWork", "{accelerated}");
        let cause = accelerated["message"].as_str().unwrap();
        let message = format!("the VM is running; {cause}");
        vm.until("Ready has the cause", 30, |vm| {
            condition(vm, "Ready")["message"] == message
        })
        .await;
        let columns = columns(&vm).await;
        assert!(columns.contains(" KvmDoesNotWork "), "{columns}");
        let events = space
            .kubectl(&[
                "get",
                "events",
                "--field-selector",
                "reason=KvmDoesNotWork,type=Warning",
                "--output",
                "name",
            ])
            .await;
        assert_eq!(events.lines().count(), 1, "{events}");
    });
}
