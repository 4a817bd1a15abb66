//! The node: running QEMU processes, resources of the programs, and remains of pods.

use super::lives::Lives;
use crate::harness::{Space, environment};
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};
use std::{fmt, fs};
use vm_operator::api::vm::names;

/// The clock's nanoseconds, as a seed.
pub fn nanos() -> u64 {
    SystemTime::UNIX_EPOCH
        .elapsed()
        .map(|since| u64::from(since.subsec_nanos()))
        .unwrap_or_default()
}

/// A process of a pod.
struct Process {
    pid: String,
    program: String,
    pod_uid: String,
}

/// All processes.
fn pids() -> impl Iterator<Item = String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The taps of runners, in the network namespace of each process.
fn taps() -> BTreeSet<String> {
    let ours = names::TAP_INTERFACE.trim_end_matches("%d");
    let (mut namespaces, mut taps) = (BTreeSet::new(), BTreeSet::new());
    for pid in pids() {
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/net")) else {
            continue;
        };
        if namespaces.contains(&namespace) {
            continue;
        }
        // It may have exited in between. Then another process of the namespace has the same taps.
        let Ok(links) = fs::read_to_string(format!("/proc/{pid}/net/dev")) else {
            continue;
        };
        let links = links
            .lines()
            .filter_map(|line| line.split_once(':').map(|(name, _)| name.trim()));
        let links = links.filter(|name| name.starts_with(ours));
        taps.extend(links.map(|name| format!("the tap {name} in {}", namespace.display())));
        namespaces.insert(namespace);
    }
    taps
}

/// The processes of pods without zombies.
fn processes() -> Vec<Process> {
    let mut all = Vec::new();
    for pid in pids() {
        let read =
            |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let cgroup = read("cgroup");
        let Some((_, uid)) = cgroup.split_once("/pod") else {
            continue;
        };
        let pod_uid: String = uid.chars().take(36).collect();
        if !read("cmdline").is_empty() {
            all.push(Process {
                program: read("comm").trim().to_owned(),
                pod_uid,
                pid,
            });
        }
    }
    all
}

/// The resources of a process at its first and last measurement.
struct Taken {
    program: String,
    since: Instant,
    first: Option<(usize, u64)>,
    last: (usize, u64),
}

impl Taken {
    /// Its requirement at that age: the maximum over some time, because a process without its API server has half of
    /// its descriptors.
    fn note(&mut self, age: Duration, now: (usize, u64)) {
        self.last = now;
        if age >= WARM && (age < WARM + WHILE || self.first.is_none()) {
            let first = self.first.unwrap_or_default();
            self.first = Some((first.0.max(now.0), first.1.max(now.1)));
        }
    }

    fn leaks(&self) -> bool {
        self.first.is_some_and(|first| {
            self.last.0 > first.0 + DESCRIPTORS || self.last.1 > first.1 + MEMORY
        })
    }
}

/// The time after which a program has all that it needs.
const WARM: Duration = Duration::from_secs(20);
/// The time over which the requirement is measured. It is longer than an outage of a killed API server.
const WHILE: Duration = Duration::from_secs(20);
/// The interval of measurements.
const SELDOM: Duration = Duration::from_secs(5);
/// The allowed growth of a warm program's descriptors, …
const DESCRIPTORS: usize = 8;
/// … and of its memory, in KiB.
const MEMORY: u64 = 6 * 1024;

/// The observations of processes.
#[derive(Default)]
pub struct Watch {
    looks: u64,
    doubles: BTreeSet<String>,
    most: usize,
    most_taps: usize,
    taken: BTreeMap<String, Taken>,
    measured: Option<Instant>,
    /// The observations of VMs and pods.
    pub lives: Lives,
}

