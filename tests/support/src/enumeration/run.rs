//! One run of a scenario: an operator, the VM, what happens to it, and waiting until all is as it should be.

use crate::adopted;
use crate::cluster::{Cluster, api};
use crate::fault::Fault;
use crate::history::{at_end, broken};
use crate::judge::{self, Content, content, difference};
use crate::layer::Layer;
use crate::leftovers;
use crate::scenario::Step;
use futures::StreamExt;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use vm_operator::operator::backoff::Failures;
use vm_operator::operator::context::Context;
use vm_operator::operator::settings::{LoadBalancerService, Settings};
use vm_operator::operator::{streams, vm};

/// Who does nothing for that long, and of whose objects none changes, is at rest: longer than the pause before a start.
const REST: Duration = Duration::from_millis(2500);
/// What has become what it should be stays so for that long, without a request.
const STAYS: Duration = Duration::from_millis(700);
/// By when all must be as it should be.
const DEADLINE: Duration = Duration::from_secs(45);
/// How long a place is waited for when all is done already.
const PATIENCE: Duration = Duration::from_millis(1500);

/// The pause of a watch: it is not waited for here.
const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// How long the garbage collector has for what an earlier VM has left.
const GARBAGE: Duration = Duration::from_millis(700);

struct Operator {
    layer: Layer,
    ctx: Arc<Context>,
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
        ctx.watch_pause = WATCH_PAUSE;
        ctx.garbage = GARBAGE;
        let ctx = Arc::new(ctx);
        let of_task = ctx.clone();
        let task = tokio::spawn(async move {
            let ctx = of_task;
            let vms = streams::vms(&ctx);
            let children = streams::children(&ctx, &vms.store);
            ctx.caches.ready().await;
            vm::run(ctx.clone(), vms, children.boxed(), std::future::pending()).await;
        });
        Self { layer, ctx, task }
    }

    fn end(&self) {
        self.layer.die();
        self.task.abort();
    }

    /// What it still has to do, as far as that can be seen.
    fn unrest(&self) -> Option<String> {
        let fails = || (!self.ctx.failures.is_empty()).then(|| "the last reconcile has failed".to_owned());
        self.layer.traffic.unrest().or_else(fails)
    }
}

pub struct Run<'a> {
    cluster: &'a Cluster,
    pub namespace: String,
    operator: Option<Operator>,
    pub layer: Layer,
    /// How long the operator's reconciles may take.
    deadline: Duration,
    /// How many pods the scenario itself has deleted.
    deleted_by_others: usize,
}

impl<'a> Run<'a> {
    pub async fn new(cluster: &'a Cluster, namespace: String, deadline: Duration) -> Self {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        let request = http::Request::post("/api/v1/namespaces").header("Content-Type", "application/json");
        let request = request.body(body.to_string().into_bytes()).unwrap();
        cluster.client.request::<Value>(request).await.unwrap();
        let layer = Layer::new(cluster.client.clone(), revision(cluster, &namespace).await);
        Self { cluster, namespace, operator: None, layer, deadline, deleted_by_others: 0 }
    }

    /// From now on what passes is counted, and each fault happens at its place.
    pub async fn arm(&self, faults: Vec<(String, Fault)>) {
        self.layer.arm(faults, revision(self.cluster, &self.namespace).await);
    }

