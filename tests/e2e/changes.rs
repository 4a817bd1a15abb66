//! Changes of a running VM.

use super::harness::disk::Counts;
use super::harness::vm::BOOT;
use super::harness::{e2e, eventually};
use serde_json::json;

#[test]
fn a_cpu_is_added_and_taken_away_while_the_guest_runs() {
    e2e(1, async |space| {
        let vm = space
            .create(
                "vm",
                json!({"spec": {"vm": {"maximumCpus": 2, "currentCpus": 1}}}),
            )
            .await;
        vm.booted().await;
        assert_eq!(
            vm.counts().await,
            Counts {
                boot: 1,
                shutdowns: 0
            }
        );
        for cpus in [2, 1] {
            vm.patch(&json!({"spec": {"vm": {"currentCpus": cpus}}}))
                .await;
            eventually(&format!("the guest has {cpus} CPUs"), BOOT, async || {
                let present = vm.guest("grep -c ^processor /proc/cpuinfo").await;
                if present == cpus.to_string() {
                    Ok(())
                } else {
                    Err(present)
                }
            })
            .await;
            vm.until("the status reports it", BOOT, |vm| {
                vm["status"]["cpus"] == cpus
            })
            .await;
            vm.wait_for_reason("Running", BOOT).await;
        }
        assert_eq!(space.pods.uids("vm").len(), 1, "the pod was not recreated");
        assert_eq!(
            vm.counts().await,
            Counts {
                boot: 1,
                shutdowns: 0
            }
        );
    });
}
