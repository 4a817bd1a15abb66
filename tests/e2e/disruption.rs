//! What an administrator does to a node, and what befalls the operator.

use super::harness::vm::{BOOT, SHUTDOWN};
use super::harness::{disk::Counts, e2e, eventually, kubectl, process, rig};
use serde_json::{Value, json};

/// The node takes pods again, however the test ends.
struct Uncordon(String);

impl Drop for Uncordon {
    fn drop(&mut self) {
        let ended = kubectl::command(&["uncordon", &self.0]).into_std().output();
        assert!(ended.is_ok_and(|output| output.status.success()), "the node {} cannot be uncordoned", self.0);
    }
}

#[test]
fn a_drained_node_shuts_its_guests_down_and_gives_them_back() {
    // Nobody else's guests run meanwhile.
    e2e(u32::try_from(rig::SLOTS).unwrap(), async |space| {
        let vm = space.create("vm", json!({})).await;
        let node = vm.booted().await["status"]["nodeName"].as_str().unwrap().to_owned();
        let pod = vm.pod_uid();

        let uncordon = Uncordon(node.clone());
        // The selector leaves out what is not this project's; what permits more is a flag that is not needed.
        let ours = "--pod-selector=app.kubernetes.io/name in (vm-operator,vm-runner)";
        kubectl::must(&["drain", &node, "--ignore-daemonsets", "--timeout=120s", ours]).await;
        eventually("no pod runs on the node", SHUTDOWN, async || {
            let pods = space.pods.all().into_iter();
            let left: Vec<Value> = pods.filter(|pod| pod["spec"]["nodeName"] == *node).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}")) }
        })
        .await;
        assert_eq!(vm.disk.counts(), Counts { boot: 1, shutdowns: 1 }, "the guest was asked to shut down");

        drop(uncordon);
        vm.pod_after(&pod, BOOT).await;
        vm.booted().await;
        assert_eq!(vm.counts().await, Counts { boot: 2, shutdowns: 1 });
    });
}

#[test]
fn an_operator_that_is_killed_while_a_vm_starts_brings_it_up_once() {
    e2e(1, async |space| {
        let operator = space.operator().await;
        let operator_uid = operator["metadata"]["uid"].as_str().unwrap().to_owned();
        let create = space.create("vm", json!({}));
        let vm = create.await;
        // Some of the VM's objects are there, whichever came first.
        eventually("the operator begins", 30, async || {
            let objects = ["get", "configmaps,persistentvolumeclaims,secrets,pods", "--output", "name"];
            let selector = ["--selector", "app.kubernetes.io/instance=vm"];
            let made = space.kubectl(&[&objects[..], &selector].concat()).await;
            if made.is_empty() { Err(String::new()) } else { Ok(()) }
        })
        .await;
        process::kill(&operator_uid, "vm-operator");
        // And once more, with the pod on its way.
        eventually("the pod is made", BOOT, async || vm.pod().map(drop).ok_or(String::new())).await;
        let name = operator["metadata"]["name"].as_str().unwrap();
        space.kubectl(&["delete", "pod", name, "--grace-period", "0", "--force"]).await;
        space.operator_other_than(&[operator_uid]).await;

        vm.booted().await;
        assert_eq!(vm.counts().await, Counts { boot: 1, shutdowns: 0 });
        assert_eq!(space.pods.uids("vm").len(), 1, "one pod was made, ever");
    });
}
