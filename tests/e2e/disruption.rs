//! An operator that is killed during a start.

use super::harness::disk::Counts;
use super::harness::vm::BOOT;
use super::harness::{e2e, eventually, process};
use serde_json::json;

#[test]
fn an_operator_that_is_killed_while_a_vm_starts_brings_it_up_once() {
    e2e(1, async |space| {
        let operator = space.operator().await;
        let operator_uid = operator["metadata"]["uid"].as_str().unwrap().to_owned();
        let create = space.create("vm", json!({}));
        let vm = create.await;
        // Some of the VM's objects exist, in any order.
        eventually("the operator begins", 30, async || {
            let objects = [
                "get",
                "configmaps,persistentvolumeclaims,secrets,pods",
                "--output",
                "name",
            ];
            let selector = ["--selector", "app.kubernetes.io/instance=vm"];
            let made = space.kubectl(&[&objects[..], &selector].concat()).await;
            if made.is_empty() {
                Err(String::new())
            } else {
                Ok(())
            }
        })
        .await;
        process::kill(&operator_uid, "vm-operator");
        // Again, while the pod starts.
        eventually("the pod is created", BOOT, async || {
            vm.pod().map(drop).ok_or(String::new())
        })
        .await;
        let name = operator["metadata"]["name"].as_str().unwrap();
        space
            .kubectl(&["delete", "pod", name, "--grace-period", "0", "--force"])
            .await;
        space.operator_other_than(&[operator_uid]).await;

        vm.booted().await;
        assert_eq!(
            vm.counts().await,
            Counts {
                boot: 1,
                shutdowns: 0
            }
        );
        assert_eq!(space.pods.uids("vm").len(), 1, "one pod was created");
    });
}
