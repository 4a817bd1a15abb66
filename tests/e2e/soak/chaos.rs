//! Random events with a seed: for VMs, their guests, the node and the control plane.

use crate::harness::vm::{BOOT, SHUTDOWN, Vm, tiny};
use crate::harness::{Space, console, environment, eventually, kubectl, process};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The number of VMs. Without hardware acceleration each booting one is busy.
pub const VMS: u32 = 3;
/// The delay between two events.
const PAUSES: Range<u64> = 1_000..8_000;

/// Names that no other namespace has, so that a drain can select these pods only.
pub fn name(namespace: &str, n: u32) -> String {
    format!(
        "soak-{}-{n}",
        namespace.trim_start_matches(environment::PREFIX)
    )
}

/// The bridge of the first VM, and the port of its display, which is a port of the node.
pub const BRIDGE: &str = "vmop-soak0";
const PORT: u16 = 5932;

/// Whether the VM with that name is on the bridge, by a tap.
fn is_on_bridge(name: &str) -> bool {
    name.ends_with("-0")
}

/// The changes of the tiny guest's VM.
pub fn machine(name: &str) -> Value {
    let mut machine = json!({"maximumCpus": 2, "currentCpus": 1});
    if is_on_bridge(name) {
        machine["networks"] = json!([{"tap": {"bridge": BRIDGE}}]);
        machine["display"] = json!({"spice": {"port": PORT}});
    }
    json!({"spec": {"vm": machine}})
}

/// The program of its runner in `/proc/PID/comm`.
fn runner(name: &str) -> &'static str {
    if is_on_bridge(name) {
        "vm-runner-tap"
    } else {
        "vm-runner"
    }
}

const DELETED_OR_MADE: &str = "it is deleted or created";

/// The events, with their relative frequencies.
const EVENTS: &[(&str, u64)] = &[
    ("the VM is stopped or started", 6),
    ("its CPUs change", 5),
    ("its memory changes", 3),
    ("it is restarted", 3),
    ("it is reset", 3),
    ("its display secret changes", 2),
    ("something changes that needs a restart", 2),
    (DELETED_OR_MADE, 4),
    ("its pod is deleted", 3),
    ("its QEMU is killed", 3),
    ("its runner is killed", 2),
    ("its guest panics", 2),
    ("its guest powers itself off", 2),
    ("the operator is killed", 4),
    ("the operator is killed with its pod", 4),
    ("the API server is killed", 2),
    ("the kubelet is restarted", 2),
    ("the node is drained", 2),
];

/// The generator of events.
pub struct Chaos<'a> {
    space: &'a Space,
    vms: &'a [Vm<'a>],
    random: u64,
    counts: BTreeMap<&'static str, (u32, u32)>,
    outages: Vec<Range<Timestamp>>,
    node: Cordon,
}

/// Makes the node schedulable again when it is dropped.
#[derive(Default)]
struct Cordon(Option<String>);

impl Cordon {
    fn end(&mut self) {
        if let Some(node) = self.0.take() {
            drop(kubectl::command(&["uncordon", &node]).into_std().output());
        }
    }
}

impl Drop for Cordon {
    fn drop(&mut self) {
        self.end();
    }
}

