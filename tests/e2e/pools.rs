//! A VM of a pool with three users, one after the other: the agent in the guest logs them in and out, and a restart between two users
//! leaves nothing of the first one's session.

use super::harness::vm::{BOOT, SHUTDOWN, Vm, condition};
use super::harness::{Space, e2e, eventually, kubectl, process};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use vm_operator::api::pool::names;

const POOL: &str = "desktops";
/// The time limit in seconds until the kubelet has updated the configuration in the pod, and the runner has applied it.
const PROPAGATION: u64 = 60;

/// The agent of the desktop: it records each request of the runner, and answers it. A logout closes its port.
const AGENT: &str = "for n in /sys/class/virtio-ports/*/name; do \
    if [ $(cat $n) = org.jdrupes.vmop_agent.0 ]; then n=${n%/name}; p=/dev/${n##*/}; fi; done; \
    exec 3<>$p; echo 220 Hello >&3; while read -r c u <&3; do echo $c:$u >>/requests; \
    case $c in login) echo 201 in >&3;; logout) echo 202 out >&3; break;; esac; done";

/// The text of a session. The guest puts it together, so that no message to the guest contains it.
const SESSION: &str = "session-of-berta-in-memory";
const BEGIN_SESSION: &str = "o=of; echo session-$o-berta-in-memory >/session";

async fn create_pool(space: &Space) {
    let pool = json!({
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VmPool", "metadata": {"namespace": space.name, "name": POOL},
        "spec": {"permissions": [], "loginOnAssignment": true, "onRelease": "Keep"},
    });
    kubectl::create(&pool).await.unwrap();
}

/// Asks for the VM.
async fn ask(space: &Space, user: &str) {
    let name = names::assignment(POOL, user);
    let claim = json!({
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VmAssignment", "metadata": {"namespace": space.name, "name": name},
        "spec": {"pool": POOL, "user": user},
    });
    kubectl::create(&claim).await.unwrap();
}

/// Gives the VM back.
async fn leave(space: &Space, user: &str) {
    let name = names::assignment(POOL, user);
    space.kubectl(&["delete", "vmassignment", &name]).await;
}

/// Waits until the user has the VM.
async fn has_vm(space: &Space, user: &str, seconds: u64) {
    let name = names::assignment(POOL, user);
    eventually(&format!("{user} has the VM"), seconds, async || {
        let text = space
            .kubectl(&["get", "vmassignment", &name, "--output", "json"])
            .await;
        let claim: Value = serde_json::from_str(&text).unwrap();
        let bound = condition(&claim, "Bound");
        if bound["status"] == "True" {
            Ok(())
        } else {
            Err(format!("{bound:#}"))
        }
    })
    .await;
}

async fn start_agent(vm: &Vm<'_>) {
    vm.guest(&format!("{{ {AGENT}; }} >/dev/null 2>&1 & echo started"))
        .await;
}

/// Waits until the agent has received these requests since the boot, and no others.
async fn requests(vm: &Vm<'_>, expected: &str) {
    eventually(
        &format!("the agent gets {expected}"),
        PROPAGATION,
        async || {
            let received = vm.guest("cat /requests || echo none").await;
            if received == expected {
                Ok(())
            } else {
                Err(received)
            }
        },
    )
    .await;
}

async fn is_logged_in(vm: &Vm<'_>, user: &str) {
    vm.until(&format!("{user} is logged in"), PROPAGATION, |vm| {
        condition(vm, "UserLoggedIn")["reason"] == "LoggedIn"
            && vm["status"]["loggedInUser"] == user
    })
    .await;
}

/// The process ID of the VM's QEMU.
fn qemu(vm: &Vm<'_>) -> String {
    let pids = process::of_pod(&vm.pod_uid(), "qemu-system-x86");
    let [pid] = pids.as_slice() else {
        panic!("one QEMU is expected, not {pids:?}")
    };
    pid.clone()
}

/// Whether the memory of the process contains the text: its own, its guest's, and the screen.
fn memory_contains(pid: &str, text: &str) -> bool {
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let ranges = maps.lines().filter_map(|line| {
        let (range, rights) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        rights
            .starts_with("rw")
            .then_some((number(from)?, number(to)?))
    });
    let mut read = 0;
    for (from, to) in ranges {
        let mut content = vec![0; usize::try_from(to - from).unwrap()];
        // Some ranges of devices cannot be read.
        let Ok(length) = memory.read_at(&mut content, from) else {
            continue;
        };
        read += length;
        content.truncate(length);
        if content
            .windows(text.len())
            .any(|window| window == text.as_bytes())
        {
            return true;
        }
    }
    assert!(
        read > 200 << 20,
        "only {read} bytes of the memory were read"
    );
    false
}

#[test]
fn restart_between_two_users_leaves_nothing_of_the_session() {
    e2e(1, async |space| {
        create_pool(space).await;
        let vm = space.create("vm", json!({"spec": {"pools": [POOL]}})).await;
        vm.booted().await;

        // Without a restart, the agent logs the first user out, and the next one in.
        ask(space, "anna").await;
        has_vm(space, "anna", PROPAGATION).await;
        start_agent(&vm).await;
        requests(&vm, "login:anna").await;
        is_logged_in(&vm, "anna").await;
        leave(space, "anna").await;
        requests(&vm, "login:anna logout:").await;
        ask(space, "berta").await;
        has_vm(space, "berta", PROPAGATION).await;
        start_agent(&vm).await;
        requests(&vm, "login:anna logout: login:berta").await;
        is_logged_in(&vm, "berta").await;
        assert_eq!(space.pods.uids("vm").len(), 1, "the VM has restarted");

        // With a restart, the next user waits for it.
        let patch = json!({"spec": {"onRelease": "Restart"}}).to_string();
        space
            .kubectl(&[
                "patch", "vmpool", POOL, "--type", "merge", "--patch", &patch,
            ])
            .await;
        vm.guest(&format!("{BEGIN_SESSION}; echo begun")).await;
        let (first, old_qemu) = (vm.pod_uid(), qemu(&vm));
        assert!(
            memory_contains(&old_qemu, SESSION),
            "the search does not find the session"
        );
        ask(space, "carla").await;
        leave(space, "berta").await;
        has_vm(space, "carla", SHUTDOWN + BOOT).await;
        assert!(
            !Path::new(&format!("/proc/{old_qemu}")).exists(),
            "the previous QEMU runs"
        );
        vm.booted().await;
        assert_ne!(vm.pod_uid(), first);
        let remains = vm.guest("cat /session /requests 2>/dev/null | wc -c").await;
        assert_eq!(remains, "0", "bytes of the files of the session");
        assert!(
            !memory_contains(&qemu(&vm), SESSION),
            "the session is in the memory of the next one"
        );
        start_agent(&vm).await;
        requests(&vm, "login:carla").await;
        is_logged_in(&vm, "carla").await;
        // No version of the VM is assigned to the next user before the restart is complete.
        for seen in space.vms.history("vm") {
            let status = &seen.object["status"];
            if status["assignment"]["user"] == "carla" {
                assert_eq!(status["observedRestartRequest"], 1, "{status:#}");
            }
        }
    });
}
