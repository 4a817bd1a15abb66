//! The runner's processes, from `/proc`.

use crate::fixture::Vm;
use std::fs;

/// Children of that process.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let of_thread = |thread: fs::DirEntry| {
        fs::read_to_string(thread.path().join("children")).unwrap_or_default()
    };
    let lists: Vec<String> = threads.map(of_thread).collect();
    lists
        .iter()
        .flat_map(|list| list.split_whitespace())
        .map(|pid| pid.parse().unwrap())
        .collect()
}

/// Whether the process waits in that function of the kernel.
pub fn is_in_kernel_function(pid: u32, function: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let functions =
        tasks.map(|task| fs::read_to_string(task.path().join("wchan")).unwrap_or_default());
    functions.into_iter().any(|waits_in| waits_in == function)
}

/// A value of `/proc/PID/status`, such as `CapEff`: the first word.
pub fn field(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with(&format!("{name}:")))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

/// The runner, its TPM and QEMU. Asserts that none of them has a capability.
pub fn without_capabilities(vm: &Vm) -> Vec<u32> {
    let pids = [vec![vm.pid()], children(vm.pid())].concat();
    assert_eq!(pids.len(), 3, "runner, TPM and QEMU");
    for pid in &pids {
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(
                field(*pid, set),
                "0000000000000000",
                "{set} of {}",
                field(*pid, "Name")
            );
        }
    }
    pids
}
