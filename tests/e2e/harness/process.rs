//! A pod's processes on the node.

use std::fs;
use std::process::Command;

/// Kills the pod's process of that program with SIGKILL. The name is that of `/proc/PID/comm`, with at most 15
/// characters.
///
/// # Panics
/// The pod has none or several of them.
pub fn kill(pod_uid: &str, program: &str) {
    let pids = of_pod(pod_uid, program);
    let [pid] = pids.as_slice() else {
        panic!("{program} of pod {pod_uid}: one process is expected, not {pids:?}")
    };
    let killed = Command::new("kill").args(["-KILL", pid]).status();
    assert!(
        killed.is_ok_and(|status| status.success()),
        "process {pid} cannot be killed"
    );
}

/// Sends a signal, such as `STOP`, to these processes.
///
/// # Panics
/// There is none, or one has exited.
pub fn signal(pids: &[String], name: &str) {
    assert!(!pids.is_empty(), "there is no process");
    let sent = Command::new("kill")
        .arg(format!("-{name}"))
        .args(pids)
        .status();
    assert!(sent.is_ok_and(|status| status.success()), "{pids:?}");
}

/// A value of `/proc/PID/status`, such as `CapEff`: the first word.
///
/// # Panics
/// The process has exited.
pub fn field(pid: &str, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap();
    line.split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// The pod's processes of that program.
pub fn of_pod(pod_uid: &str, program: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let pids = pids.filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
    pids.filter(|pid| {
        let read =
            |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        read("comm").trim() == program && read("cgroup").contains(&format!("pod{pod_uid}"))
    })
    .collect()
}

/// The content of a file in a pod's configuration volume on the node, if the file exists.
pub fn config_file(pod_uid: &str, name: &str) -> Option<String> {
    let volume = format!("kubelet/pods/{pod_uid}/volumes/kubernetes.io~projected/config");
    fs::read_to_string(super::environment::dir().join(volume).join(name)).ok()
}
