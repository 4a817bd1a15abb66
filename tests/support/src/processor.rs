//! Processor times, from `/proc`.

use std::time::Duration;

/// The sum of such numbers of hundredths of a second, the kernel's unit of processor time.
fn ticks(numbers: &[&str]) -> Duration {
    Duration::from_millis(
        numbers
            .iter()
            .map(|number| number.parse::<u64>().unwrap())
            .sum::<u64>()
            * 10,
    )
}

/// The processor time that a process has used, in user mode and in the kernel.
#[must_use]
pub fn of_process(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The fields after the name, which can contain spaces. User and system time are the 12th and 13th.
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    ticks(&fields[11..13])
}

/// Processor time of the whole machine: in user mode, niced, and in the kernel.
#[must_use]
pub fn of_machine() -> Duration {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let fields: Vec<&str> = stat.lines().next().unwrap().split_whitespace().collect();
    ticks(&fields[1..4])
}
