use super::*;
use crate::api::PeerPod;
use serde_json::{Value, json};

const ID: &str = "vms/podvm-a-12345678/u1";

/// A `PeerPod` that is being deleted. The changes are merged into it.
fn peerpod(name: &str, second: u8, changes: Value) -> PeerPod {
    let owner =
        json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "pod-a", "controller": true});
    let mut object = json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "finalizers": [names::FINALIZER], "ownerReferences": [owner],
            "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"), "deletionTimestamp": "2026-01-01T01:00:00Z",
        },
        "spec": {"cloudProvider": "virtualmachine", "instanceID": ID},
    });
    for (path, value) in changes.as_object().unwrap() {
        let (parent, field) = path.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[field] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

fn decided(
    all: &[PeerPod],
    seconds: u64,
    pod_has_ended: Option<bool>,
    instance: Option<Instance>,
) -> Decision {
    let facts = Facts::of(&all[0], all.iter());
    let read = Read {
        pod_has_ended,
        waited: Duration::from_secs(seconds),
        instance,
    };
    decide(&facts, &read, &["vms".to_owned()])
}

fn reason(decision: &Decision) -> &'static str {
    match decision {
        Decision::Wait { reason, .. } => (*reason).into(),
        Decision::Nothing => "nothing",
        Decision::ReadPod => "read pod",
        Decision::Describe(_) => "describe",
        Decision::Delete(_) => "delete",
        Decision::Supersede => "supersede",
        Decision::Release(_) => "release",
    }
}

#[test]
fn instance_is_deleted_after_the_pod_and_the_adaptor_and_released_when_it_is_gone() {
    let one = [peerpod("one", 0, json!({}))];
    let ours = |is_ending| Some(Instance::Ours { is_ending });
    let steps = [
        (0, None, None, "read pod"),
        (0, Some(false), None, "WaitingForPod"),
        (60, Some(false), ours(false), "WaitingForPod"),
        (9, Some(true), None, "WaitingForAdaptor"),
        (10, Some(true), None, "describe"),
        (10, Some(true), ours(false), "delete"),
        (10, Some(true), ours(true), "Deleting"),
        (
            10,
            Some(true),
            Some(Instance::NotOurs(String::new())),
            "InstanceNotOurs",
        ),
        (10, Some(true), Some(Instance::Gone), "release"),
    ];
    for (seconds, pod, instance, expected) in steps {
        let found = decided(&one, seconds, pod, instance.clone());
        assert_eq!(reason(&found), expected, "{seconds} {pod:?} {instance:?}");
    }
}

#[test]
fn objects_decide_before_anything_is_read() {
    for (changes, expected) in [
        (json!({"/metadata/finalizers": []}), "nothing"),
        (
            json!({"/metadata/finalizers": ["another/finalizer"]}),
            "nothing",
        ),
        (json!({"/metadata/deletionTimestamp": null}), "nothing"),
        (
            json!({"/metadata/deletionTimestamp": null, "/spec/instanceID": ""}),
            "nothing",
        ),
        (
            json!({"/metadata/deletionTimestamp": null, "/spec/instanceID": "i-1"}),
            "InstanceIDInvalid",
        ),
        (json!({"/spec/instanceID": ""}), "release"),
        (
            json!({"/spec/instanceID": "i-12345678"}),
            "InstanceIDInvalid",
        ),
        (
            json!({"/spec/cloudProvider": "aws"}),
            "ProviderNotSupported",
        ),
        (
            json!({"/spec/instanceID": "elsewhere/a/u"}),
            "ConfigMissing",
        ),
        (json!({"/metadata/ownerReferences": []}), "InstanceNotOurs"),
        (
            json!({"/metadata/annotations": {names::ANNOTATION_ABANDON: ID}}),
            "release",
        ),
        (
            json!({"/metadata/annotations": {names::ANNOTATION_ABANDON: "other"}}),
            "read pod",
        ),
    ] {
        let found = decided(&[peerpod("one", 0, changes.clone())], 60, None, None);
        assert_eq!(reason(&found), expected, "{changes}");
    }
}

#[test]
fn younger_peerpod_of_the_pod_replaces_the_older_one() {
    let alive = json!({"/metadata/deletionTimestamp": null});
    let another = json!({"/metadata/deletionTimestamp": null, "/spec/instanceID": "vms/b/u2"});
    let released = json!({"/metadata/deletionTimestamp": null, "/metadata/finalizers": []});
    let ending = || peerpod("one", 0, json!({}));
    let present = || peerpod("one", 0, alive.clone());
    for (first, second, expected) in [
        (present(), peerpod("two", 1, another.clone()), "supersede"),
        (present(), peerpod("two", 0, another.clone()), "nothing"),
        (ending(), peerpod("two", 1, alive.clone()), "release"),
        // The pod runs, with the instance of the younger one.
        (ending(), peerpod("two", 1, another.clone()), "describe"),
        (ending(), peerpod("two", 1, released), "read pod"),
        (ending(), peerpod("two", 0, another), "read pod"),
    ] {
        let found = decided(&[first, second.clone()], 60, None, None);
        assert_eq!(reason(&found), expected, "{second:?}");
    }
}

#[test]
fn oldest_peerpod_of_different_pods_has_the_instance_in_whatever_namespace() {
    let other = json!([{"apiVersion": "v1", "kind": "Pod", "name": "b", "uid": "pod-b"}]);
    let other = |second, namespace: &str| {
        let changes = json!({"/metadata/ownerReferences": other, "/metadata/namespace": namespace, "/metadata/deletionTimestamp": null});
        peerpod("two", second, changes)
    };
    for (second, namespace, expected) in [
        (0, "other", "InstanceNotOurs"),
        (2, "other", "read pod"),
        // Within a second, namespace and name decide.
        (1, "another", "InstanceNotOurs"),
        (1, "zone", "read pod"),
    ] {
        let all = [peerpod("one", 1, json!({})), other(second, namespace)];
        let found = decided(&all, 60, None, None);
        assert_eq!(reason(&found), expected, "{second} {namespace}");
    }
}
