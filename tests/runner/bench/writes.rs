//! A runner's memory before and after many writes of its VM's status. Each write reports a change that the agent of the
//! guest's desktop has sent. The API server is simulated, without TLS. A change follows the write of the previous one,
//! and a runner writes at most once a second. So 300 writes take five minutes of mostly waiting, and ten thousand take
//! three hours.
//!
//! `STATUS_WRITES` (300) is the number of writes.

use super::shipped;
use crate::api::{Api, condition};
use crate::fixture::{Console, LIMIT, Vm};
use serde_json::json;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time after which the runner is idle.
const REST: Duration = Duration::from_secs(10);
/// The goal for an idle runner, in KiB. It includes pages of the program, which all runners of a node share.
const GOAL: u64 = 10 * 1024;
/// Growth between a tenth of the writes and all of them that does not count, in KiB: less than one for each of 270.
const NO_GROWTH: u64 = 256;

/// Forwards the serial console to the port of the desktop's agent, with builtin commands of the shell only.
const AGENT: &str = "sh for n in /sys/class/virtio-ports/*/name; do \
    if [ $(cat $n) = org.jdrupes.vmop_agent.0 ]; then n=${n%/name}; p=/dev/${n##*/}; fi; done; \
    exec 3<>$p; echo passing >/dev/ttyS0; while read -r line; do echo \"$line\" >&3; done </dev/ttyS0";

struct Bench<'a> {
    vm: &'a Vm<'a>,
    api: &'a Api,
    console: Console<'a>,
    /// The status writes that the API server has received.
    seen: usize,
}

impl Bench<'_> {
    /// Connects and disconnects the agent until there were that many writes.
    fn write(&mut self, until: usize) {
        let mut connected = false;
        while self.seen < until || connected {
            connected = !connected;
            self.console
                .type_line(if connected { "220 here" } else { "240 gone" });
            self.wait_for_report(connected);
        }
    }

    /// Waits for the write that reports it.
    fn wait_for_report(&mut self, connected: bool) {
        let begin = Instant::now();
        let expected = if connected { "True" } else { "False" };
        loop {
            let statuses = self.api.take_statuses();
            self.seen += statuses.len();
            if statuses
                .last()
                .is_some_and(|last| condition(last, "VmopAgentConnected")["status"] == expected)
            {
                return;
            }
            assert!(
                begin.elapsed() < LIMIT,
                "waited for {expected}, after {} writes",
                self.seen
            );
            sleep(Duration::from_millis(2));
        }
    }

    /// The idle runner's proportional share of memory, in KiB.
    fn idle_memory(&mut self) -> u64 {
        sleep(REST);
        self.seen += self.api.take_statuses().len();
        pss(self.vm.pid())
    }
}

/// The proportional share of memory of a process, in KiB.
fn pss(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup
        .lines()
        .find(|line| line.starts_with("Pss:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

#[test]
fn runner_memory_does_not_grow_with_status_writes() {
    let writes = std::env::var("STATUS_WRITES").map_or(300, |number| number.parse().unwrap());
    let (fixture, api) = (shipped(), Api::start());
    fixture.configure(&json!({"namespace": "ns"}), &json!({}));
    let vm = fixture.start(Some(&api));
    vm.reaches("Booted");
    let mut console = vm.console();
    console.type_line(AGENT);
    console.wait("passing");
    let mut bench = Bench {
        vm: &vm,
        api: &api,
        console,
        seen: 0,
    };
    bench.write(6);
    let (few, before) = (bench.seen, bench.idle_memory());
    bench.write(writes / 10);
    let (tenth, between) = (bench.seen, bench.idle_memory());
    let begin = Instant::now();
    bench.write(writes);
    let took = begin.elapsed().as_secs_f64() / (bench.seen - tenth) as f64;
    let (all, after) = (bench.seen, bench.idle_memory());
    println!(
        "| idle runner after {few}; {tenth}; {all} status writes | PSS {:.1}; {:.1}; {:.1} MiB |",
        mib(before),
        mib(between),
        mib(after)
    );
    println!("| one of these writes each | {:.0} ms |", took * 1e3);
    assert_eq!(
        bench.api.statuses().len(),
        0,
        "an idle runner writes nothing"
    );
    assert!(
        after <= between + NO_GROWTH,
        "it has grown by {} KiB",
        after - between
    );
    assert!(after <= GOAL, "more than {GOAL} KiB");
}
