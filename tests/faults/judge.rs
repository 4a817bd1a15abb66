//! What must hold: at the end, the same objects as without a fault; at every revision, the invariants.

use crate::cluster::{Cluster, Entry};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The objects of a namespace without what differs from run to run.
pub fn content(cluster: &Cluster, namespace: &str) -> BTreeMap<String, Value> {
    let present = cluster.present(namespace);
    let uid = |kind: &'static str| {
        present.get(&(kind, "vm".to_owned())).and_then(|o| o["metadata"]["uid"].as_str()).map(ToOwned::to_owned)
    };
    let version = |kind: &'static str, name: &str| {
        present.get(&(kind, name.to_owned())).map(|o| o["metadata"]["resourceVersion"].clone())
    };
    let (config, secret) = (version("ConfigMap", "vm"), version("Secret", "vm-display-secret"));
    let (vm, pod) = (uid("VirtualMachine"), uid("Pod"));
    let plain = |((kind, name), object): (&(&'static str, String), &Value)| {
        let mut object = object.clone();
        if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
            for (annotation, version) in [("cmVersion", &config), ("dpVersion", &secret)] {
                if let Some(told) = annotations.get_mut(&format!("vmrunner.jdrupes.org/{annotation}")) {
                    *told = if Some(&*told) == version.as_ref() { "that of now" } else { "an older one" }.into();
                }
            }
        }
        strip(&mut object);
        let mut text = object.to_string().replace(namespace, "NAMESPACE");
        for (uid, placeholder) in [(&vm, "UID-OF-VM"), (&pod, "UID-OF-POD")] {
            if let Some(uid) = uid {
                text = text.replace(uid, placeholder);
            }
        }
        (format!("{kind}/{name}"), serde_json::from_str(&text).unwrap())
    };
    present.iter().map(plain).collect()
}

/// The reason of the VM's `Ready`.
pub fn ready(vm: Option<&Value>) -> String {
    let conditions = vm.and_then(|vm| vm["status"]["conditions"].as_array()).into_iter().flatten();
    let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready");
    ready.and_then(|ready| ready["reason"].as_str()).unwrap_or_default().to_owned()
}

/// Names of fields that tell times and identities.
const PASSING: [&str; 14] = [
    "uid",
    "podUid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "managedFields",
    "generation",
    "observedGeneration",
    "lastTransitionTime",
    "startedAt",
    "finishedAt",
    "time",
    "startTime",
    "clusterIP",
];

/// Takes away what differs from run to run.
pub fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !PASSING.contains(&name.as_str()) && name != "clusterIPs" && name != "nodePort");
            fields.values_mut().for_each(strip);
        }
        Value::Array(items) => {
            if items.iter().all(|item| item["type"].is_string()) {
                items.sort_by_key(|item| item["type"].to_string());
            }
            items.iter_mut().for_each(strip);
        }
        _ => {}
    }
}

/// What is different, for people.
pub fn difference(expected: &BTreeMap<String, Value>, found: &BTreeMap<String, Value>) -> String {
    let keys: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    let mut lines = Vec::new();
    for key in keys {
        differ(key, expected.get(key).unwrap_or(&Value::Null), found.get(key).unwrap_or(&Value::Null), &mut lines);
    }
    lines.truncate(12);
    lines.join("\n    ")
}

/// Conditions by their types.
fn by_type(value: &Value) -> Option<Value> {
    let items = value.as_array().filter(|items| !items.is_empty())?;
    items
        .iter()
        .map(|item| Some((item["type"].as_str()?.to_owned(), item.clone())))
        .collect::<Option<Map<_, _>>>()
        .map(Value::Object)
}

fn differ(path: &str, expected: &Value, found: &Value, lines: &mut Vec<String>) {
    if let (Some(expected), Some(found)) = (by_type(expected), by_type(found)) {
        return differ(path, &expected, &found, lines);
    }
    match (expected, found) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                let path = format!("{path}.{key}");
                differ(&path, a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null), lines);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).enumerate().for_each(|(n, (a, b))| differ(&format!("{path}[{n}]"), a, b, lines));
        }
        (a, b) if a != b => lines.push(format!("{path}: {a:.200} is {b:.200}").chars().take(600).collect()),
        _ => {}
    }
}

