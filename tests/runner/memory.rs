//! What a runner costs that has nothing to do.

use crate::api::Api;
use crate::rig::Rig;
use serde_json::json;
use std::fs;

/// KiB of the program's file that are in the process' memory.
fn of_program(pid: u32) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut is_program, mut sum) = (false, 0);
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [range, _, _, _, _, path, ..] if range.contains('-') => is_program = path.ends_with("/vm-runner"),
            ["Rss:", kib, ..] if is_program => sum += kib.parse::<u64>().unwrap(),
            [range, ..] if range.contains('-') => is_program = false,
            _ => {}
        }
    }
    sum
}

#[test]
fn a_runner_that_waits_lets_go_of_what_it_needed_to_report() {
    let (rig, api) = (Rig::with_guest(), Api::start());
    rig.configure(&json!({"namespace": "ns"}), &json!({}));
    let vm = rig.start(Some(&api));
    let mut most = 0;
    vm.until("the report of a booted guest", || {
        most = most.max(of_program(vm.pid()));
        api.statuses().iter().any(|status| crate::api::condition(status, "Booted")["status"] == "True").then_some(())
    });
    // The client is kept for two seconds. Some comes back at once, in pieces as large as the page cache has them: in this
    // program, which is not optimized, more than in the one of the image.
    vm.until("less of the program", || (of_program(vm.pid()) < most / 5 * 4).then_some(()));
    // And it can report again.
    vm.signal("-TERM");
    let end = vm.end();
    assert_eq!(end.code, 10, "{}", end.log);
    let last = api.statuses().pop().unwrap();
    assert_eq!(crate::api::condition(&last, "Running")["status"], "False");
}
