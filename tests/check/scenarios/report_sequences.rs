//! Random sequences of steps by the kubelet, by runners and by the operator with old stores. Afterwards the status of the VM is that of
//! its present pod's report, and never that of another pod.

use super::fake_api::{PODS, REPORTS, VMS};
use super::world::{World, fill, now, one_disk, pass};
use serde_json::{Value, json};
use std::sync::Arc;
use vm_operator::api::VirtualMachine;
use vm_operator::api::conditions::is_true;
use vm_operator::api::vm::conditions;
use vm_operator::controllers::vm::reconcile;

const SEQUENCES: u64 = 300;
const STEPS: usize = 10;

/// A step by another party than the operator, or by the operator.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The kubelet starts the container of the pod.
    PodRuns,
    /// The kubelet reports the exit of the container.
    PodExits,
    /// The pod is removed, also with force while its runner goes on.
    PodRemoved,
    /// The runner of the pod, or of the last pod, reports a running guest.
    ReportsRunning,
    /// It reports that the guest has stopped.
    ReportsStopped,
    /// The runner of the pod before reports a running guest.
    PreviousReportsRunning,
    /// The garbage collector deletes reports without a pod.
    ReportsCollected,
    /// The operator's watch of pods delivers.
    PodsDelivered,
    /// The operator's watch of reports delivers.
    ReportsDelivered,
    /// The operator reconciles the VM as it was at the last delivery.
    Reconciled,
    /// The operator's watch of VMs delivers, and the operator reconciles.
    VmDelivered,
    /// Another operator starts.
    OperatorRestarts,
}

const ALL: [Step; 12] = [
    Step::PodRuns,
    Step::PodExits,
    Step::PodRemoved,
    Step::ReportsRunning,
    Step::ReportsStopped,
    Step::PreviousReportsRunning,
    Step::ReportsCollected,
    Step::PodsDelivered,
    Step::ReportsDelivered,
    Step::Reconciled,
    Step::VmDelivered,
    Step::OperatorRestarts,
];

struct Run {
    world: World,
    /// The VM in the operator's store.
    seen: VirtualMachine,
    /// UIDs of all pods.
    pods: Vec<String>,
}

impl Run {
    async fn new() -> Self {
        let world = World::new(one_disk());
        world.settle().await;
        let seen = world.vm();
        let mut run = Self {
            world,
            seen,
            pods: Vec::new(),
        };
        run.note_pod();
        run
    }

    fn note_pod(&mut self) {
        if let Some(pod) = self.world.api.get(PODS, "vm") {
            let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
            if !self.pods.contains(&uid) {
                self.pods.push(uid);
            }
        }
    }

    /// The runner of that pod reports. The number of CPUs identifies the pod.
    fn report(&self, uid: Option<&String>, is_running: bool) {
        let Some(uid) = uid.filter(|uid| self.world.api.get(REPORTS, uid).is_some()) else {
            return;
        };
        let cpus = 1 + self.pods.iter().position(|pod| pod == uid).unwrap();
        let reason = if is_running { "VmStarted" } else { "VmStopped" };
        let status = if is_running { "True" } else { "False" };
        let running = json!({"type": "Running", "status": status, "reason": reason, "message": "m", "lastTransitionTime": now()});
        self.world.api.change(REPORTS, uid, |report| {
            report["status"] = json!({
                "cpus": if is_running { cpus } else { 0 }, "ram": "1Gi", "runnerVersion": "1", "consoleClient": "",
                "displayPasswordSerial": 0, "boots": 0, "resets": 0, "consoleConnections": 0, "conditions": [running],
            });
        });
    }

    fn phase(&self, status: Value) {
        if self.world.api.get(PODS, "vm").is_some() {
            self.world
                .api
                .change(PODS, "vm", |pod| pod["status"] = status);
        }
    }

