//! One VM, changed and changed back, beside VMs that were made so from the beginning.

use crate::allowed;
use crate::cluster::{Cluster, api};
use crate::judge::{difference, ready, strip};
use crate::pick::Change;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use vm_operator::api::conditions;

/// Where the VM is changed, where one is made as it becomes, and where one is made as it was.
pub const NAMESPACES: [&str; 3] = ["changed", "as-changed", "as-before"];

/// What does not change for that long is at rest.
const REST: Duration = Duration::from_millis(600);
/// By when it has to be.
const DEADLINE: Duration = Duration::from_secs(180);
/// What is compared of a VM.
const COMPARED: [&str; 4] = ["VirtualMachine", "ConfigMap", "Pod", "Service"];

/// How it went.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As if made so, and back again.
    Same,
    /// The API server refuses the change, and a VM made so, and says which field.
    Refused,
    /// Something is in the way, which is told, and was told of the VM that was made so, too.
    Explained(String, String),
    Wrong(String),
}

/// What there is of a VM at rest.
struct Rest {
    reason: String,
    message: String,
    objects: BTreeMap<String, Value>,
    /// Kinds and names of those that stay when nobody wants them any more.
    stay: BTreeSet<(&'static str, String)>,
    /// The claims' modes, by name.
    modes: BTreeMap<String, Value>,
}

impl Rest {
    fn is_well(&self) -> bool {
        matches!(self.reason.as_str(), "Running" | "Stopped")
    }
}

pub struct Case<'a> {
    pub cluster: &'a Cluster,
    pub name: String,
    pub change: Change,
}