/// Goes through all that has happened; gives what must never happen. `by_others` is how often somebody else than the
/// operator deletes a pod.
pub fn broken(history: &[Entry], mut by_others: usize) -> Vec<String> {
    let mut broken = Vec::new();
    let mut vm: Option<&Value> = None;
    let mut pods: BTreeMap<&str, &Value> = BTreeMap::new();
    let mut owner_of_pod: BTreeMap<&str, &Value> = BTreeMap::new();
    for Entry { revision, kind, deleted, object } in history {
        let mut note = |what: String| broken.push(format!("at revision {revision}: {what}"));
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        match *kind {
            "VirtualMachine" => vm = (!deleted).then_some(object),
            "PersistentVolumeClaim" if *deleted || object["metadata"]["deletionTimestamp"].is_string() => {
                note(format!("claim {name} is deleted"));
            }
            "Pod" => {
                let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
                let before = pods.get(uid).copied();
                let is_ending = object["metadata"]["deletionTimestamp"].is_string() || *deleted;
                let was_ending = before.is_some_and(|before| before["metadata"]["deletionTimestamp"].is_string());
                let has_ended = |pod: &Value| matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
                let wanted = vm.is_some_and(|vm| {
                    let restart = vm["spec"]["vm"]["restartRequest"].as_i64().unwrap_or(0) > 0;
                    vm["spec"]["vm"]["state"] == "Running" && !restart && vm["metadata"]["deletionTimestamp"].is_null()
                });
                if is_ending && !was_ending && wanted && !before.is_some_and(has_ended) {
                    match by_others {
                        0 => note(format!("pod {name} is deleted though it runs and should")),
                        _ => by_others -= 1,
                    }
                }
                let owner = &object["metadata"]["ownerReferences"][0]["uid"];
                if owner_of_pod.insert(uid, owner).is_some_and(|before| before != owner) {
                    note(format!("pod {name} has another owner"));
                }
                match deleted {
                    true => pods.remove(uid),
                    false => pods.insert(uid, object),
                };
                let alive = pods.values().filter(|pod| !has_ended(pod)).count();
                if alive > 1 {
                    note(format!("{alive} pods are alive"));
                }
            }
            _ => {}
        }
    }
    broken
}

/// That the judge can fail: histories with what must never happen.
mod tests {
    use super::{Entry, Value, broken, difference};
    use serde_json::json;
    use std::collections::BTreeMap;

    fn entry(revision: u64, kind: &'static str, object: Value) -> Entry {
        Entry { revision, kind, deleted: false, object }
    }

    fn vm(revision: u64, state: &str) -> Entry {
        let spec = json!({"vm": {"state": state}});
        entry(revision, "VirtualMachine", json!({"metadata": {"name": "vm", "uid": "vm-1"}, "spec": spec}))
    }

    fn pod(revision: u64, uid: &str, phase: &str, owner: &str) -> Entry {
        let metadata = json!({"name": "vm", "uid": uid, "ownerReferences": [{"uid": owner}]});
        entry(revision, "Pod", json!({"metadata": metadata, "status": {"phase": phase}}))
    }

    fn ending(mut entry: Entry) -> Entry {
        entry.object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        entry
    }

    fn gone(entry: Entry) -> Entry {
        Entry { deleted: true, ..entry }
    }

    fn claim(revision: u64) -> Entry {
        entry(revision, "PersistentVolumeClaim", json!({"metadata": {"name": "vm-system-disk", "uid": "claim-1"}}))
    }

    /// What the judge says to a running VM to which this happens.
    fn judged(then: Vec<Entry>, by_others: usize) -> Vec<String> {
        let mut history =
            vec![vm(1, "Running"), claim(2), pod(3, "pod-1", "Pending", "vm-1"), pod(4, "pod-1", "Running", "vm-1")];
        history.extend(then);
        broken(&history, by_others)
    }

    #[test]
    fn a_life_in_which_one_pod_comes_after_the_other_is_right() {
        let [failed, after] = [pod(5, "pod-1", "Failed", "vm-1"), pod(7, "pod-2", "Running", "vm-1")];
        let restarted = vec![failed, gone(pod(6, "pod-1", "Failed", "vm-1")), after];
        assert_eq!(judged(restarted, 0), [""; 0]);
        let stopped = vec![vm(5, "Stopped"), ending(pod(6, "pod-1", "Running", "vm-1"))];
        assert_eq!(judged(stopped, 0), [""; 0]);
    }

    #[test]
    fn two_living_pods_are_wrong_though_one_of_them_ends() {
        let [first, second] = [ending(pod(6, "pod-1", "Running", "vm-1")), pod(7, "pod-2", "Pending", "vm-1")];
        assert_eq!(judged(vec![vm(5, "Stopped"), first, second], 0), ["at revision 7: 2 pods are alive"]);
    }

    #[test]
    fn a_claim_that_is_deleted_is_wrong_whether_it_is_gone_or_not() {
        for deleted in [ending(claim(5)), gone(claim(5))] {
            assert_eq!(judged(vec![deleted], 0), ["at revision 5: claim vm-system-disk is deleted"]);
        }
    }

    #[test]
    fn the_pod_of_a_vm_that_should_run_is_deleted_by_others_alone() {
        let deleted = || vec![ending(pod(5, "pod-1", "Running", "vm-1"))];
        assert_eq!(judged(deleted(), 0), ["at revision 5: pod vm is deleted though it runs and should"]);
        assert_eq!(judged(deleted(), 1), [""; 0]);
    }

    #[test]
    fn a_pod_that_changes_its_owner_is_wrong() {
        let another = vec![pod(5, "pod-1", "Running", "vm-2")];
        assert_eq!(judged(another, 0), ["at revision 5: pod vm has another owner"]);
    }

    #[test]
    fn an_end_with_another_value_or_an_object_too_few_is_different() {
        let end = |cpus: u64| BTreeMap::from([("Pod/vm".to_owned(), json!({"spec": [{"cpus": cpus}]}))]);
        assert_eq!(difference(&end(1), &end(1)), "");
        assert_eq!(difference(&end(1), &end(2)), "Pod/vm.spec[0].cpus: 1 is 2");
        assert_ne!(difference(&end(1), &BTreeMap::new()), "");
    }
}
