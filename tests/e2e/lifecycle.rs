//! Stop and start, a deleted pod, a deleted VM.

use super::harness::disk::Counts;
use super::harness::vm::{SHUTDOWN, condition, uid};
use super::harness::{Space, e2e, eventually};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// UIDs of the namespace's claims, by name.
async fn claims(space: &Space) -> BTreeMap<String, String> {
    let list = space
        .kubectl(&["get", "persistentvolumeclaims", "--output", "json"])
        .await;
    let list: Value = serde_json::from_str(&list).unwrap();
    let items = list["items"].as_array().into_iter().flatten();
    items
        .map(|claim| {
            (
                claim["metadata"]["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
                uid(claim),
            )
        })
        .collect()
}

#[test]
fn a_vm_that_is_stopped_and_started_again_has_its_disk() {
    e2e(1, async |space| {
        let vm = space.create("vm", json!({})).await;
        vm.booted().await;
        assert_eq!(
            vm.counts().await,
            Counts {
                boot: 1,
                shutdowns: 0
            }
        );
        let before = claims(space).await;
        assert!(
            before.contains_key("vm-system-disk") && before.contains_key("vm-runner-data"),
            "{before:?}"
        );

        vm.set_state("Stopped").await;
        vm.pod_gone(SHUTDOWN).await;
        let stopped = vm.wait_for_reason("Stopped", SHUTDOWN).await;
        assert_eq!(
            condition(&stopped, "Ready")["status"],
            "True",
            "{stopped:#}"
        );
        for type_ in ["Running", "Booted"] {
            assert_eq!(condition(&stopped, type_)["status"], "False", "{stopped:#}");
        }
        assert!(
            stopped["status"]["nodeName"].is_null() && stopped["status"]["podIP"].is_null(),
            "{stopped:#}"
        );
        assert!(
            stopped["status"]["restarts"].is_null(),
            "an ordinary stop is no failure: {stopped:#}"
        );
        assert_eq!(
            vm.disk.counts(),
            Counts {
                boot: 1,
                shutdowns: 1
            },
            "the guest was requested to shut down"
        );

        vm.set_state("Running").await;
        vm.booted().await;
        assert_eq!(
            vm.counts().await,
            Counts {
                boot: 2,
                shutdowns: 1
            }
        );
        assert_eq!(claims(space).await, before);
    });
}

#[test]
fn a_pod_that_is_deleted_by_hand_comes_back() {
    e2e(1, async |space| {
        let vm = space.create("vm", json!({})).await;
        vm.booted().await;
        let old = vm.pod_uid();
        space
            .kubectl(&["delete", "pod", "vm", "--wait=false"])
            .await;
        vm.pod_after(&old, SHUTDOWN).await;
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

#[test]
fn a_deleted_vm_shuts_its_guest_down_and_leaves_its_disks() {
    e2e(1, async |space| {
        let vm = space.create("vm", json!({})).await;
        vm.booted().await;
        let before = claims(space).await;
        let owned = ["configmap/vm", "secret/vm-display-secret", "pod/vm"];
        let present = async || {
            space
                .kubectl(
                    &[
                        &["get", "--ignore-not-found", "--output", "name"],
                        &owned[..],
                    ]
                    .concat(),
                )
                .await
        };
        assert_eq!(present().await.lines().count(), owned.len());

        space.kubectl(&["delete", "vm", "vm"]).await;
        eventually("what the VM owned goes with it", SHUTDOWN, async || {
            Some(present().await)
                .filter(String::is_empty)
                .ok_or(String::new())
        })
        .await;
        // The time for the shutdown is reported on the pod, because the VM does not exist any more.
        let selector = "reason=Stopping,involvedObject.kind=Pod,involvedObject.name=vm";
        eventually("an event on the pod", 20, async || {
            let events = ["get", "events", "--field-selector", selector, "--output"];
            let notes = space
                .kubectl(&[&events[..], &["jsonpath={.items[*].message}"]].concat())
                .await;
            if notes.contains("vm-runner power-off") {
                Ok(())
            } else {
                Err(notes)
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
        assert_eq!(claims(space).await, before);
        assert_eq!(space.pods.uids("vm").len(), 1, "it was not started again");
    });
}
