//! (io) Asks QEMU and the kernel, once per request, so that nothing is counted while nobody looks.

use super::text::{Text, one};
use crate::runner::qemu;
use crate::runner::qmp::{Client, Command};
use rustix::param::{clock_ticks_per_second, page_size};
use serde_json::Value;
use std::fs;
use std::time::Duration;

/// Time for all of QEMU's answers together.
const QEMU_TIME: Duration = Duration::from_millis(1500);
/// How often the guest's balloon driver tells about the guest's memory, once somebody has looked.
const GUEST_STATS_INTERVAL: u64 = 10;
/// QEMU's path of the balloon.
const BALLOON: &str = "/machine/peripheral/balloon0";

/// What is known without asking.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Labels of all samples: KubeVirt's `node`, `namespace`, `name`.
    pub labels: Vec<(&'static str, String)>,
    /// Whether the processor runs the guest, where that is known.
    pub accelerated: Option<bool>,
    /// Process id of QEMU.
    pub qemu: i32,
    /// Memory that the machine was started with, in bytes.
    pub ram: u64,
    /// Paths of the disks, each with what it is read and written with.
    pub disks: Vec<(String, &'static str)>,
    /// Taps of networks.
    pub taps: Vec<Tap>,
}

/// A tap of a network.
#[derive(Clone, Debug)]
pub struct Tap {
    /// The number of the network.
    pub network: usize,
    /// The name of the interface.
    pub name: String,
}

type Samples = Vec<(Vec<(&'static str, String)>, f64)>;

/// QEMU's answers, as far as it gave them in time.
#[derive(Default)]
struct Answers {
    balloon: Option<Value>,
    guest: Option<Value>,
    blocks: Option<Value>,
    cpus: Option<Value>,
}

/// All metrics of the machine.
pub async fn gather(machine: &Machine, monitor: &Client) -> String {
    let mut answers = Answers::default();
    // What came in time is kept.
    let complete = tokio::time::timeout(QEMU_TIME, ask(monitor, &mut answers)).await.unwrap_or(false);
    let labels: Vec<(&str, &str)> = machine.labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut text = Text::new(&labels);
    text.samples("vmoperator_qemu_answers", &one(Some(f64::from(u8::from(complete)))));
    text.samples("vmoperator_accelerated", &one(machine.accelerated.map(|is| f64::from(u8::from(is)))));
    cpu(&mut text, machine, answers.cpus.as_ref());
    memory(&mut text, machine, &answers);
    storage(&mut text, machine, answers.blocks.as_ref());
    network(&mut text, machine);
    text.finish()
}

async fn ask(monitor: &Client, answers: &mut Answers) -> bool {
    answers.blocks = monitor.execute(Command::query_block_stats()).await.ok();
    answers.cpus = monitor.execute(Command::query_cpus()).await.ok();
    answers.balloon = monitor.execute(Command::query_balloon()).await.ok();
    let _ = monitor.execute(Command::set_guest_stats_interval(BALLOON, GUEST_STATS_INTERVAL)).await;
    answers.guest = monitor.execute(Command::guest_stats(BALLOON)).await.ok();
    answers.blocks.is_some() && answers.cpus.is_some()
}

fn cpu(text: &mut Text, machine: &Machine, cpus: Option<&Value>) {
    let times = times(&format!("/proc/{}/stat", machine.qemu));
    let part = |part: fn((f64, f64)) -> f64| one(times.map(part));
    let name = |part: &str| format!("kubevirt_vmi_cpu_{part}usage_seconds_total");
    text.samples(&name(""), &part(|(user, system)| user + system));
    text.samples(&name("user_"), &part(|(user, _)| user));
    text.samples(&name("system_"), &part(|(_, system)| system));
    let threads: Vec<(String, String)> = cpus
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|cpu| {
            let (id, thread) = (cpu.get("cpu-index")?.as_u64()?, cpu.get("thread-id")?.as_u64()?);
            Some((id.to_string(), format!("/proc/{}/task/{thread}", machine.qemu)))
        })
        .collect();
    let sample = |value: &dyn Fn(&str) -> Option<f64>| -> Samples {
        let sample = |(id, path): &(String, String)| Some((vec![("id", id.clone())], value(path)?));
        threads.iter().filter_map(sample).collect()
    };
    let ran = sample(&|path| self::times(&format!("{path}/stat")).map(|(user, system)| user + system));
    text.samples("kubevirt_vmi_vcpu_seconds_total", &ran);
    text.samples("kubevirt_vmi_vcpu_delay_seconds_total", &sample(&|path| delay(&format!("{path}/schedstat"))));
}

/// Seconds in user mode and in the kernel, of a `stat` file.
fn times(path: &str) -> Option<(f64, f64)> {
    let stat = fs::read_to_string(path).ok()?;
    // The name, in parentheses, may hold anything; the times are the 14th and the 15th field.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks = clock_ticks_per_second() as f64;
    let mut seconds = || Some(fields.next()?.parse::<f64>().ok()? / ticks);
    Some((seconds()?, seconds()?))
}

fn delay(path: &str) -> Option<f64> {
    let stat = fs::read_to_string(path).ok()?;
    Some(stat.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1e9)
}

fn memory(text: &mut Text, machine: &Machine, answers: &Answers) {
    let name = |what: &str| format!("kubevirt_vmi_memory_{what}");
    let resident = fs::read_to_string(format!("/proc/{}/statm", machine.qemu)).ok();
    let resident = resident.and_then(|statm| statm.split_whitespace().nth(1)?.parse::<f64>().ok());
    text.samples(&name("domain_bytes"), &one(Some(machine.ram as f64)));
    text.samples(&name("resident_bytes"), &one(resident.map(|pages| pages * page_size() as f64)));
    let actual = answers.balloon.as_ref().and_then(|balloon| balloon.get("actual")?.as_f64());
    text.samples(&name("actual_balloon_bytes"), &one(actual));
    let stats = answers.guest.as_ref().and_then(|guest| guest.get("stats"));
    // What the guest does not tell is all ones.
    let stat = |key: &str| {
        one(stats
            .and_then(|stats| stats.get(key)?.as_u64())
            .filter(|value| *value != u64::MAX)
            .map(|value| value as f64))
    };
    for (what, key) in [
        ("available_bytes", "stat-total-memory"),
        ("unused_bytes", "stat-free-memory"),
        ("usable_bytes", "stat-available-memory"),
        ("cached_bytes", "stat-disk-caches"),
        ("swap_in_traffic_bytes", "stat-swap-in"),
        ("swap_out_traffic_bytes", "stat-swap-out"),
        ("pgmajfault_total", "stat-major-faults"),
        ("pgminfault_total", "stat-minor-faults"),
    ] {
        text.samples(&name(what), &stat(key));
    }
}

fn storage(text: &mut Text, machine: &Machine, blocks: Option<&Value>) {
    let aio: Samples = machine
        .disks
        .iter()
        .map(|(path, aio)| (vec![("drive", path.clone()), ("aio", (*aio).to_owned())], 1.0))
        .collect();
    text.samples("vmoperator_disk_aio_info", &aio);
    let stats = |n: usize| {
        let node = qemu::disk_node(n);
        let ours = |block: &&Value| block.get("node-name").and_then(Value::as_str) == Some(node.as_str());
        blocks?.as_array()?.iter().find(ours)?.get("stats")
    };
    for (what, key, scale) in [
        ("iops_read_total", "rd_operations", 1.0),
        ("iops_write_total", "wr_operations", 1.0),
        ("read_traffic_bytes_total", "rd_bytes", 1.0),
        ("write_traffic_bytes_total", "wr_bytes", 1.0),
        ("read_times_seconds_total", "rd_total_time_ns", 1e9),
        ("write_times_seconds_total", "wr_total_time_ns", 1e9),
        ("flush_requests_total", "flush_operations", 1.0),
        ("flush_times_seconds_total", "flush_total_time_ns", 1e9),
    ] {
        let sample = |(n, (path, _)): (usize, &(String, &str))| {
            Some((vec![("drive", path.clone())], stats(n)?.get(key)?.as_f64()? / scale))
        };
        let samples: Samples = machine.disks.iter().enumerate().filter_map(sample).collect();
        text.samples(&format!("kubevirt_vmi_storage_{what}"), &samples);
    }
}

/// What a tap sends, the guest receives. Networks behind the pod's address are counted with the pod.
fn network(text: &mut Text, machine: &Machine) {
    for (guest, tap) in [("receive", "tx"), ("transmit", "rx")] {
        for (what, file) in
            [("bytes", "bytes"), ("packets", "packets"), ("errors", "errors"), ("packets_dropped", "dropped")]
        {
            let sample = |each: &Tap| {
                let path = format!("/sys/class/net/{}/statistics/{tap}_{file}", each.name);
                let count = fs::read_to_string(path).ok()?.trim().parse().ok()?;
                Some((vec![("interface", format!("hostnet{}", each.network))], count))
            };
            let samples: Samples = machine.taps.iter().filter_map(sample).collect();
            text.samples(&format!("kubevirt_vmi_network_{guest}_{what}_total"), &samples);
        }
    }
}
