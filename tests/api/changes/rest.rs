//! The objects of a settled VM.

use crate::changes::allowed;
use crate::changes::case::Verdict;
use crate::changes::reconciles::Reconciles;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use support::components::{Cluster, api};
use support::final_state::{ready, strip};
use vm_operator::api::vm::conditions::{self, ConditionReason};

/// A VM counts as settled after this number of equal, final observations in a row without a reconcile. Observations are
/// counted instead of time: operators and simulated components run in the same process, so their delays also delay the
/// observations.
const SETTLED_OBSERVATIONS: usize = 15;
const BETWEEN_LOOKS: Duration = Duration::from_millis(40);
/// The time after which a VM counts as stuck. It takes a few seconds.
const TIMEOUT: Duration = Duration::from_secs(180);
/// The kinds of a VM's objects, by its name.
const OBJECTS: [&str; 3] = ["ConfigMap", "Pod", "Service"];

/// The state of a settled VM.
#[derive(Clone)]
pub struct Rest {
    /// The reason of `Ready`.
    pub reason: String,
    /// The message of `Ready`.
    pub message: String,
    /// The objects by kind, without values that may differ, and the statuses and reasons of conditions.
    pub objects: BTreeMap<String, Value>,
    /// Objects that are retained when the spec no longer requires them, by kind and name.
    pub retained: BTreeMap<(&'static str, String), Value>,
    /// Status and message of each condition, by type.
    pub conditions: BTreeMap<String, (String, String)>,
    /// UID of the pod.
    pub pod: Option<String>,
}

impl Rest {
    pub fn is_well(&self) -> bool {
        matches!(self.reason.as_str(), "Running" | "Stopped")
    }

    /// The message of the condition, if it exists with that status.
    pub fn condition_message(&self, type_: &str, status: &str) -> Option<&str> {
        self.conditions
            .get(type_)
            .filter(|(is, _)| is == status)
            .map(|(_, message)| message.as_str())
    }
}

/// Waits until the VM is settled.
pub async fn rest(
    cluster: &Cluster,
    reconciles: &Reconciles,
    namespace: &str,
    name: &str,
) -> Result<Rest, Verdict> {
    let began = Instant::now();
    // Compared with the API server's own responses, because the watch may lag.
    let vms = api(&cluster.client, "VirtualMachine", Some(namespace));
    let newest = vms
        .get(name)
        .await
        .map_err(|error| Verdict::Wrong(error.to_string()))?;
    let (mut last, mut quiet_looks, mut is_at_end, mut versions) = (None, 0, false, None);
    loop {
        tokio::time::sleep(BETWEEN_LOOKS).await;
        let version = |kind| cluster.version(namespace, kind, name);
        let of_vm = cluster.of_vm(namespace, name).into_iter();
        let of_vm: BTreeMap<_, _> = of_vm
            .map(|(kind, name)| (cluster.version(namespace, kind, &name), (kind, name)))
            .collect();
        let now = (version("VirtualMachine"), OBJECTS.map(version), of_vm);
        if versions.as_ref() != Some(&now) {
            let vm = cluster
                .get(namespace, "VirtualMachine", name)
                .unwrap_or_default();
            let is_seen = vm["metadata"]["generation"].as_i64() >= newest.metadata.generation
                && vm["status"]["observedGeneration"] == vm["metadata"]["generation"];
            let pod = cluster.get(namespace, "Pod", name).unwrap_or_default();
            is_at_end = is_seen
                && is_final(&vm, &ready(Some(&vm)))
                && has_its_resources(&pod)
                && are_bound(cluster, namespace, name);
            let objects = (
                objects(cluster, namespace, &vm),
                retained_objects(cluster, namespace, &vm),
            );
            if last.as_ref() != Some(&objects) {
                (last, quiet_looks) = (Some(objects), 0);
            }
            versions = Some(now);
        }
        let is_quiet = is_at_end && !reconciles.are_under_way(name);
        quiet_looks = if is_quiet { quiet_looks + 1 } else { 0 };
        if quiet_looks > SETTLED_OBSERVATIONS {
            if !is_up_to_date(cluster, namespace, name).await {
                quiet_looks = 0;
                continue;
            }
            let vm = cluster
                .get(namespace, "VirtualMachine", name)
                .unwrap_or_default();
            let pod = cluster.get(namespace, "Pod", name);
            let (objects, retained) = last.unwrap_or_default();
            return Ok(Rest {
                reason: ready(Some(&vm)),
                message: message(&vm),
                objects,
                retained,
                conditions: all_conditions(&vm)
                    .map(|c| (text(&c["type"]), (text(&c["status"]), text(&c["message"]))))
                    .collect(),
                pod: pod.and_then(|pod| pod["metadata"]["uid"].as_str().map(ToOwned::to_owned)),
            });
        }
        if began.elapsed() > TIMEOUT {
            let vm = cluster
                .get(namespace, "VirtualMachine", name)
                .unwrap_or_default();
            let state = json!({"status": vm["status"], "generation": vm["metadata"]["generation"]});
            return Err(Verdict::Wrong(format!(
                "it is stuck: {}: {state}",
                ready(Some(&vm))
            )));
        }
    }
}

/// Whether the watch is up to date with the API server.
async fn is_up_to_date(cluster: &Cluster, namespace: &str, vm: &str) -> bool {
    let mut objects = cluster.of_vm(namespace, vm);
    objects.extend(OBJECTS.map(|kind| (kind, vm.to_owned())));
    for (kind, name) in objects {
        let there = api(&cluster.client, kind, Some(namespace))
            .get_opt(&name)
            .await
            .ok()
            .flatten();
        if there.and_then(|object| object.metadata.resource_version)
            != cluster.version(namespace, kind, &name)
        {
            return false;
        }
    }
    true
}

/// Whether each PVC is bound. Before that, none can change.
fn are_bound(cluster: &Cluster, namespace: &str, vm: &str) -> bool {
    let claims = cluster
        .of_vm(namespace, vm)
        .into_iter()
        .filter(|(kind, _)| *kind == "PersistentVolumeClaim");
    let mut claims = claims.filter_map(|(kind, name)| cluster.get(namespace, kind, &name));
    claims.all(|claim| claim["status"]["phase"] == "Bound")
}

/// Whether the kubelet has applied the requested resources of the pod.
fn has_its_resources(pod: &Value) -> bool {
    let given = &pod["status"]["containerStatuses"][0]["resources"];
    pod["status"]["phase"] != "Running" || pod["spec"]["containers"][0]["resources"] == *given
}

/// The object without what differs from VM to VM.
fn plain(mut object: Value, namespace: &str, vm: &Value) -> Value {
    let uids = [
        vm["metadata"]["uid"].clone(),
        object["metadata"]["uid"].clone(),
    ];
    strip(&mut object);
    let mut text = object.to_string().replace(namespace, "NAMESPACE");
    for uid in uids.iter().filter_map(Value::as_str) {
        text = text.replace(uid, "UID");
    }
    serde_json::from_str(&text).unwrap()
}

/// The VM without values that may differ from VM to VM.
fn objects(cluster: &Cluster, namespace: &str, vm: &Value) -> BTreeMap<String, Value> {
    let name = vm["metadata"]["name"].as_str().unwrap_or_default();
    let of_kind = |kind: &'static str| {
        let mut object = cluster.get(namespace, kind, name)?;
        allowed::without(&mut object);
        if allowed::is_stopped(vm) {
            allowed::without_fetched(&mut object);
        }
        Some((kind.to_owned(), plain(object, namespace, vm)))
    };
    let mut objects: BTreeMap<String, Value> = OBJECTS.into_iter().filter_map(of_kind).collect();
    let compared = all_conditions(vm).filter(|condition| allowed::is_compared(condition, vm));
    let compared = compared.map(|c| (text(&c["type"]), json!([c["status"], c["reason"]])));
    objects.insert("conditions".to_owned(), compared.collect());
    objects
}

