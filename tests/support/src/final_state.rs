//! Compares the objects at the end of a run with those of a run without faults. `history` checks each revision.

use crate::components::Cluster;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use vm_operator::api::vm::names;

/// Begins the part of a message about the last failure of a running VM.
const RECENT_FAILURE: &str = "the VM is running; consecutive restarts: ";

/// Objects by kind and name.
pub type Content = BTreeMap<String, Value>;

/// The objects of a namespace without values that differ from run to run.
#[must_use]
pub fn content(cluster: &Cluster, namespace: &str) -> Content {
    plain(
        &cluster.present(namespace),
        &cluster.deleted_pods(namespace),
        &cluster.deleted_claims(namespace),
        namespace,
    )
}

/// The same for given objects. UIDs and versions are replaced by names of their objects: the VM, its pod, and its
/// deleted pods, the newest first. A UID of no known object remains, and makes the run differ.
fn plain(
    present: &BTreeMap<(&'static str, String), Value>,
    deleted_pods: &[String],
    deleted_claims: &[String],
    namespace: &str,
) -> Content {
    let uid = |kind: &'static str| {
        present
            .get(&(kind, "vm".to_owned()))
            .and_then(|o| o["metadata"]["uid"].as_str())
            .map(ToOwned::to_owned)
    };
    let version = |kind: &'static str, name: &str| {
        present
            .get(&(kind, name.to_owned()))
            .map(|o| o["metadata"]["resourceVersion"].clone())
    };
    let (config, secret) = (
        version("ConfigMap", "vm"),
        version("Secret", "vm-display-secret"),
    );
    let gone = deleted_pods
        .iter()
        .enumerate()
        .map(|(n, uid)| (uid.clone(), format!("UID-OF-POD-{}-BEFORE", n + 1)));
    let account = present.get(&("Pod", "vm".to_owned()));
    let account = account.map(|pod| &pod["spec"]["serviceAccountName"]);
    let is_java_pod = account.is_some_and(|it| *it != names::REPORTER_SERVICE_ACCOUNT);
    let claims = deleted_claims.iter().enumerate();
    let claims = claims.map(|(n, uid)| (uid.clone(), format!("UID-OF-DELETED-PVC-{n}")));
    let present_ones = [("VirtualMachine", "UID-OF-VM"), ("Pod", "UID-OF-POD")];
    let present_ones = present_ones
        .into_iter()
        .filter_map(|(kind, name)| Some((uid(kind)?, name.to_owned())));
    let made_up = present.iter().filter_map(|((kind, name), object)| {
        // Those of the VM and its pods have names of their own. A pod has the UIDs of its PVCs in its environment.
        let is_shown = *kind != "Pod" && (*kind != "VirtualMachine" || name != "vm");
        is_shown.then_some(())?;
        let uid = object["metadata"]["uid"].as_str()?.to_owned();
        Some((uid, format!("UID-OF-{kind}-{name}")))
    });
    let uid_names: Vec<(String, String)> = present_ones
        .chain(gone)
        .chain(claims)
        .chain(made_up)
        .collect();
    let plain = |((kind, name), object): (&(&'static str, String), &Value)| {
        let mut object = object.clone();
        if let Some(annotations) = object
            .pointer_mut("/metadata/annotations")
            .and_then(Value::as_object_mut)
        {
            for (annotation, version) in [("cmVersion", &config), ("dpVersion", &secret)] {
                if let Some(annotation) =
                    annotations.get_mut(&format!("vmrunner.jdrupes.org/{annotation}"))
                {
                    *annotation = if Some(&*annotation) == version.as_ref() {
                        "the present one"
                    } else {
                        "an older one"
                    }
                    .into();
                }
            }
        }
        // The PVCs of a pod of the Java VM-Operator are recorded with the next write, which a run may not need.
        if is_java_pod && *kind == "VirtualMachine" {
            object["status"]["volumes"] = Value::Null;
        }
        let of_vm = (*kind == "VirtualMachine").then(|| seen_generations(&object));
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("uid");
        }
        strip(&mut object);
        if let Some(seen) = of_vm {
            object["generations"] = seen;
        }
        let mut text = without_times(&object.to_string()).replace(namespace, "NAMESPACE");
        // The cause of a failure disappears from the message when the VM has run for ten minutes. Runs differ in length.
        if let Some((before, rest)) = text.split_once(RECENT_FAILURE)
            && let Some(end) = rest.find('"')
        {
            text = format!("{before}the VM is running{}", &rest[end..]);
        }
        for (uid, name) in &uid_names {
            text = text.replace(uid, name);
        }
        let mut key = format!("{kind}/{name}");
        if *kind == "VmReport" {
            for (uid, name) in &uid_names {
                key = key.replace(uid, name);
            }
        }
        (key, serde_json::from_str(&text).unwrap())
    };
    present.iter().map(plain).collect()
}