    async fn reconcile(&mut self) {
        pass(2);
        // A write based on an old VM is rejected, and the next reconcile repeats it.
        let _ = reconcile(Arc::new(self.seen.clone()), &self.world.ctx).await;
        self.note_pod();
    }

    async fn step(&mut self, step: Step) {
        let (api, caches) = (&self.world.api, &self.world.ctx.caches);
        match step {
            Step::PodRuns => self.phase(json!({"phase": "Running", "podIP": "10.1.2.3"})),
            Step::PodExits => {
                let exit = json!({"exitCode": 1, "startedAt": now(), "finishedAt": now()});
                self.phase(json!({
                    "phase": "Failed",
                    "containerStatuses": [{"name": "vm", "state": {"terminated": exit}}],
                }));
            }
            Step::PodRemoved => {
                if api.get(PODS, "vm").is_some() {
                    api.remove(PODS, "vm");
                }
            }
            Step::ReportsRunning => self.report(self.pods.last(), true),
            Step::ReportsStopped => self.report(self.pods.last(), false),
            Step::PreviousReportsRunning => self.report(self.pods.iter().rev().nth(1), true),
            Step::ReportsCollected => {
                let present = api
                    .get(PODS, "vm")
                    .map(|pod| pod["metadata"]["uid"].clone());
                for uid in &self.pods {
                    if present != Some(json!(uid)) && api.get(REPORTS, uid).is_some() {
                        api.remove(REPORTS, uid);
                    }
                }
            }
            Step::PodsDelivered => fill(&caches.pods, api.list(PODS)),
            Step::ReportsDelivered => fill(&caches.reports, api.list(REPORTS)),
            Step::Reconciled => self.reconcile().await,
            Step::VmDelivered => {
                self.seen = self.world.vm();
                self.reconcile().await;
            }
            Step::OperatorRestarts => {
                self.world.restart_operator();
                self.seen = self.world.vm();
            }
        }
    }

    /// The number of CPUs that the status should have, and whether the guest runs.
    fn expected(&self) -> (i64, bool) {
        let Some(pod) = self.world.api.get(PODS, "vm") else {
            return (0, false);
        };
        let has_exited = pod["status"]["phase"] == "Failed";
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let report = self.world.api.get(REPORTS, uid).unwrap_or_default();
        let cpus = report["status"]["cpus"].as_i64();
        let cpus = cpus.filter(|_| !has_exited).unwrap_or(0);
        (cpus, cpus > 0)
    }

    fn found(&self) -> (i64, bool) {
        let status = self.world.vm().status.unwrap();
        (
            status.cpus,
            is_true(&status.conditions, conditions::RUNNING),
        )
    }
}

/// A generator of pseudorandom numbers (xorshift).
fn next(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 33).unwrap()
}

#[tokio::test]
async fn status_follows_the_report_of_the_present_pod_after_any_sequence() {
    let (mut with_guest, mut with_several_pods) = (0, 0);
    for seed in 1..=SEQUENCES {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut run = Run::new().await;
        let mut steps = Vec::new();
        for _ in 0..STEPS {
            let step = ALL[next(&mut state) % ALL.len()];
            steps.push(step);
            run.step(step).await;
        }
        // The last backoff and the last delay of a copy end.
        for _ in 0..3 {
            pass(300);
            run.world.settle().await;
            run.note_pod();
        }
        assert_eq!(run.found(), run.expected(), "seed {seed}: {steps:?}");
        pass(300);
        let requests = run.world.step().await;
        assert_eq!(requests, [""; 0], "seed {seed}: {steps:?}");
        with_guest += u64::from(run.found().1);
        with_several_pods += u64::from(run.pods.len() > 1);
        assert_eq!(run.world.api.list(VMS).len(), 1);
    }
    println!(
        "{SEQUENCES} sequences: {with_guest} end with a running guest, {with_several_pods} have several pods"
    );
    assert!(with_guest > SEQUENCES / 20 && with_several_pods > SEQUENCES / 10);
}
