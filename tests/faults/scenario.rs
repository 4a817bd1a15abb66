//! What happens to a VM, step after step, and one run of it with at most one fault.

use crate::adopted;
use crate::cluster::{Cluster, api};
use crate::judge::{self, broken, content, difference};
use crate::layer::{Fault, Layer};
use futures::StreamExt;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use vm_operator::operator::backoff::Failures;
use vm_operator::operator::context::Context;
use vm_operator::operator::settings::{LoadBalancerService, Settings};
use vm_operator::operator::{streams, vm};

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An operator starts; one that runs is ended before.
    Operator,
    /// The VM is made.
    Create,
    /// The VM's machine is changed by that merge patch.
    Machine(&'static str),
    /// The VM's spec is changed by that merge patch.
    Spec(&'static str),
    /// QEMU crashes.
    Crash,
    /// The guest powers itself off.
    PowerOff,
    /// Somebody deletes the pod.
    PodDeleted,
    /// Somebody changes the display password.
    Password,
    /// A VM is there with all that the reference makes for it, and its pod runs.
    Adopt,
    /// The VM is deleted.
    Delete,
}

pub struct Scenario {
    pub name: &'static str,
    /// The spec of the VM.
    pub spec: &'static str,
    /// What comes before.
    pub before: &'static [Step],
    /// In which the faults happen.
    pub steps: &'static [Step],
    /// Reason of `Ready` at the end; empty: there is no VM.
    pub ready: &'static str,
}

type Content = BTreeMap<String, Value>;

/// How a run without a fault went.
pub struct Reference {
    /// After what comes before, and at the end.
    ends: [Content; 2],
    /// Every place where something can go wrong.
    pub places: Vec<String>,
}

/// How a run with a fault went.
#[derive(Debug)]
pub enum Verdict {
    Same,
    /// The place was not passed this time.
    NotReached,
    Wrong(String),
}

/// What does not change for that long is at rest: longer than the pause before a start, and than that of a watch.
const REST: Duration = Duration::from_millis(2500);
/// What has become what it should be stays so for that long.
const STAYS: Duration = Duration::from_millis(700);
/// By when all must be as it should be.
const DEADLINE: Duration = Duration::from_secs(45);
/// How long a reconcile may take that meets nothing that hangs. The machine is loaded, and a run without a fault must pass
/// the same places each time.
const PATIENT: Duration = Duration::from_secs(2);
/// The same where something hangs: that is what it costs. On a loaded machine a reconcile that is only slow fails too, again
/// and again: a run that ends differently is repeated with patience, as what hangs is its fault and the machine's load is not.
const IMPATIENT: Duration = Duration::from_millis(150);
/// How long a place is waited for when all is done already.
const PATIENCE: Duration = Duration::from_millis(1500);

struct Operator {
    layer: Layer,
    task: JoinHandle<()>,
}

impl Operator {
    fn start(layer: Layer, namespace: &str, deadline: Duration) -> Self {
        let mut settings = Settings::default();
        settings.reconciler.load_balancer_service =
            LoadBalancerService::On { labels: BTreeMap::new(), annotations: BTreeMap::new() };
        let mut ctx = Context::new(layer.client(namespace), namespace.to_owned(), settings);
        ctx.random_password = || "secret".to_owned();
        ctx.failures = Failures::pausing(Duration::from_millis(100));
        ctx.deadline = deadline;
        let ctx = Arc::new(ctx);
        let task = tokio::spawn(async move {
            let vms = streams::vms(&ctx);
            let children = streams::children(&ctx, &vms.store);
            ctx.caches.ready().await;
            vm::run(ctx.clone(), vms, children.boxed(), std::future::pending()).await;
        });
        Self { layer, task }
    }

    fn end(&self) {
        self.layer.die();
        self.task.abort();
    }
}

struct Run<'a> {
    cluster: &'a Cluster,
    namespace: String,
    operator: Option<Operator>,
    layer: Layer,
    /// How long the operator's reconciles may take.
    deadline: Duration,
    /// How many pods the scenario itself has deleted.
    deleted_by_others: usize,
}

impl<'a> Run<'a> {
    async fn new(cluster: &'a Cluster, namespace: String, deadline: Duration) -> Self {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        let request = http::Request::post("/api/v1/namespaces").header("Content-Type", "application/json");
        let request = request.body(body.to_string().into_bytes()).unwrap();
        cluster.client.request::<Value>(request).await.unwrap();
        let list = api(&cluster.client, "VirtualMachine", Some(&namespace)).list(&ListParams::default()).await.unwrap();
        let layer = Layer::new(cluster.client.clone(), list.metadata.resource_version.unwrap());
        Self { cluster, namespace, operator: None, layer, deadline, deleted_by_others: 0 }
    }