/// The text with the same word in place of each time.
fn without_times(text: &str) -> String {
    const FORM: &str = "0000-00-00T00:00:00Z";
    let is_time = |part: &str| {
        let mut pairs = part.chars().zip(FORM.chars());
        pairs.all(|(c, form)| c == form || (form == '0' && c.is_ascii_digit()))
    };
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('T') {
        let begin = at.checked_sub(10);
        let found = begin.filter(|begin| rest.get(*begin..begin + FORM.len()).is_some_and(is_time));
        let (part, end) = match found {
            Some(begin) => (rest.get(..begin), begin + FORM.len()),
            None => (rest.get(..=at), at + 1),
        };
        plain += part.unwrap_or_default();
        if found.is_some() {
            plain += "TIME";
        }
        rest = rest.get(end..).unwrap_or_default();
    }
    plain + rest
}

/// `found`, with the pod deletion that only `expected` has in `status.restarts`. An operator that does not observe a
/// terminating pod, or cannot write before the pod is gone, does not count its deletion by others.
#[must_use]
pub fn with_deletion_of(expected: &Content, mut found: Content) -> Content {
    let vm = "VirtualMachine/vm";
    let counted = expected
        .get(vm)
        .map(|vm| vm["status"]["restarts"].clone())
        .unwrap_or_default();
    if let Some(status) = found.get_mut(vm).map(|vm| &mut vm["status"])
        && counted["reason"] == "PodDeleted"
        && status["restarts"].is_null()
    {
        status["restarts"] = counted;
    }
    found
}

/// Whether the generations in a VM's status are the newest: that of the status itself, and that of each condition.
fn seen_generations(vm: &Value) -> Value {
    let is_newest = |seen: &Value| match seen {
        Value::Null => "none",
        seen if *seen == vm["metadata"]["generation"] => "the newest",
        _ => "an older one",
    };
    let conditions = vm["status"]["conditions"].as_array().into_iter().flatten();
    let conditions = conditions.map(|condition| {
        (
            condition["type"].as_str().unwrap_or_default().to_owned(),
            is_newest(&condition["observedGeneration"]).into(),
        )
    });
    let status = (
        "status".to_owned(),
        is_newest(&vm["status"]["observedGeneration"]).into(),
    );
    conditions.chain([status]).collect::<Map<_, _>>().into()
}

/// The reason of the VM's condition `Ready`.
#[must_use]
pub fn ready(vm: Option<&Value>) -> String {
    let conditions = vm
        .and_then(|vm| vm["status"]["conditions"].as_array())
        .into_iter()
        .flatten();
    let ready = conditions
        .into_iter()
        .find(|condition| condition["type"] == "Ready");
    ready
        .and_then(|ready| ready["reason"].as_str())
        .unwrap_or_default()
        .to_owned()
}

/// Names of fields with times and versions.
const PASSING: [&str; 14] = [
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
    "lastUsed",
    "expires",
];

/// Removes values that differ from run to run.
pub fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| {
                !PASSING.contains(&name.as_str()) && name != "clusterIPs" && name != "nodePort"
            });
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

/// The differences, as text.
#[must_use]
pub fn difference(expected: &BTreeMap<String, Value>, found: &BTreeMap<String, Value>) -> String {
    let keys: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    let mut lines = Vec::new();
    for key in keys {
        differ(
            key,
            expected.get(key).unwrap_or(&Value::Null),
            found.get(key).unwrap_or(&Value::Null),
            &mut lines,
        );
    }
    lines.truncate(12);
    lines.join("\n    ")
}