    pub async fn step(&mut self, step: Step, spec: &str) {
        let (cluster, namespace) = (self.cluster, self.namespace.clone());
        let namespace = namespace.as_str();
        match step {
            Step::Operator => self.replace(),
            Step::Create => {
                let vm = json!({
                    "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"},
                    "spec": serde_json::from_str::<Value>(spec).unwrap(),
                });
                cluster.make(namespace, "VirtualMachine", vm).await;
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
            Step::Leftovers => leftovers::make(cluster, namespace).await,
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

    /// A new operator, with empty memory; one that is there is ended before.
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

    /// What the operator still has to do, if there is one.
    fn unrest(&self) -> Option<String> {
        self.operator.as_ref().and_then(Operator::unrest)
    }

    /// Waits until nothing has changed for a while, and the operator has asked for nothing.
    pub async fn rest(&self) -> Content {
        let began = Instant::now();
        let now = || (self.cluster.changes(&self.namespace), self.layer.traffic.requests());
        let (mut last, mut since) = (now(), began);
        while since.elapsed() < REST || !self.is_told() && began.elapsed() < DEADLINE {
            assert!(began.elapsed() < 2 * DEADLINE, "{}: never at rest: {:?}", self.namespace, self.unrest());
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = now();
            if now != last || self.unrest().is_some() {
                (last, since) = (now, Instant::now());
            }
        }
        content(self.cluster, &self.namespace)
    }

    /// Waits until all is as expected and stays so, and the place of the fault is passed; gives what is different.
    pub async fn become_like(&mut self, expected: &Content) -> Result<(), String> {
        self.become_right(|run| {
            let found = content(run.cluster, &run.namespace);
            (found != *expected).then(|| difference(expected, &found))
        })
        .await
    }

    /// Waits until the refusal is told in the VM's status, and not tried again and again.
    pub async fn become_refused(&mut self) -> Result<(), String> {
        self.become_right(|run| {
            let vm = run.cluster.get(&run.namespace, "VirtualMachine", "vm").unwrap_or_default();
            let mut conditions = vm["status"]["conditions"].as_array().into_iter().flatten();
            let is_told =
                conditions.any(|c| c["message"].as_str().is_some_and(|words| words.contains("refused by the test")));
            (!is_told).then(|| "the refusal is not told".to_owned())
        })
        .await
    }

    /// Waits until nothing is wrong any more, and the operator, which follows everything and has done what it had to, lets
    /// it be so without another request.
    async fn become_right(&mut self, wrong: impl Fn(&Self) -> Option<String>) -> Result<(), String> {
        let began = Instant::now();
        let kill = self.layer.kill.clone();
        let (mut since, mut requests) = (None, 0);
        let (mut changes, mut what) = (None, None);
        loop {
            tokio::select! {
                () = kill.notified() => {
                    self.replace();
                    since = None;
                }
                () = tokio::time::sleep(Duration::from_millis(40)) => {}
            }
            // First what comes first: what is asked for after this is seen the next time.
            let before = std::mem::replace(&mut requests, self.layer.traffic.requests());
            let asks = || (before != requests).then(|| "it is as it should be, but requests go on".to_owned());
            let seen = Some(self.cluster.changes(&self.namespace));
            if std::mem::replace(&mut changes, seen) != seen {
                what = wrong(self);
            }
            if let Some(wrong) = what.clone().or_else(|| self.unrest()).or_else(asks) {
                since = None;
                if began.elapsed() > DEADLINE {
                    return Err(wrong);
                }
                continue;
            }
            let right = since.get_or_insert_with(Instant::now).elapsed();
            let wanted = if self.layer.waits_for_fault() { PATIENCE } else { STAYS };
            if right > wanted {
                return Ok(());
            }
        }
    }

    /// Between steps: at rest, or as it was at this point without a fault.
    pub async fn wait_for_rest_of(&mut self, expected: &Content, is_last: bool) -> Result<(), String> {
        if is_last {
            self.become_like(expected).await
        } else {
            self.rest().await;
            Ok(())
        }
    }

    /// Ends it; gives what must never have happened. `is_at_end` says whether all had the time to become right.
    pub async fn end(mut self, is_at_end: bool) -> Vec<String> {
        self.operator.take().iter().for_each(Operator::end);
        // What is left would be watched by everybody.
        let present = self.cluster.present(&self.namespace);
        let history = self.cluster.take_history(&self.namespace);
        let mut broken = broken(&history, self.deleted_by_others);
        if is_at_end {
            broken.extend(at_end(&history));
        }
        for (kind, name) in present.into_keys() {
            if kind != "PersistentVolumeClaim" {
                let params = DeleteParams::default().grace_period(0);
                let _ = api(&self.cluster.client, kind, Some(&self.namespace)).delete(&name, &params).await;
            }
        }
        broken
    }
}

/// The revision of now.
async fn revision(cluster: &Cluster, namespace: &str) -> String {
    let list = api(&cluster.client, "VirtualMachine", Some(namespace)).list(&ListParams::default()).await.unwrap();
    list.metadata.resource_version.unwrap()
}