/// A retained object without values that may differ.
fn retained_objects(
    cluster: &Cluster,
    namespace: &str,
    vm: &Value,
) -> BTreeMap<(&'static str, String), Value> {
    let name = text(&vm["metadata"]["name"]);
    let retained = cluster
        .of_vm(namespace, &name)
        .into_iter()
        .filter(|(kind, _)| allowed::STAY.contains(kind));
    let retained = retained.filter_map(|(kind, name)| {
        let mut object = cluster.get(namespace, kind, &name)?;
        allowed::without_content(&mut object);
        Some(((kind, name), plain(object, namespace, vm)))
    });
    retained.collect()
}

fn all_conditions(vm: &Value) -> impl Iterator<Item = &Value> {
    vm["status"]["conditions"].as_array().into_iter().flatten()
}

fn condition<'a>(vm: &'a Value, type_: &str) -> Option<&'a Value> {
    all_conditions(vm).find(|condition| condition["type"] == type_)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn message(vm: &Value) -> String {
    condition(vm, conditions::READY)
        .map(|ready| text(&ready["message"]))
        .unwrap_or_default()
}

/// Whether the VM has reached its goal or reports a blocking condition.
fn is_final(vm: &Value, reason: &str) -> bool {
    let message = message(vm);
    let fetched = condition(vm, conditions::MEDIA_FETCHED);
    let is_fetching =
        fetched.is_some_and(|fetched| fetched["reason"] == ConditionReason::Fetching.as_str());
    match reason {
        // An image that is being downloaded will arrive.
        "Running" | "Starting" if is_fetching => false,
        "Running" | "Stopped" => {
            let restart = &vm["spec"]["vm"]["restartRequest"];
            restart.is_null() || vm["status"]["observedRestartRequest"] == *restart
        }
        "" | "Stopping" | "RestartBackoff" | "TerminationOverdue" => false,
        "Starting" => message.contains("CD image") && fetched.is_some(),
        _ => !message.is_empty(),
    }
}