impl Case<'_> {
    pub async fn run(&self) -> Verdict {
        let verdict = self.lives().await.unwrap_or_else(|verdict| verdict);
        for namespace in NAMESPACES {
            let vms = api(&self.cluster.client, "VirtualMachine", Some(namespace));
            let _ = vms.delete(&self.name, &DeleteParams::default()).await;
            for (kind, name) in self.cluster.of_vm(namespace, &self.name) {
                if kind == "PersistentVolumeClaim" {
                    let claims = api(&self.cluster.client, kind, Some(namespace));
                    let _ = claims.delete(&name, &DeleteParams::default()).await;
                }
            }
        }
        self.cluster.forget_history();
        verdict
    }

    async fn lives(&self) -> Result<Verdict, Verdict> {
        let Change { before, after, .. } = &self.change;
        let [here, as_changed, as_before] = NAMESPACES;
        if let Err(verdict) = self.make(here, before, 0).await {
            return Err(Verdict::Wrong(format!("what it is to be changed from is not admitted: {verdict:?}")));
        }
        let made = self.make(as_changed, after, 1).await;
        self.make(as_before, before, 2).await?;
        self.rest(here).await?;
        match (self.replace(here, after, 0).await, made) {
            (Ok(()), Ok(())) => {}
            (Err(verdict), _) => return Err(verdict),
            (Ok(()), Err(verdict)) => {
                return Err(Verdict::Wrong(format!("it is taken as a change and not from the beginning: {verdict:?}")));
            }
        }
        self.rest(here).await?;
        // What a running machine cannot follow is in force from the next start on.
        self.replace(here, after, 1).await?;
        let (changed, made) = futures::future::join(self.rest(here), self.rest(as_changed)).await;
        let (changed, made) = (changed?, made?);
        compare("changed", &made, &changed)?;
        self.replace(here, before, 2).await?;
        let (undone, before) = futures::future::join(self.rest(here), self.rest(as_before)).await;
        compare("undone", &before?, &undone?)?;
        Ok(if changed.is_well() { Verdict::Same } else { Verdict::Explained(changed.reason, changed.message) })
    }

    fn vm(&self, spec: &Value, restart: u8) -> Value {
        let mut spec = spec.clone();
        // What is nonsense may be no object.
        if let Some(machine) = spec.pointer_mut("/vm").and_then(Value::as_object_mut).filter(|_| restart > 0) {
            machine.insert("restartRequest".to_owned(), restart.into());
        }
        let version = "vmoperator.jdrupes.org/v1";
        json!({"apiVersion": version, "kind": "VirtualMachine", "metadata": {"name": self.name}, "spec": spec})
    }

    async fn make(&self, namespace: &str, spec: &Value, restart: u8) -> Result<(), Verdict> {
        let vms = api(&self.cluster.client, "VirtualMachine", Some(namespace));
        let vm = serde_json::from_value(self.vm(spec, restart)).unwrap();
        vms.create(&PostParams::default(), &vm).await.map(drop).map_err(|error| refused(&error))
    }

    async fn replace(&self, namespace: &str, spec: &Value, restart: u8) -> Result<(), Verdict> {
        let vms = api(&self.cluster.client, "VirtualMachine", Some(namespace));
        for _ in 0..20 {
            let mut vm = self.vm(spec, restart);
            let present = vms.get(&self.name).await.map_err(|error| Verdict::Wrong(error.to_string()))?;
            vm["metadata"]["resourceVersion"] = json!(present.metadata.resource_version);
            match vms.replace(&self.name, &PostParams::default(), &serde_json::from_value(vm).unwrap()).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                answer => return answer.map(drop).map_err(|error| refused(&error)),
            }
        }
        Err(Verdict::Wrong("it changes without an end".to_owned()))
    }

    /// Waits until the VM is at rest.
    async fn rest(&self, namespace: &str) -> Result<Rest, Verdict> {
        let began = Instant::now();
        // The API server's own answers come before what is followed.
        let vms = api(&self.cluster.client, "VirtualMachine", Some(namespace));
        let newest = vms.get(&self.name).await.map_err(|error| Verdict::Wrong(error.to_string()))?;
        let (mut last, mut since, mut is_at_end, mut versions) = (BTreeMap::new(), Instant::now(), false, None);
        loop {
            tokio::time::sleep(Duration::from_millis(40)).await;
            let now = COMPARED.map(|kind| self.cluster.version(namespace, kind, &self.name));
            if versions.as_ref() != Some(&now) {
                let vm = self.cluster.get(namespace, "VirtualMachine", &self.name).unwrap_or_default();
                let is_seen = vm["metadata"]["generation"].as_i64() >= newest.metadata.generation
                    && vm["status"]["observedGeneration"] == vm["metadata"]["generation"];
                is_at_end = is_seen && is_final(&vm, &ready(Some(&vm)));
                let objects = self.objects(namespace, &vm);
                if objects != last {
                    (last, since) = (objects, Instant::now());
                }
                versions = Some(now);
            }
            if is_at_end && since.elapsed() > REST {
                let vm = self.cluster.get(namespace, "VirtualMachine", &self.name).unwrap_or_default();
                let mut stay = self.cluster.of_vm(namespace, &self.name);
                stay.retain(|(kind, _)| allowed::STAY.contains(kind));
                let claims = stay.iter().filter(|(kind, _)| *kind == "PersistentVolumeClaim");
                let mode = |name: &str| self.cluster.get(namespace, "PersistentVolumeClaim", name);
                let modes =
                    claims.filter_map(|(_, name)| Some((name.clone(), mode(name)?["spec"]["volumeMode"].take())));
                let (message, reason, modes) = (message(&vm), ready(Some(&vm)), modes.collect());
                return Ok(Rest { message, reason, objects: last, stay, modes });
            }
            if began.elapsed() > DEADLINE {
                let vm = self.cluster.get(namespace, "VirtualMachine", &self.name).unwrap_or_default();
                let told = json!({"status": vm["status"], "generation": vm["metadata"]["generation"]});
                return Err(Verdict::Wrong(format!("it is stuck: {}: {told}", ready(Some(&vm)))));
            }
        }
    }

    /// What becomes of the VM, without what may differ from VM to VM.
    fn objects(&self, namespace: &str, vm: &Value) -> BTreeMap<String, Value> {
        let plain = |kind: &'static str| {
            let mut object = self.cluster.get(namespace, kind, &self.name)?;
            allowed::without(&mut object);
            if allowed::is_stopped(vm) {
                allowed::without_fetched(&mut object);
            }
            strip(&mut object);
            let mut text = object.to_string().replace(namespace, "NAMESPACE");
            for uid in [&vm["metadata"]["uid"], &object["metadata"]["uid"]].into_iter().filter_map(Value::as_str) {
                text = text.replace(uid, "UID");
            }
            Some((kind.to_owned(), serde_json::from_str(&text).unwrap()))
        };
        let of_operator = COMPARED.into_iter().filter(|kind| *kind != "VirtualMachine");
        let mut objects: BTreeMap<String, Value> = of_operator.filter_map(plain).collect();
        let conditions = vm["status"]["conditions"].as_array().into_iter().flatten();
        let told = conditions.filter(|condition| allowed::is_compared(condition, vm));
        let told = told.map(|c| (c["type"].to_string(), json!([c["status"], c["reason"]]))).collect::<BTreeMap<_, _>>();
        objects.insert("conditions".to_owned(), json!(told));
        objects
    }
}