impl<'a> Chaos<'a> {
    pub fn new(space: &'a Space, vms: &'a [Vm<'a>], seed: u64) -> Self {
        Self {
            space,
            vms,
            random: seed,
            counts: BTreeMap::new(),
            outages: Vec::new(),
            node: Cordon::default(),
        }
    }

    /// SplitMix64.
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    /// The delay until the next event.
    pub fn pause(&mut self) -> Duration {
        Duration::from_millis(PAUSES.start + self.random(PAUSES.end - PAUSES.start))
    }

    /// The number of successes and attempts of each event.
    pub fn summary(&self) -> String {
        let counts: Vec<String> = self
            .counts
            .iter()
            .map(|(what, (done, tried))| format!("{what}: {done} of {tried}"))
            .collect();
        counts.join(", ")
    }

    /// The times in which the API server was not available or not ready.
    pub fn outages(&self) -> &[Range<Timestamp>] {
        &self.outages
    }

    /// Asserts that each event has happened.
    pub fn judge(&self) {
        let done = |what: &str| self.counts.get(what).is_some_and(|(done, _)| *done > 0);
        let never: Vec<_> = EVENTS.iter().filter(|(what, _)| !done(what)).collect();
        assert!(never.is_empty(), "it never happened: {never:?}");
    }

    /// Causes one event. An event that is not possible at the moment, because there is no pod or no API server, is
    /// skipped.
    pub async fn cause_event(&mut self) {
        let mut at = self.random(EVENTS.iter().map(|(_, often)| often).sum());
        let drawn = EVENTS.iter().find(|(_, often)| {
            let found = at < *often;
            at = at.saturating_sub(*often);
            found
        });
        let (mut what, _) = *drawn.unwrap();
        let vm = &self.vms[usize::try_from(self.random(u64::from(VMS))).unwrap()];
        let dice = self.random(1 << 20);
        // Few events are possible for a deleted VM.
        if vm.now().is_null() && (!what.starts_with("the ") || what.starts_with("the VM")) {
            what = DELETED_OR_MADE;
        }
        // After a drain the node is made schedulable again.
        self.node.end();
        let done = self.carry_out(what, vm, dice).await;
        if let Err(complaint) = &done {
            println!(
                "not now: {what} ({}): {}",
                vm.name,
                complaint.lines().next().unwrap_or_default()
            );
        }
        let count = self.counts.entry(what).or_default();
        *count = (count.0 + u32::from(done.is_ok()), count.1 + 1);
    }

    async fn carry_out(&mut self, what: &str, vm: &Vm<'_>, dice: u64) -> Result<(), String> {
        match what {
            "the VM is stopped or started" => {
                let state = if vm.now()["spec"]["vm"]["state"] == "Running" {
                    "Stopped"
                } else {
                    "Running"
                };
                patch(vm, &json!({"state": state})).await
            }
            "its CPUs change" => patch(vm, &json!({"currentCpus": 1 + dice % 2})).await,
            "its memory changes" => {
                patch(vm, &json!({"currentRam": format!("{}Mi", 192 + dice % 65)})).await
            }
            "it is restarted" => {
                patch(vm, &json!({"restartRequest": next(vm, "restartRequest")})).await
            }
            "it is reset" => patch(vm, &json!({"resetRequest": next(vm, "resetRequest")})).await,
            "something changes that needs a restart" => {
                patch(vm, &json!({"rtcBase": RTC[(dice % 2) as usize]})).await
            }
            "its display secret changes" => {
                let secret = format!("{}-display-secret", vm.name);
                let change =
                    json!({"stringData": {"display-password": format!("password-{dice}")}})
                        .to_string();
                self.kubectl(&["patch", "secret", &secret, "--patch", &change])
                    .await
            }
            DELETED_OR_MADE if vm.now().is_null() => make(vm).await,
            DELETED_OR_MADE => {
                self.kubectl(&["delete", "vm", &vm.name, "--wait=false"])
                    .await
            }
            "its pod is deleted" => {
                self.kubectl(&["delete", "pod", &vm.name, "--wait=false"])
                    .await
            }
            "its QEMU is killed" => kill(vm, "qemu-system-x86").await,
            "its runner is killed" => kill(vm, runner(&vm.name)).await,
            "its guest panics" => type_in(self.space, vm, "crash").await,
            "its guest powers itself off" => type_in(self.space, vm, "poweroff").await,
            "the operator is killed" => kill_operator_process(self.space),
            "the operator is killed with its pod" => try_kill_operator(self.space).await,
            "the API server is killed" => {
                let from = Timestamp::now();
                let done = cluster("restart-apiserver").await;
                self.outages.push(from..Timestamp::now());
                done
            }
            "the kubelet is restarted" => cluster("restart-kubelet").await,
            "the node is drained" => self.drain().await,
            other => Err(format!("unknown event: {other}")),
        }
    }

    async fn kubectl(&self, args: &[&str]) -> Result<(), String> {
        self.space.try_kubectl(args).await.map(drop)
    }

    /// Only pods of this run are evicted.
    async fn drain(&mut self) -> Result<(), String> {
        let node = self
            .vms
            .iter()
            .find_map(|vm| vm.pod()?["spec"]["nodeName"].as_str().map(str::to_owned));
        let node = node.ok_or("no pod is on a node")?;
        let names: Vec<&str> = self.vms.iter().map(|vm| vm.name.as_str()).collect();
        let ours = format!(
            "--pod-selector=app.kubernetes.io/instance in ({})",
            names.join(",")
        );
        self.node.0 = Some(node.clone());
        let timeout = format!("--timeout={SHUTDOWN}s");
        kubectl::try_run(&["drain", &node, "--ignore-daemonsets", &timeout, &ours])
            .await
            .map(drop)
    }
}

const RTC: [&str; 2] = ["utc", "localtime"];

async fn patch(vm: &Vm<'_>, machine: &Value) -> Result<(), String> {
    let change = json!({"spec": {"vm": machine}}).to_string();
    vm.space
        .try_kubectl(&[
            "patch", "vm", &vm.name, "--type", "merge", "--patch", &change,
        ])
        .await
        .map(drop)
}

fn next(vm: &Vm<'_>, field: &str) -> i64 {
    vm.now()["spec"]["vm"][field].as_i64().unwrap_or_default() + 1
}

async fn make(vm: &Vm<'_>) -> Result<(), String> {
    kubectl::create(&tiny(vm.space, &vm.name, &machine(&vm.name)))
        .await
        .map(drop)
}

/// Creates a deleted VM again. The objects of the previous VM with its name must be deleted first.
pub async fn make_again(vm: &Vm<'_>) {
    eventually("the VM is created again", 60, async || make(vm).await).await;
}

async fn kill(vm: &Vm<'_>, program: &str) -> Result<(), String> {
    once_up(vm, async || {
        kill_one(
            &vm.pod()
                .map(|pod| crate::harness::vm::uid(&pod))
                .ok_or("no pod")?,
            program,
        )
    })
    .await
}

fn kill_one(pod_uid: &str, program: &str) -> Result<(), String> {
    let pids = process::of_pod(pod_uid, program);
    let [pid] = pids.as_slice() else {
        return Err(format!("{} processes", pids.len()));
    };
    let killed = std::process::Command::new("kill")
        .args(["-KILL", pid])
        .output()
        .map_err(|e| e.to_string())?;
    if killed.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&killed.stderr).into_owned())
    }
}

