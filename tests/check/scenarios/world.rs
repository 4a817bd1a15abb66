//! A cluster with one VM, an operator, and a clock.

use super::fake_api::{CLAIMS, CONFIG_MAPS, FakeApi, PODS, REPORTS, SECRETS, SERVICES, VMS};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vm_operator::api::VirtualMachine;
use vm_operator::controllers::vm::context::VmController;
use vm_operator::controllers::vm::reconcile;
use vm_operator::k8s::cluster::Cluster;
use vm_operator::k8s::controller::Outcome;
use vm_operator::k8s::error::Error;
use vm_operator::k8s::store::children::Cache;
use vm_operator::settings::Settings;

thread_local! {
    pub static SECONDS: Cell<i64> = const { Cell::new(1_767_268_800) };
    /// Time that has passed independent of the clock.
    static PASSED: Cell<u64> = const { Cell::new(0) };
    static START: Instant = Instant::now();
}

pub fn now() -> Timestamp {
    Timestamp::from_second(SECONDS.get()).unwrap()
}

pub fn pass(seconds: i64) {
    SECONDS.set(SECONDS.get() + seconds);
    PASSED.set(PASSED.get() + seconds.unsigned_abs());
}

fn instant() -> Instant {
    START.with(|start| *start) + Duration::from_secs(PASSED.get())
}

/// A cluster with one VM, and an operator.
pub struct World {
    pub api: FakeApi,
    pub ctx: VmController,
}

pub fn context(api: &FakeApi) -> VmController {
    let mut cluster = Cluster::new(api.client(), vm_operator::controllers::vm::MANAGER);
    (cluster.now, cluster.instant) = (now, instant);
    let mut ctx = VmController::new(cluster, "ns".to_owned(), Settings::default());
    ctx.random_password = || "secret".to_owned();
    ctx
}

pub fn fill<K: kube::Resource + DeserializeOwned>(cache: &Cache<K>, objects: Vec<Value>) {
    cache.watched(Event::Init);
    for object in objects {
        cache.watched(Event::InitApply(serde_json::from_value(object).unwrap()));
    }
    cache.watched(Event::InitDone);
}

impl World {
    pub fn new(machine: Value) -> Self {
        Self::with_spec(json!({"vm": machine}))
    }

    pub fn with_spec(spec: Value) -> Self {
        let api = FakeApi::default();
        let metadata = json!({"name": "vm", "namespace": "ns", "uid": "vm-uid", "generation": 1});
        let (version, kind) = ("vmoperator.jdrupes.org/v1", "VirtualMachine");
        api.put(VMS, json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec, "status": {}}));
        let world = Self {
            ctx: context(&api),
            api,
        };
        world.deliver();
        world
    }

    /// Updates the operator's stores from the cluster.
    pub fn deliver(&self) {
        fill(&self.ctx.caches.pods, self.api.list(PODS));
        fill(&self.ctx.caches.claims, self.api.list(CLAIMS));
        fill(&self.ctx.caches.config_maps, self.api.list(CONFIG_MAPS));
        fill(&self.ctx.caches.secrets, self.api.list(SECRETS));
        fill(&self.ctx.caches.services, self.api.list(SERVICES));
        fill(&self.ctx.caches.reports, self.api.list(REPORTS));
    }

    /// A new operator, which knows only the present objects of the cluster.
    pub fn restart_operator(&mut self) {
        self.ctx = context(&self.api);
        self.deliver();
    }

    pub fn vm(&self) -> VirtualMachine {
        serde_json::from_value(self.api.get(VMS, "vm").unwrap()).unwrap()
    }

    pub async fn reconcile(&self) -> Result<Outcome, Error> {
        reconcile(Arc::new(self.vm()), &self.ctx).await
    }

    /// One successful reconcile, and its requests.
    pub async fn step(&self) -> Vec<String> {
        self.reconcile().await.unwrap();
        self.api.requests()
    }

    /// Reconciles until nothing is left to do.
    pub async fn settle(&self) {
        for _ in 0..20 {
            self.deliver();
            let result = self.reconcile().await;
            if self.api.requests().is_empty() && result.is_ok() {
                return;
            }
        }
        panic!("does not settle");
    }

    /// Removes the pod, and reports that to the store.
    pub fn remove_pod(&self) {
        let pod = self.api.remove(PODS, "vm").unwrap();
        self.ctx
            .caches
            .pods
            .watched(Event::Delete(serde_json::from_value(pod).unwrap()));
    }

    pub fn pod_status(&self, status: Value) {
        self.api.change(PODS, "vm", |pod| pod["status"] = status);
        self.deliver();
    }

    /// The part of kubelet and runner: the pod runs and reports it.
    pub fn run(&self) {
        self.pod_status(json!({"phase": "Running"}));
        self.api.change(VMS, "vm", |vm| {
            let time = "2026-01-01T00:00:00Z";
            vm["status"]["cpus"] = 1.into();
            let conditions = vm["status"]["conditions"].as_array_mut().unwrap();
            conditions.retain(|condition| condition["type"] != "Running");
            conditions.push(json!({
                "type": "Running", "status": "True", "reason": "VmStarted", "message": "", "lastTransitionTime": time,
            }));
        });
    }

    pub fn end(&self, outcome: &str, ran: i64) {
        let started = now().checked_sub(SignedDuration::from_secs(ran)).unwrap();
        let terminated = json!({"exitCode": 71, "reason": "Error", "message": outcome, "startedAt": started, "finishedAt": now()});
        self.pod_status(
            json!({"phase": "Failed", "containerStatuses": [{"name": "vm", "state": {"terminated": terminated}}]}),
        );
    }

    pub fn edit(&self, edit: impl FnOnce(&mut Value)) {
        self.api.change(VMS, "vm", |vm| {
            edit(&mut vm["spec"]["vm"]);
            vm["metadata"]["generation"] =
                (vm["metadata"]["generation"].as_i64().unwrap() + 1).into();
        });
    }

    pub fn ready(&self) -> (String, String) {
        let vm = self.vm();
        let conditions = vm.status.unwrap().conditions;
        let ready = conditions.into_iter().find(|c| c.type_ == "Ready").unwrap();
        (ready.reason, ready.message)
    }
}

pub fn one_disk() -> Value {
    json!({"state": "Running", "disks": [{"volumeClaimTemplate": {"metadata": {"name": "system"}}}]})
}

pub const CRASHED: &str = r#"{"reason":"QemuCrashed","message":"signal 9","qemuExit":-9}"#;
pub const POWERED_OFF: &str = r#"{"reason":"GuestShutdown","byGuest":true}"#;

pub fn request(verb: &str, collection: &str, name: &str) -> String {
    format!("{verb} {collection}/{name}")
}

/// The requests that start a VM after its other objects exist.
pub fn pod_and_status() -> [String; 4] {
    [
        request("GET", VMS, "vm"),
        request("POST", PODS, "vm"),
        request("PATCH", VMS, "vm/status"),
        request("POST", REPORTS, "POD"),
    ]
}

/// The requests that resize a running VM.
pub fn change_of_size() -> [String; 5] {
    let changed = [
        (CONFIG_MAPS, "vm"),
        (PODS, "vm"),
        (PODS, "vm/resize"),
        (VMS, "vm/status"),
    ];
    let [config, pod, size, status] =
        changed.map(|(collection, name)| request("PATCH", collection, name));
    [request("GET", VMS, "vm"), config, pod, size, status]
}