/// Conditions by type.
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
                if a.contains_key(key) != b.contains_key(key)
                    && a.get(key).or(b.get(key)) == Some(&Value::Null)
                {
                    lines.push(format!("{path}: only one has it, as null"));
                }
                differ(
                    &path,
                    a.get(key).unwrap_or(&Value::Null),
                    b.get(key).unwrap_or(&Value::Null),
                    lines,
                );
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter()
                .zip(b)
                .enumerate()
                .for_each(|(n, (a, b))| differ(&format!("{path}[{n}]"), a, b, lines));
        }
        // A null is not a missing field.
        (a, b) if a != b => lines.push(
            format!("{path}: {a:.200} is {b:.200}")
                .chars()
                .take(600)
                .collect(),
        ),
        _ => {}
    }
}

/// Tests that differences are found.
#[cfg(test)]
mod tests {
    use super::{Content, Value, difference, plain};
    use serde_json::json;
    use std::collections::BTreeMap;

    #[test]
    fn an_end_with_another_value_or_an_object_too_few_is_different() {
        let end =
            |cpus: u64| BTreeMap::from([("Pod/vm".to_owned(), json!({"spec": [{"cpus": cpus}]}))]);
        assert_eq!(difference(&end(1), &end(1)), "");
        assert_eq!(difference(&end(1), &end(2)), "Pod/vm.spec[0].cpus: 1 is 2");
        assert_ne!(difference(&end(1), &BTreeMap::new()), "");
    }

    /// A run with these UIDs of VM and pod. The pod is the second one, after a crash of the first.
    fn run(n: u8, change: impl Fn(&mut Value, &mut Value)) -> Content {
        let mut vm = json!({
            "metadata": {"name": "vm", "uid": format!("{n}-vm"), "generation": 3 + n},
            "status": {
                "observedGeneration": 3 + n, "restarts": {"podUid": format!("{n}-first")},
                "conditions": [{"type": "Ready", "observedGeneration": 3 + n}],
            },
        });
        let owners = json!([{"uid": format!("{n}-vm")}]);
        let mut pod = json!({"metadata": {"name": "vm", "uid": format!("{n}-second"), "ownerReferences": owners}});
        change(&mut vm, &mut pod);
        let present = [("VirtualMachine", vm), ("Pod", pod)]
            .map(|(kind, object)| ((kind, "vm".to_owned()), object));
        plain(
            &BTreeMap::from(present),
            &[format!("{n}-first"), format!("{n}-zeroth")],
            &[],
            "a-namespace",
        )
    }

    #[test]
    fn identities_and_generations_are_compared_by_their_owner() {
        let expected = run(0, |_, _| ());
        assert_eq!(difference(&expected, &run(1, |_, _| ())), "");
        let changed = |change: fn(&mut Value, &mut Value)| difference(&expected, &run(1, change));
        let another =
            changed(|_, pod| pod["metadata"]["ownerReferences"][0]["uid"] = "an earlier VM".into());
        assert!(
            another.starts_with("Pod/vm.metadata.ownerReferences[0].uid: "),
            "{another}"
        );
        for other in ["1-second", "1-zeroth", "nobody's"] {
            let present = run(1, |vm, _| vm["status"]["restarts"]["podUid"] = other.into());
            let found = difference(&expected, &present);
            assert!(
                found.starts_with("VirtualMachine/vm.status.restarts.podUid: "),
                "{found}"
            );
        }
        let older = changed(|vm, _| vm["status"]["observedGeneration"] = 3.into());
        assert_eq!(
            older,
            r#"VirtualMachine/vm.generations.status: "the newest" is "an older one""#
        );
        let older = changed(|vm, _| vm["status"]["conditions"][0]["observedGeneration"] = 3.into());
        assert_eq!(
            older,
            r#"VirtualMachine/vm.generations.Ready: "the newest" is "an older one""#
        );
    }
}