async fn type_in(space: &Space, vm: &Vm<'_>, line: &str) -> Result<(), String> {
    let is_up = async || {
        console::log(space, &vm.name)
            .await
            .map(|log| log.contains(" ready"))
    };
    once_up(vm, async || {
        if is_up().await? {
            Ok(())
        } else {
            Err("the guest is not up".to_owned())
        }
    })
    .await?;
    console::write_line(space, &vm.name, line).await
}

/// Starts the VM if necessary, and acts as soon as the guest has booted, because random times rarely meet a booted
/// guest.
async fn once_up(
    vm: &Vm<'_>,
    mut deed: impl AsyncFnMut() -> Result<(), String>,
) -> Result<(), String> {
    patch(vm, &json!({"state": "Running"})).await?;
    let began = Instant::now();
    loop {
        let done = deed().await;
        if done.is_ok() || began.elapsed().as_secs() >= BOOT {
            return done;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn operators(space: &Space) -> Vec<Value> {
    let is_operator = |pod: &Value| {
        pod["metadata"]["labels"]["app.kubernetes.io/name"] == "vm-operator"
            && pod["metadata"]["deletionTimestamp"].is_null()
    };
    space.pods.all().into_iter().filter(is_operator).collect()
}

/// The kubelet starts the container again in the same pod, with a growing backoff.
fn kill_operator_process(space: &Space) -> Result<(), String> {
    let pod = operators(space).pop().ok_or("no pod")?;
    kill_one(&crate::harness::vm::uid(&pod), "vm-operator")
}

/// Another pod replaces it immediately, without such a backoff.
async fn try_kill_operator(space: &Space) -> Result<(), String> {
    let pod = operators(space).pop().ok_or("no pod")?;
    let killed = kill_one(&crate::harness::vm::uid(&pod), "vm-operator");
    let name = pod["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    space
        .try_kubectl(&["delete", "pod", &name, "--grace-period", "0", "--force"])
        .await?;
    killed
}

/// Kills the operator and deletes its pod.
pub async fn kill_operator(space: &Space) {
    eventually("the operator is killed", 60, async || {
        try_kill_operator(space).await
    })
    .await;
}

async fn cluster(what: &'static str) -> Result<(), String> {
    tokio::task::spawn_blocking(move || environment::cluster(&[what]))
        .await
        .map_err(|e| e.to_string())
}