    async fn step(&mut self, step: Step, spec: &str) {
        let (cluster, namespace) = (self.cluster, self.namespace.clone());
        let namespace = namespace.as_str();
        match step {
            Step::Operator => {
                self.operator.take().iter().for_each(Operator::end);
                self.layer = self.layer.next();
                self.operator = Some(Operator::start(self.layer.clone(), namespace, self.deadline));
            }
            Step::Create => {
                let vm = json!({
                    "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"},
                    "spec": serde_json::from_str::<Value>(spec).unwrap(),
                });
                let vms = api(&cluster.client, "VirtualMachine", Some(namespace));
                vms.create(&PostParams::default(), &serde_json::from_value(vm).unwrap()).await.unwrap();
            }
            Step::Machine(patch) => {
                let patch: Value = serde_json::from_str(patch).unwrap();
                cluster.merge("VirtualMachine", namespace, "vm", "", json!({"spec": {"vm": patch}})).await.unwrap();
            }
            Step::Spec(patch) => {
                let patch: Value = serde_json::from_str(patch).unwrap();
                cluster.merge("VirtualMachine", namespace, "vm", "", json!({"spec": patch})).await.unwrap();
            }
            Step::Crash => self.end_pod(r#"{"reason":"QemuCrashed","message":"signal 9","qemuExit":-9}"#).await,
            Step::PowerOff => self.end_pod(r#"{"reason":"GuestShutdown","byGuest":true}"#).await,
            Step::PodDeleted => {
                self.deleted_by_others += 1;
                api(&cluster.client, "Pod", Some(namespace)).delete("vm", &DeleteParams::default()).await.unwrap();
            }
            Step::Password => {
                let patch = json!({"stringData": {"display-password": "another"}});
                cluster.merge("Secret", namespace, "vm-display-secret", "", patch).await.unwrap();
            }
            Step::Adopt => adopted::make(cluster, namespace, spec).await,
            Step::Delete => {
                let vms = api(&cluster.client, "VirtualMachine", Some(namespace));
                vms.delete("vm", &DeleteParams::default()).await.unwrap();
            }
        }
    }

    async fn end_pod(&self, outcome: &str) {
        let pod = self.cluster.get(&self.namespace, "Pod", "vm").unwrap();
        let times = ["2026-01-01T00:00:00Z"; 2];
        let terminated = json!({"exitCode": 71, "reason": "Error", "message": outcome, "startedAt": times[0], "finishedAt": times[1]});
        let container = json!({"name": pod["spec"]["containers"][0]["name"], "image": "i", "imageID": "i", "ready": false, "restartCount": 0, "state": {"terminated": terminated}});
        let status = json!({"status": {"phase": "Failed", "containerStatuses": [container]}});
        self.cluster.merge("Pod", &self.namespace, "vm", "status", status).await.unwrap();
    }

    /// Replaces an operator that was killed.
    fn replace(&mut self) {
        self.operator.take().iter().for_each(Operator::end);
        self.layer = self.layer.next();
        self.operator = Some(Operator::start(self.layer.clone(), &self.namespace, self.deadline));
    }

    /// Whether the operator, if there is one, has said of the VM as it is now that all is well. Else it is only slow.
    fn is_told(&self) -> bool {
        let Some(vm) = self.cluster.get(&self.namespace, "VirtualMachine", "vm") else { return true };
        let is_ready = matches!(judge::ready(Some(&vm)).as_str(), "Running" | "Stopped");
        self.operator.is_none() || is_ready && vm["status"]["observedGeneration"] == vm["metadata"]["generation"]
    }

    /// Waits until nothing has changed for a while.
    async fn rest(&self) -> Content {
        let began = Instant::now();
        let (mut last, mut since) = (content(self.cluster, &self.namespace), began);
        while since.elapsed() < REST || !self.is_told() && began.elapsed() < DEADLINE {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = content(self.cluster, &self.namespace);
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        last
    }

    /// Waits until all is as expected and stays so, and the place of the fault is passed; gives what is different.
    async fn become_like(&mut self, expected: &Content) -> Result<(), String> {
        let began = Instant::now();
        let kill = self.layer.kill.clone();
        let mut since = None;
        loop {
            tokio::select! {
                () = kill.notified() => {
                    self.replace();
                    since = None;
                }
                () = tokio::time::sleep(Duration::from_millis(40)) => {}
            }
            let found = content(self.cluster, &self.namespace);
            if found != *expected {
                since = None;
                if began.elapsed() > DEADLINE {
                    return Err(difference(expected, &found));
                }
                continue;
            }
            let like = since.get_or_insert_with(Instant::now).elapsed();
            let wanted = if self.layer.waits_for_fault() { PATIENCE } else { STAYS };
            if like > wanted {
                return Ok(());
            }
        }
    }

    /// Ends it; gives what must never have happened.
    async fn end(mut self) -> Vec<String> {
        self.operator.take().iter().for_each(Operator::end);
        // What is left would be watched by everybody.
        let present = self.cluster.present(&self.namespace);
        let broken = broken(&self.cluster.take_history(&self.namespace), self.deleted_by_others);
        for (kind, name) in present.into_keys() {
            if kind != "PersistentVolumeClaim" {
                let params = DeleteParams::default().grace_period(0);
                let _ = api(&self.cluster.client, kind, Some(&self.namespace)).delete(&name, &params).await;
            }
        }
        broken
    }
}

impl Scenario {
    /// A run without a fault.
    pub async fn reference(&self, cluster: &Cluster) -> Reference {
        let mut run = Run::new(cluster, format!("{}-reference", self.name), PATIENT).await;
        for step in self.before {
            run.step(*step, self.spec).await;
            run.rest().await;
        }
        let before = content(cluster, &run.namespace);
        run.layer.arm(Vec::new());
        for step in self.steps {
            run.step(*step, self.spec).await;
        }
        let end = run.rest().await;
        let mut places = run.layer.places();
        run.layer.disarm();
        places.sort();
        places.dedup();
        let ready = judge::ready(end.get("VirtualMachine/vm"));
        assert_eq!(ready, self.ready, "{}: {end:#?}", self.name);
        let broken = run.end().await;
        assert!(broken.is_empty(), "{}: {broken:?}", self.name);
        Reference { ends: [before, end], places }
    }

    /// A run with faults.
    pub async fn with_faults(
        &self,
        cluster: &Cluster,
        run: &str,
        reference: &Reference,
        faults: Vec<(String, Fault)>,
    ) -> Verdict {
        let hangs = faults.iter().any(|(_, fault)| matches!(fault, Fault::Hangs { .. }));
        if !hangs {
            return self.once(cluster, run, reference, faults, PATIENT).await;
        }
        match self.once(cluster, run, reference, faults.clone(), IMPATIENT).await {
            Verdict::Wrong(_) => self.once(cluster, &format!("{run}-patient"), reference, faults, PATIENT).await,
            verdict => verdict,
        }
    }

    async fn once(
        &self,
        cluster: &Cluster,
        run: &str,
        reference: &Reference,
        faults: Vec<(String, Fault)>,
        deadline: Duration,
    ) -> Verdict {
        let mut run = Run::new(cluster, format!("{}-{run}", self.name), deadline).await;
        for step in self.before {
            run.step(*step, self.spec).await;
            if *step != Step::Operator {
                let is_last = self.before.last() == Some(step);
                if let Err(difference) = run.wait_for_rest_of(&reference.ends[0], is_last).await {
                    return Verdict::Wrong(format!("before the fault, it is different:\n    {difference}"));
                }
            }
        }
        let told_instead = faults.iter().any(|(place, fault)| is_final(place, *fault));
        run.layer.arm(faults);
        for step in self.steps {
            run.step(*step, self.spec).await;
        }
        let told = match told_instead {
            true => run.become_refused().await,
            false => run.become_like(&reference.ends[1]).await,
        };
        let reached = !run.layer.waits_for_fault();
        let broken = run.end().await;
        match (told, broken.is_empty()) {
            (Ok(()), true) if reached => Verdict::Same,
            (Ok(()), true) => Verdict::NotReached,
            (Err(difference), _) => Verdict::Wrong(format!("it ends differently:\n    {difference}")),
            (Ok(()), false) => Verdict::Wrong(broken.join("; ")),
        }
    }
}

/// What the API server refuses to change on a pod or a claim is told in a condition, and asked for again when the VM
/// changes: where it is refused for good, as it mostly is, a settled VM would cost requests for ever.
pub fn is_final(place: &str, fault: Fault) -> bool {
    let is_asked_once = place.contains("pods/vm/resize") || place.starts_with("PATCH persistentvolumeclaims/");
    // A claim that is not found is a matter of the next look at it.
    let codes: &[u16] = if place.contains("/resize") { &[403, 404, 422] } else { &[403, 422] };
    is_asked_once && matches!(fault, Fault::Refused(code) if codes.contains(&code))
}

impl Run<'_> {
    /// Waits until the refusal is told in the VM's status.
    async fn become_refused(&self) -> Result<(), String> {
        let began = Instant::now();
        while began.elapsed() < DEADLINE {
            let vm = self.cluster.get(&self.namespace, "VirtualMachine", "vm").unwrap_or_default();
            let mut conditions = vm["status"]["conditions"].as_array().into_iter().flatten();
            if conditions.any(|c| c["message"].as_str().is_some_and(|words| words.contains("refused by the test"))) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
        Err("the refusal is not told".to_owned())
    }

    /// Between steps: at rest, or as it was at this point without a fault.
    async fn wait_for_rest_of(&mut self, expected: &Content, is_last: bool) -> Result<(), String> {
        if is_last {
            self.become_like(expected).await
        } else {
            self.rest().await;
            Ok(())
        }
    }
}
