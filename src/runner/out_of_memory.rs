//! (io) Explains the end of a QEMU that the kernel has killed for lack of memory. The counter and the limit of the container's
//! cgroup are readable until the runner exits.

use crate::api::quantity::Bytes;
use crate::api::runner::outcome::{EndReason, Outcome};
use crate::runner::failure::KILLED;
use std::fs;
use std::path::Path;

/// The cgroup of the container (version 2).
pub const CGROUP_DIR: &str = "/sys/fs/cgroup";

/// Adds the cause to the outcome of a QEMU that the kernel has killed for lack of memory. Any other outcome is unchanged.
pub fn explain(outcome: Outcome, cgroup: &Path) -> Outcome {
    let reasons = [EndReason::StartFailed, EndReason::QemuCrashed];
    let read = |file: &str| fs::read_to_string(cgroup.join(file)).unwrap_or_default();
    let is_killed = outcome.qemu_exit == Some(KILLED) && reasons.contains(&outcome.reason);
    let events = read("memory.events");
    let mut kills = events
        .lines()
        .filter_map(|line| line.strip_prefix("oom_kill "));
    if !is_killed || kills.all(|count| count == "0") {
        return outcome;
    }
    // Without a limit, the file contains `max`.
    let cause = match read("memory.max").trim().parse::<Bytes>() {
        Ok(limit) => format!(
            "the kernel has killed QEMU, because the pod has reached its memory limit of {}. Raise spec.resources.limits.memory, \
             or remove the field",
            limit.to_quantity()
        ),
        Err(_) => "the kernel has killed QEMU, because the node has run out of memory. Move pods to other nodes, or add memory"
            .to_owned(),
    };
    Outcome {
        message: format!("{cause} ({})", outcome.message),
        ..outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kill_by_the_memory_limit_is_named() {
        let cgroup = tempfile::tempdir().unwrap();
        let message = |kills: u32, limit: &str, exit: i32| {
            let events = format!("low 0\nmax 9\noom 1\noom_kill {kills}\noom_group_kill 0\n");
            fs::write(cgroup.path().join("memory.events"), events).unwrap();
            fs::write(cgroup.path().join("memory.max"), limit).unwrap();
            let outcome = Outcome {
                reason: EndReason::StartFailed,
                message: "QEMU exited".to_owned(),
                qemu_exit: Some(exit),
                by_guest: false,
            };
            explain(outcome, cgroup.path()).message
        };
        assert!(message(1, "25165824\n", -9).contains("limit of 24Mi. Raise spec.resources"));
        assert!(message(1, "max\n", -9).contains("node has run out of memory"));
        assert_eq!(message(0, "25165824\n", -9), "QEMU exited");
        assert_eq!(message(1, "25165824\n", 1), "QEMU exited");
    }
}