impl Watch {
    /// Observes all processes of the namespace's pods.
    pub fn observe(&mut self, space: &Space) {
        self.lives
            .observe(&space.vms.all(), &space.pods.all(), Timestamp::now());
        let names = space.pods.names_by_uid();
        let all: Vec<Process> = processes()
            .into_iter()
            .filter(|it| names.contains_key(&it.pod_uid))
            .collect();
        let mut qemus: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for it in all.iter().filter(|it| it.program == "qemu-system-x86") {
            qemus
                .entry(names[&it.pod_uid].as_str())
                .or_default()
                .insert(&it.pid);
        }
        self.looks += 1;
        self.most = self.most.max(qemus.len());
        for (vm, pids) in qemus.into_iter().filter(|(_, pids)| pids.len() > 1) {
            self.doubles.insert(format!("{vm}: {pids:?}"));
        }
        if self.measured.is_none_or(|at| at.elapsed() >= SELDOM) {
            self.measured = Some(Instant::now());
            self.most_taps = self.most_taps.max(taps().len());
            all.iter()
                .filter(|it| it.program.starts_with("vm-"))
                .for_each(|it| self.measure(it));
        }
    }

    fn measure(&mut self, it: &Process) {
        let Some(now) = resources_of(&it.pid) else {
            return;
        };
        let taken = self.taken.entry(it.pid.clone()).or_insert_with(|| Taken {
            program: it.program.clone(),
            since: Instant::now(),
            first: None,
            last: now,
        });
        taken.note(taken.since.elapsed(), now);
    }

    /// Asserts that no VM ever had two QEMU processes, and that no program has leaked resources.
    pub fn judge(&self) {
        assert!(
            self.doubles.is_empty(),
            "two QEMUs for one VM: {:?}",
            self.doubles
        );
        assert!(self.most > 0, "no QEMU was ever seen");
        assert!(
            self.most_taps > 0,
            "no tap was observed, so a remaining one would not be found"
        );
        for (pid, taken) in &self.taken {
            let (is_more, first, last) = (taken.leaks(), taken.first, taken.last);
            assert!(
                !is_more,
                "{} {pid}: descriptors and KiB were {first:?}, are {last:?}",
                taken.program
            );
        }
    }

    /// A summary of the observations.
    pub fn summary(&self) -> String {
        let of = |program: &str| {
            let all: Vec<&Taken> = self
                .taken
                .values()
                .filter(|taken| taken.program.starts_with(program))
                .collect();
            let descriptors = all
                .iter()
                .map(|taken| taken.last.0)
                .max()
                .unwrap_or_default();
            let memory = all
                .iter()
                .map(|taken| taken.last.1)
                .max()
                .unwrap_or_default();
            format!(
                "{} of {program}, at most {descriptors} descriptors and {} KiB",
                all.len(),
                memory
            )
        };
        let (operators, runners) = (of("vm-operator"), of("vm-runner"));
        format!(
            "{} observations: never two QEMUs for one VM, up to {} VMs and {} taps at once; {operators}; {runners}; {}",
            self.looks,
            self.most,
            self.most_taps,
            self.lives.summary()
        )
    }
}

/// The number of descriptors and the private memory in KiB.
fn resources_of(pid: &str) -> Option<(usize, u64)> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    let memory = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let private = memory.lines().filter_map(|line| {
        line.strip_prefix("Private_Dirty:")?
            .split_whitespace()
            .next()
    });
    Some((
        descriptors,
        private.filter_map(|kib| kib.parse::<u64>().ok()).sum(),
    ))
}

/// Remains of pods and volumes on the node.
pub struct Host {
    loops: BTreeSet<String>,
    taps: BTreeSet<String>,
    /// The number of pod networks, because pods of other namespaces may get new ones.
    links: usize,
    volumes: BTreeSet<String>,
}

