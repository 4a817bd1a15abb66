//! A node on which containerd keeps block devices for root, which is its default: the report of a VM, and the settings for
//! clusters without a device plugin.

use crate::harness::vm::{SHUTDOWN, Vm, condition, uid};
use crate::harness::{e2e_with, environment, eventually, process};
use serde_json::{Value, json};
use std::path::Path;

/// Block devices belong to root. Dropping this gives them to the users of new pods again.
pub struct DevicesOfRoot;

impl DevicesOfRoot {
    pub fn switch_on() -> Self {
        let guard = Self;
        environment::cluster(&["device-ownership", "false"]);
        guard
    }
}

impl Drop for DevicesOfRoot {
    fn drop(&mut self) {
        environment::cluster(&["device-ownership", "true"]);
    }
}

/// Runner and QEMU are root without capabilities.
fn are_root_without_capabilities(pod: &Value) {
    for program in ["vm-runner", "qemu-system-x86"] {
        let pids = process::of_pod(&uid(pod), program);
        assert_eq!(pids.len(), 1, "{program}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(
                process::field(&pids[0], set),
                "0000000000000000",
                "{set} of {program}"
            );
        }
        assert_eq!(
            ["Uid", "NoNewPrivs", "Seccomp"].map(|name| process::field(&pids[0], name)),
            ["0", "1", "2"]
        );
    }
}

async fn wait_for_device_ownership_report(vm: &Vm<'_>) {
    eventually("the VM reports what the node lacks", 120, async || {
        let ready = condition(&vm.now(), "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        let is_reported = message.contains("/dev/system-disk")
            && message.contains("device_ownership_from_security_context");
        if is_reported && ready["status"] == "False" {
            Ok(())
        } else {
            Err(format!("{ready:#}"))
        }
    })
    .await;
}

#[test]
fn vm_with_root_owned_device_reports_the_setting_and_runs_as_root_if_configured() {
    e2e_with(environment::SLOTS, "privileged", json!({}), async |space| {
        space.operator().await;
        let devices_of_root = DevicesOfRoot::switch_on();
        let vm = space.create("vm", json!({})).await;
        wait_for_device_ownership_report(&vm).await;

        // The VM is retried without a request.
        space.configure(&json!({"deviceAccess": "root"})).await;
        vm.booted().await;
        let pod = vm.pod().unwrap();
        are_root_without_capabilities(&pod);

        let settings = json!({"deviceAccess": "root", "accelerator": {"privileged": true}});
        space.configure(&settings).await;
        vm.processed("Running").await;
        assert_eq!(vm.pod_uid(), uid(&pod), "new settings restart nothing");

        vm.patch(&json!({"spec": {"vm": {"restartRequest": 1}}}))
            .await;
        vm.pod_after(&uid(&pod), SHUTDOWN).await;
        assert_eq!(
            vm.pod().unwrap()["spec"]["containers"][0]["securityContext"]["privileged"],
            true
        );
        // The guest runs with or without a working KVM.
        vm.booted().await;
        if Path::new("/dev/kvm").exists() {
            let accelerated = condition(&vm.now(), "Accelerated");
            assert!(
                ["Kvm", "KvmDoesNotWork"].contains(&accelerated["reason"].as_str().unwrap()),
                "{accelerated}"
            );
        }

        // Revert the change.
        drop(devices_of_root);
        space.configure(&json!({})).await;
        vm.patch(&json!({"spec": {"vm": {"restartRequest": 2}}}))
            .await;
        let user = || {
            vm.pod()
                .map(|pod| pod["spec"]["securityContext"]["runAsUser"].clone())
        };
        eventually(
            "the VM's next pod is the usual user's",
            SHUTDOWN,
            async || match user() {
                Some(user) if user == 107 => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await;
        vm.booted().await;
    });
}
