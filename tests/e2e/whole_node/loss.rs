//! A lost node: its kubelet stops while its containers continue to run, unknown to the cluster.

use crate::harness::outside::Outside;
use crate::harness::space::e2e_without_operator;
use crate::harness::vm::{BOOT, Vm, condition, ready_reason};
use crate::harness::{Space, environment, eventually, kubectl, process};
use serde_json::{Value, json};

/// The taint by which an administrator declares a node off.
const TAINT: &str = "node.kubernetes.io/out-of-service";
/// The control plane of the local cluster marks a node as lost after 20 s, and checks every 5 s.
const NOTICED: u64 = 150;
/// It deletes pods of lost nodes each 20 s.
const COLLECTED: u64 = 120;
/// The kubelet starts again after this time in any case.
const AT_MOST: &str = "400";

/// Restores the node when it is dropped.
struct NodeIsBack(String);

impl NodeIsBack {
    fn untaint(&self) {
        // The taint may be absent.
        drop(
            kubectl::command(&["taint", "node", &self.0, &format!("{TAINT}-")])
                .into_std()
                .output(),
        );
    }
}

impl Drop for NodeIsBack {
    fn drop(&mut self) {
        environment::cluster(&["kubelet-back"]);
        self.untaint();
    }
}

fn tolerates() -> Value {
    json!({"key": TAINT, "operator": "Exists", "effect": "NoExecute"})
}

/// Exempts the pods of all other namespaces.
async fn exempt_other_namespaces(space: &Space) {
    let pods: Value =
        serde_json::from_str(&kubectl::run(&["get", "pods", "-A", "--output", "json"]).await)
            .unwrap();
    for pod in pods["items"].as_array().into_iter().flatten() {
        let (namespace, name) = (&pod["metadata"]["namespace"], &pod["metadata"]["name"]);
        let (Some(namespace), Some(name)) = (namespace.as_str(), name.as_str()) else {
            continue;
        };
        if namespace != space.name {
            let patch = json!([{"op": "add", "path": "/spec/tolerations/-", "value": tolerates()}])
                .to_string();
            let args = [
                "patch",
                "pod",
                name,
                "--namespace",
                namespace,
                "--type",
                "json",
                "--patch",
                &patch,
            ];
            // It may have exited.
            drop(kubectl::try_run(&args).await);
        }
    }
}

fn pods_of(vm: &Vm<'_>) -> usize {
    vm.space.pods.uids(&vm.name).len()
}

#[test]
fn lost_node_is_reported_and_its_pods_remain_until_the_node_is_tainted() {
    e2e_without_operator(environment::SLOTS, async |space| {
        let operator = Outside::start(&space.name);
        let stays = space
            .create("stays", json!({"spec": {"tolerations": [tolerates()]}}))
            .await;
        let goes = space.create("goes", json!({})).await;
        let node = goes.booted().await["status"]["nodeName"]
            .as_str()
            .unwrap()
            .to_owned();
        stays.booted().await;
        let (stayed, gone) = (stays.pod_uid(), goes.pod_uid());

        let node_is_back = NodeIsBack(node.clone());
        environment::cluster(&["kubelet-away", AT_MOST]);
        for vm in [&stays, &goes] {
            let lost = vm.wait_for_reason("NodeUnreachable", NOTICED).await;
            let message = condition(&lost, "Ready")["message"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            let step = format!("kubectl taint node {node} {TAINT}=nodeshutdown:NoExecute");
            assert!(
                message.contains(&format!("node {node:?} does not answer"))
                    && message.contains(&step),
                "{message}"
            );
        }
        for vm in [&stays, &goes] {
            vm.processed("NodeUnreachable").await;
            assert!(
                vm.pod().unwrap()["metadata"]["deletionTimestamp"].is_null() && pods_of(vm) == 1,
                "the operator waits for the node"
            );
            assert_eq!(
                process::of_pod(&vm.pod_uid(), "qemu-system-x86").len(),
                1,
                "the guest does run, as could be"
            );
        }

        // According to the message.
        exempt_other_namespaces(space).await;
        kubectl::run(&[
            "taint",
            "node",
            &node,
            &format!("{TAINT}=nodeshutdown:NoExecute"),
        ])
        .await;
        goes.pod_after(&gone, COLLECTED).await;
        let history = space.pods.history("goes");
        let old = history
            .iter()
            .rfind(|seen| seen.object["metadata"]["uid"] == *gone)
            .unwrap();
        assert!(
            old.object["metadata"]["deletionTimestamp"].is_string(),
            "Kubernetes has stopped it"
        );
        assert_eq!(ready_reason(&stays.now()), "NodeUnreachable");

        // The kubelet stops containers without a pod before the node is schedulable again.
        environment::cluster(&["kubelet-back"]);
        stays.wait_for_reason("Running", BOOT).await;
        assert_eq!(
            (stays.pod_uid(), pods_of(&stays)),
            (stayed, 1),
            "it has run all the time"
        );
        assert_eq!(stays.counts().await.boot, 1);
        eventually("the old VM stops", 120, async || {
            if process::of_pod(&gone, "qemu-system-x86").is_empty() {
                Ok(())
            } else {
                Err(String::new())
            }
        })
        .await;
        node_is_back.untaint();
        goes.booted().await;
        assert_eq!(
            (goes.counts().await.boot, pods_of(&goes)),
            (2, 2),
            "it has come back once"
        );
        assert_eq!(goes.disk.counts().boot, 2);
        goes.wait_for_reason("Running", BOOT).await;
        let log = operator.log();
        assert!(!log.contains("force"), "{log}");
    });
}
