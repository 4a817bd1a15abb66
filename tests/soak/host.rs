//! The node: which QEMUs run, what the programs take, and what is there of pods.

use super::harness::{Space, rig};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

/// The clock's nanoseconds, for a seed.
pub fn nanos() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map(|since| u64::from(since.subsec_nanos())).unwrap_or_default()
}

/// A process of a pod.
struct Process {
    pid: String,
    program: String,
    pod_uid: String,
}

/// The processes of pods; what has ended and waits for its parent is none.
fn processes() -> Vec<Process> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if !pid.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let cgroup = read("cgroup");
        let Some((_, uid)) = cgroup.split_once("/pod") else { continue };
        let pod_uid: String = uid.chars().take(36).collect();
        if !read("cmdline").is_empty() {
            all.push(Process { program: read("comm").trim().to_owned(), pod_uid, pid });
        }
    }
    all
}

/// What a process took when it was seen first and last.
struct Taken {
    program: String,
    since: Instant,
    first: Option<(usize, u64)>,
    last: (usize, u64),
}

/// Until a program has all that it needs.
const WARM: Duration = Duration::from_secs(20);
/// Between two looks at what programs take.
const SELDOM: Duration = Duration::from_secs(5);
/// A program may have so many descriptors more than when it was warm, …
const DESCRIPTORS: usize = 8;
/// … and so much memory, in KiB.
const MEMORY: u64 = 6 * 1024;

/// What is seen of processes all along.
#[derive(Default)]
pub struct Watch {
    looks: u64,
    doubles: BTreeSet<String>,
    most: usize,
    taken: BTreeMap<String, Taken>,
    measured: Option<Instant>,
}

impl Watch {
    /// Looks at all processes of the namespace's pods.
    pub fn look(&mut self, space: &Space) {
        let names = space.pods.names_by_uid();
        let all: Vec<Process> = processes().into_iter().filter(|it| names.contains_key(&it.pod_uid)).collect();
        let mut qemus: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for it in all.iter().filter(|it| it.program == "qemu-system-x86") {
            qemus.entry(names[&it.pod_uid].as_str()).or_default().insert(&it.pid);
        }
        self.looks += 1;
        self.most = self.most.max(qemus.len());
        for (vm, pids) in qemus.into_iter().filter(|(_, pids)| pids.len() > 1) {
            self.doubles.insert(format!("{vm}: {pids:?}"));
        }
        if self.measured.is_none_or(|at| at.elapsed() >= SELDOM) {
            self.measured = Some(Instant::now());
            all.iter().filter(|it| it.program.starts_with("vm-")).for_each(|it| self.measure(it));
        }
    }

    fn measure(&mut self, it: &Process) {
        let Some(now) = takes(&it.pid) else { return };
        let taken = self.taken.entry(it.pid.clone()).or_insert_with(|| Taken {
            program: it.program.clone(),
            since: Instant::now(),
            first: None,
            last: now,
        });
        taken.last = now;
        if taken.since.elapsed() >= WARM {
            taken.first.get_or_insert(now);
        }
    }

    /// Never two QEMUs for one VM; no program that takes more and more.
    pub fn judge(&self) {
        assert!(self.doubles.is_empty(), "two QEMUs for one VM: {:?}", self.doubles);
        assert!(self.most > 0, "no QEMU was ever seen");
        for (pid, taken) in &self.taken {
            let Some(first) = taken.first else { continue };
            let is_more = taken.last.0 > first.0 + DESCRIPTORS || taken.last.1 > first.1 + MEMORY;
            assert!(!is_more, "{} {pid}: descriptors and KiB were {first:?}, are {:?}", taken.program, taken.last);
        }
    }

    /// What was seen.
    pub fn told(&self) -> String {
        let of = |program: &str| {
            let all: Vec<&Taken> = self.taken.values().filter(|taken| taken.program == program).collect();
            let descriptors = all.iter().map(|taken| taken.last.0).max().unwrap_or_default();
            let memory = all.iter().map(|taken| taken.last.1).max().unwrap_or_default();
            format!("{} of {program}, at most {descriptors} descriptors and {} KiB", all.len(), memory)
        };
        let (operators, runners) = (of("vm-operator"), of("vm-runner"));
        format!(
            "{} looks: never two QEMUs for one VM, up to {} VMs at once; {operators}; {runners}",
            self.looks, self.most
        )
    }
}

/// Descriptors and private memory in KiB.
fn takes(pid: &str) -> Option<(usize, u64)> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    let memory = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let private = memory.lines().filter_map(|line| line.strip_prefix("Private_Dirty:")?.split_whitespace().next());
    Some((descriptors, private.filter_map(|kib| kib.parse::<u64>().ok()).sum()))
}

/// What is there of pods and volumes.
pub struct Host {
    loops: BTreeSet<String>,
    links: usize,
    volumes: BTreeSet<String>,
}

fn lines(program: &str, args: &[&str]) -> Vec<String> {
    let output = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

impl Host {
    pub fn look() -> Self {
        let dir = rig::dir().display().to_string();
        let loops = lines("losetup", &["--list", "--noheadings", "--raw", "--output", "NAME,BACK-FILE"]);
        let tool = rig::dir().join("bin/vmop-kube").display().to_string();
        let kubeconfig = rig::kubeconfig().display().to_string();
        let volumes = lines(&tool, &["kubectl", "--kubeconfig", &kubeconfig, "get", "pv", "--output", "name"]);
        let is_virtual = |name: &str| ["tap", "veth", "vmop-tap"].iter().any(|kind| name.starts_with(kind));
        let links = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
        Self {
            // A device whose file is one of those devices is the kubelet's hold on it.
            loops: loops.into_iter().filter(|line| line.contains(&dir) || line.contains(" /dev/loop")).collect(),
            links: links.filter(|link| is_virtual(&link.file_name().to_string_lossy())).count(),
            volumes: volumes.into_iter().collect(),
        }
    }

    /// What there is now and was not before, and what is left of those pods.
    pub fn more_than(&self, before: &Self, pods: &BTreeSet<String>) -> Vec<String> {
        let more =
            |now: &BTreeSet<String>, before: &BTreeSet<String>| now.difference(before).cloned().collect::<Vec<_>>();
        let mut left = more(&self.loops, &before.loops);
        left.extend(more(&self.volumes, &before.volumes));
        if self.links > before.links {
            left.push(format!("{} links, before {}", self.links, before.links));
        }
        left.extend(
            processes().iter().filter(|it| pods.contains(&it.pod_uid)).map(|it| format!("{} {}", it.program, it.pid)),
        );
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for pod in pods {
            left.extend(mounts.lines().filter(|line| line.contains(pod.as_str())).map(|line| format!("mount {line}")));
            let directory = rig::dir().join("kubelet/pods").join(pod);
            left.extend(Path::new(&directory).exists().then(|| directory.display().to_string()));
        }
        left
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} loop devices, {} links of pods, {} volumes, as before",
            self.loops.len(),
            self.links,
            self.volumes.len()
        )
    }
}