fn lines(program: &str, args: &[&str]) -> Vec<String> {
    let output = Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

impl Host {
    pub fn observe() -> Self {
        let dir = environment::dir().display().to_string();
        let loops = lines(
            "losetup",
            &[
                "--list",
                "--noheadings",
                "--raw",
                "--output",
                "NAME,BACK-FILE",
            ],
        );
        let tool = environment::dir()
            .join("bin/vmop-kube")
            .display()
            .to_string();
        let kubeconfig = environment::kubeconfig().display().to_string();
        let volumes = lines(
            &tool,
            &[
                "kubectl",
                "--kubeconfig",
                &kubeconfig,
                "get",
                "pv",
                "--output",
                "name",
            ],
        );
        let links = fs::read_dir("/sys/class/net")
            .into_iter()
            .flatten()
            .flatten();
        Self {
            // A loop device on another loop device is the kubelet's reference to that device.
            loops: loops
                .into_iter()
                .filter(|line| line.contains(&dir) || line.contains(" /dev/loop"))
                .collect(),
            taps: taps(),
            links: links
                .filter(|link| link.file_name().to_string_lossy().starts_with("veth"))
                .count(),
            volumes: volumes.into_iter().collect(),
        }
    }

    /// New objects since the start, and remains of those pods.
    pub fn more_than(&self, before: &Self, pods: &BTreeSet<String>) -> Vec<String> {
        let more = |now: &BTreeSet<String>, before: &BTreeSet<String>| {
            now.difference(before).cloned().collect::<Vec<_>>()
        };
        let mut left = more(&self.loops, &before.loops);
        left.extend(more(&self.volumes, &before.volumes));
        left.extend(more(&self.taps, &before.taps));
        if self.links > before.links {
            left.push(format!("{} links, before {}", self.links, before.links));
        }
        left.extend(
            processes()
                .iter()
                .filter(|it| pods.contains(&it.pod_uid))
                .map(|it| format!("{} {}", it.program, it.pid)),
        );
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for pod in pods {
            left.extend(
                mounts
                    .lines()
                    .filter(|line| line.contains(pod.as_str()))
                    .map(|line| format!("mount {line}")),
            );
            let directory = environment::dir().join("kubelet/pods").join(pod);
            left.extend(
                Path::new(&directory)
                    .exists()
                    .then(|| directory.display().to_string()),
            );
        }
        left
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} loop devices, {} taps, {} links of pods, {} volumes, as before",
            self.loops.len(),
            self.taps.len(),
            self.links,
            self.volumes.len()
        )
    }
}

/// Runs in its own network namespace, with a process that lives until it can read a line.
#[test]
fn leftover_tap_in_any_network_namespace_is_detected() {
    use std::io::{Read, Write};
    use std::process::Stdio;
    let none = BTreeSet::new();
    let before = Host {
        loops: none.clone(),
        taps: taps(),
        links: 0,
        volumes: none.clone(),
    };
    let name = names::TAP_INTERFACE.replace("%d", "7");
    let script = format!("ip tuntap add dev {name} mode tap && echo made && read line");
    let mut keeper = Command::new("unshare")
        .args(["--net", "sh", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare is missing");
    let mut made = [0; 4];
    keeper
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut made)
        .expect("the tap cannot be created; run this as root");
    let now = Host {
        loops: none.clone(),
        taps: taps(),
        links: 0,
        volumes: none.clone(),
    };
    keeper.stdin.take().unwrap().write_all(b"\n").unwrap();
    keeper.wait().unwrap();
    let left = now.more_than(&before, &none);
    assert!(
        left.len() == 1 && left[0].starts_with(&format!("the tap {name} in net:[")),
        "{left:?}"
    );
}

mod tests {
    use super::*;

    fn leaks(looks: &[(u64, usize)]) -> bool {
        let mut taken = Taken {
            program: "vm-operator".to_owned(),
            since: Instant::now(),
            first: None,
            last: (0, 0),
        };
        looks.iter().for_each(|&(age, descriptors)| {
            taken.note(Duration::from_secs(age), (descriptors, 2500))
        });
        taken.leaks()
    }

    #[test]
    fn descriptors_reopened_after_an_api_server_outage_are_not_a_leak() {
        assert!(!leaks(&[(5, 20), (20, 12), (25, 23), (45, 23)]));
        assert!(!leaks(&[(5, 20), (20, 23), (25, 12), (45, 23)]));
    }

    #[test]
    fn descriptor_growth_after_the_warm_up_is_a_leak() {
        assert!(leaks(&[(5, 20), (20, 12), (25, 23), (45, 40)]));
        assert!(leaks(&[(50, 20), (55, 40)]));
    }
}
