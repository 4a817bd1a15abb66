//! Nodes that keep devices for root: the settings for clusters without a device plugin.

use super::harness::vm::{condition, uid};
use super::harness::{e2e_with, eventually, process, rig};
use serde_json::{Value, json};
use std::path::Path;

/// Containerd gives block devices to pods' users again, however the test ends.
pub struct DevicesBelongToPods;

impl Drop for DevicesBelongToPods {
    fn drop(&mut self) {
        rig::cluster(&["device-ownership", "true"]);
    }
}

impl DevicesBelongToPods {
    /// Until this is dropped, block devices belong to root. Nobody else's pods may begin meanwhile.
    pub fn no_more() -> Self {
        let elsewhere = Self;
        rig::cluster(&["device-ownership", "false"]);
        elsewhere
    }
}

/// Runner and QEMU are root, without any of what makes root mighty.
fn are_roots_without_capabilities(pod: &Value) {
    for program in ["vm-runner", "qemu-system-x86"] {
        let pids = process::of_pod(&uid(pod), program);
        assert_eq!(pids.len(), 1, "{program}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(process::field(&pids[0], set), "0000000000000000", "{set} of {program}");
        }
        assert_eq!(["Uid", "NoNewPrivs", "Seccomp"].map(|name| process::field(&pids[0], name)), ["0", "1", "2"]);
    }
}

#[test]
fn where_devices_are_roots_vms_run_as_root_and_privileged_if_that_is_wanted() {
    let root = json!({"deviceAccess": "root"});
    // Containerd is told otherwise meanwhile.
    e2e_with(u32::try_from(rig::SLOTS).unwrap(), "privileged", root, async |space| {
        let elsewhere = DevicesBelongToPods::no_more();
        let vm = space.create("vm", json!({})).await;
        vm.booted().await;
        let pod = vm.pod().unwrap();
        are_roots_without_capabilities(&pod);

        let settings = json!({"deviceAccess": "root", "accelerator": {"privileged": true}});
        space.configure(&settings).await;
        vm.patch(&json!({"metadata": {"labels": {"looked": "at"}}})).await;
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        assert_eq!(vm.pod_uid(), uid(&pod), "new settings start nothing anew");

        vm.patch(&json!({"spec": {"vm": {"restartRequest": 1}}})).await;
        vm.pod_after(&uid(&pod), 60).await;
        assert_eq!(vm.pod().unwrap()["spec"]["containers"][0]["securityContext"]["privileged"], true);
        // Whether the machine's KVM also works, if it has one, or is made up for: the guest runs.
        vm.booted().await;
        if Path::new("/dev/kvm").exists() {
            let log = space.kubectl(&["logs", "vm"]).await;
            assert!(log.contains("KVM was tried"), "{log}");
            let accelerated = condition(&vm.now(), "Accelerated");
            assert!(["Kvm", "KvmDoesNotWork"].contains(&accelerated["reason"].as_str().unwrap()), "{accelerated}");
        }

        // And back.
        drop(elsewhere);
        space.configure(&json!({})).await;
        vm.patch(&json!({"spec": {"vm": {"restartRequest": 2}}})).await;
        let user = || vm.pod().map(|pod| pod["spec"]["securityContext"]["runAsUser"].clone());
        eventually("the VM's next pod is the usual user's", 60, async || match user() {
            Some(user) if user == 107 => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        vm.booted().await;
    });
}
