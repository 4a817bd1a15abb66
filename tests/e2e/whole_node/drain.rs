//! A drained node.

use crate::harness::disk::Counts;
use crate::harness::vm::{BOOT, SHUTDOWN};
use crate::harness::{e2e, environment, eventually, kubectl};
use serde_json::{Value, json};

/// Makes the node schedulable again when it is dropped.
struct Uncordon(String);

impl Drop for Uncordon {
    fn drop(&mut self) {
        let ended = kubectl::command(&["uncordon", &self.0]).into_std().output();
        assert!(
            ended.is_ok_and(|output| output.status.success()),
            "the node {} cannot be uncordoned",
            self.0
        );
    }
}

#[test]
fn a_drained_node_shuts_its_guests_down_and_gives_them_back() {
    e2e(environment::SLOTS, async |space| {
        let vm = space.create("vm", json!({})).await;
        let node = vm.booted().await["status"]["nodeName"]
            .as_str()
            .unwrap()
            .to_owned();
        let pod = vm.pod_uid();

        let uncordon = Uncordon(node.clone());
        // The selector excludes other pods, so that the drain needs no further flags.
        let ours = "--pod-selector=app.kubernetes.io/name in (vm-operator,vm-runner)";
        kubectl::run(&[
            "drain",
            &node,
            "--ignore-daemonsets",
            "--timeout=120s",
            ours,
        ])
        .await;
        eventually("no pod runs on the node", SHUTDOWN, async || {
            let pods = space.pods.all().into_iter();
            let left: Vec<Value> = pods
                .filter(|pod| pod["spec"]["nodeName"] == *node)
                .collect();
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:#?}"))
            }
        })
        .await;
        assert_eq!(
            vm.disk.counts(),
            Counts {
                boot: 1,
                shutdowns: 1
            },
            "the guest was requested to shut down"
        );

        drop(uncordon);
        vm.pod_after(&pod, BOOT).await;
        vm.booted().await;
        assert_eq!(
            vm.counts().await,
            Counts {
                boot: 2,
                shutdowns: 1
            }
        );
    });
}
