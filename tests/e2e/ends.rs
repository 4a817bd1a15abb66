//! VMs that stop without a request: the guest powers off, QEMU or the runner is killed.

use super::harness::disk::Counts;
use super::harness::vm::{BOOT, SHUTDOWN, Vm, condition, ready_reason};
use super::harness::{console, e2e, eventually, process};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

/// The status that reports the exit of that pod, and the seconds until the next pod was created.
async fn end_after(vm: &Vm<'_>, old_pod: &str) -> (Value, i64) {
    vm.pod_after(old_pod, SHUTDOWN).await;
    let created = vm.pod().unwrap()["metadata"]["creationTimestamp"]
        .as_str()
        .unwrap()
        .parse::<Timestamp>()
        .unwrap();
    let history = vm.space.vms.history(&vm.name);
    let report = history
        .iter()
        .map(|seen| &seen.object)
        .find(|object| object["status"]["restarts"]["podUid"] == old_pod);
    let report = report.unwrap_or_else(|| {
        panic!(
            "no status reports the exit of pod {old_pod}: {:#}",
            vm.now()
        )
    });
    assert_eq!(ready_reason(report), "RestartBackoff", "{report:#}");
    assert_eq!(condition(report, "Ready")["status"], "False", "{report:#}");
    // Both times are in whole seconds, so this is exact.
    let ended = report["status"]["restarts"]["time"]
        .as_str()
        .unwrap()
        .parse::<Timestamp>()
        .unwrap();
    (
        report["status"]["restarts"].clone(),
        created.duration_since(ended).as_secs(),
    )
}

#[test]
fn a_guest_that_powers_itself_off_stays_off_where_that_is_wanted() {
    e2e(1, async |space| {
        let vm = space
            .create("vm", json!({"spec": {"guestShutdownStops": true}}))
            .await;
        assert_eq!(vm.counts().await.boot, 1);
        console::power_off(space, "vm").await;
        vm.until("is stopped by its spec", SHUTDOWN, |vm| {
            vm["spec"]["vm"]["state"] == "Stopped"
        })
        .await;
        vm.pod_gone(SHUTDOWN).await;
        vm.wait_for_reason("Stopped", SHUTDOWN).await;

        // A new operator reconciles all objects. It has done so when another VM has completed its exit.
        space.restart_operator().await;
        let other = space.create("other", json!({})).await;
        other.wait_for_reason("Running", BOOT).await;
        assert_eq!(
            space.pods.uids("vm").len(),
            1,
            "the VM was started again: {:#}",
            vm.now()
        );
        assert_eq!(ready_reason(&vm.now()), "Stopped");

        // The state Running starts the VM again, after the other VM has released its memory.
        other.set_state("Stopped").await;
        other.pod_gone(SHUTDOWN).await;
        vm.set_state("Running").await;
        vm.booted().await;
        assert_eq!(vm.counts().await.boot, 2);
    });
}

#[test]
fn a_qemu_that_is_killed_is_started_again_after_pauses_that_grow() {
    e2e(1, async |space| {
        let vm = space.create("vm", json!({})).await;
        for (attempt, at_least) in [(1, 1), (2, 2)] {
            vm.booted().await;
            let pod = vm.pod_uid();
            process::kill(&pod, "qemu-system-x86");
            let (restarts, pause) = end_after(&vm, &pod).await;
            assert_eq!(restarts["reason"], "QemuCrashed", "{restarts:#}");
            assert_eq!(restarts["attempts"], attempt, "{restarts:#}");
            assert!(pause >= at_least, "a delay of {pause} s: {restarts:#}");
        }
        vm.booted().await;
        assert_eq!(
            vm.counts().await,
            Counts {
                boot: 3,
                shutdowns: 0
            }
        );
        warns_of(&vm, "QemuCrashed").await;
    });
}

#[test]
fn vm_with_unresponsive_guest_is_powered_off() {
    e2e(1, async |space| {
        // Without a disk, no guest runs that would react to the power button.
        let vm = space
            .create(
                "vm",
                json!({"spec": {"vm": {"disks": [], "powerdownTimeout": 600}}}),
            )
            .await;
        vm.wait_for_reason("Running", BOOT).await;
        let pod = vm.pod_uid();
        let off = ["exec", "vm", "--", "vm-runner", "power-off"];
        space.kubectl(&off).await;
        let (restarts, _) = end_after(&vm, &pod).await;
        assert_eq!(restarts["reason"], "Stopped", "{restarts:#}");
        vm.wait_for_reason("Running", BOOT).await;

        vm.set_state("Stopped").await;
        let report = vm.wait_for_reason("Stopping", SHUTDOWN).await;
        let message = condition(&report, "Ready")["message"].to_string();
        assert!(
            message.contains(&format!("kubectl {}", off.join(" "))),
            "{message}"
        );
        space.kubectl(&off).await;
        vm.wait_for_reason("Stopped", SHUTDOWN).await;
    });
}

/// Waits until `kubectl describe` has a warning with that reason.
async fn warns_of(vm: &Vm<'_>, end: &str) {
    eventually("an event reports the restart", 20, async || {
        let output = vm.space.kubectl(&["describe", "vm", &vm.name]).await;
        let mut lines = output
            .lines()
            .filter(|line| line.contains("Warning") && line.contains("RestartBackoff"));
        lines
            .find(|line| line.contains(end))
            .map(drop)
            .ok_or(output.clone())
    })
    .await;
}

/// The runner's tests cover both exits of the process, and the simulated faults the restart.
mod exhaustive {
    use super::*;

    #[test]
    fn b33_a_guest_that_powers_itself_off_is_started_again() {
        e2e(1, async |space| {
            let vm = space.create("vm", json!({})).await;
            assert_eq!(vm.counts().await.boot, 1);
            let pod = vm.pod_uid();
            console::power_off(space, "vm").await;
            let (restarts, pause) = end_after(&vm, &pod).await;
            assert_eq!(restarts["reason"], "GuestShutdown", "{restarts:#}");
            assert!(pause >= 1, "a delay of {pause} s: {restarts:#}");
            vm.booted().await;
            assert_eq!(vm.counts().await.boot, 2);
        });
    }

    #[test]
    fn a_runner_that_is_killed_takes_its_qemu_along_and_is_started_again() {
        e2e(1, async |space| {
            let vm = space.create("vm", json!({})).await;
            vm.booted().await;
            let pod = vm.pod_uid();
            process::kill(&pod, "vm-runner");
            let (restarts, _) = end_after(&vm, &pod).await;
            assert_eq!(restarts["reason"], "RunnerKilled", "{restarts:#}");
            assert!(
                process::of_pod(&pod, "qemu-system-x86").is_empty(),
                "QEMU outlived its runner"
            );
            vm.booted().await;
            assert_eq!(
                vm.counts().await,
                Counts {
                    boot: 2,
                    shutdowns: 0
                }
            );
            warns_of(&vm, "RunnerKilled").await;
        });
    }
}