fn condition<'a>(vm: &'a Value, type_: &str) -> Option<&'a Value> {
    vm["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == type_)
}

fn message(vm: &Value) -> String {
    condition(vm, conditions::READY).and_then(|ready| ready["message"].as_str()).unwrap_or_default().to_owned()
}

/// Whether the VM is where it was to go, or it is told why not.
fn is_final(vm: &Value, reason: &str) -> bool {
    let message = message(vm);
    match reason {
        "Running" | "Stopped" => {
            let restart = &vm["spec"]["vm"]["restartRequest"];
            restart.is_null() || vm["status"]["observedRestartRequest"] == *restart
        }
        "" | "Stopping" | "RestartBackoff" | "TerminationOverdue" => false,
        // An image that is on its way comes.
        "Starting" => {
            let fetched = condition(vm, conditions::MEDIA_FETCHED);
            message.contains("the start waits for")
                && fetched.is_some_and(|fetched| fetched["reason"] != conditions::REASON_FETCHING)
        }
        _ => !message.is_empty(),
    }
}

/// A refusal has to name what is wrong.
fn refused(error: &kube::Error) -> Verdict {
    match error {
        kube::Error::Api(status) if matches!(status.code, 400 | 422) && status.message.contains("spec") => {
            Verdict::Refused
        }
        other => Verdict::Wrong(format!("it is refused without a reason: {other}")),
    }
}

fn compare(what: &str, made: &Rest, found: &Rest) -> Result<(), Verdict> {
    // A claim that is there is not made, and nobody refuses it.
    if found.is_well() && made.reason == "Rejected" && made.message.contains("PersistentVolumeClaim") {
        return Ok(());
    }
    if made.reason != found.reason {
        return Err(Verdict::Wrong(format!("{what}, it is {}; made so, {}", found.reason, made.reason)));
    }
    // Where something is in the way, what was there before stays.
    if !made.is_well() {
        return Ok(());
    }
    if let Some((kind, name)) = made.stay.difference(&found.stay).next() {
        return Err(Verdict::Wrong(format!("{what}, it has no {kind} {name}; one made so has")));
    }
    // What a pod does with a volume depends on the mode of the claim that is there.
    if made.modes.iter().any(|(name, mode)| found.modes.get(name).is_some_and(|found| found != mode)) {
        return Ok(());
    }
    match difference(&made.objects, &found.objects) {
        difference if difference.is_empty() => Ok(()),
        difference => Err(Verdict::Wrong(format!("{what}, it differs from one made so:\n    {difference}"))),
    }
}
