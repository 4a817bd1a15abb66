use super::*;
use crate::api::names;
use crate::operator::views::{ClaimView, ConfigMapView, PodView, SecretView, ServiceView};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use std::fmt::Debug;

fn object(name: &str, vm: &str, version: u64) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.to_owned());
    object.metadata.resource_version = Some(version.to_string());
    object.metadata.labels = Some(names::labels(vm));
    object
}

fn cache() -> Cache<ConfigMap> {
    Cache::new(|o| o.metadata.labels.as_ref()?.get(names::LABEL_INSTANCE).cloned())
}

fn version_of(cache: &Cache<ConfigMap>, name: &str) -> Option<u64> {
    cache.get(name).map(|o| version(o.as_ref()))
}

#[test]
fn what_was_made_is_no_news_until_it_changes() {
    let cache = cache();
    let made = |name: &str, version| cache.writing().given(Given::Made(object(name, "vm", version)));
    let told = |name: &str, version| cache.watched(Event::Apply(object(name, "vm", version)));
    let news = Change::Group("vm".to_owned());
    made("a", 5);
    assert_eq!(told("a", 5), Change::Known);
    assert_eq!(told("a", 6), news);
    // Told twice, as after a connection was lost, it may be news of something else.
    made("b", 7);
    assert_eq!([told("b", 7), told("b", 7)], [Change::Known, Change::Group("vm".to_owned())]);
    // The watch may be faster than the answer, and what it tells of first may be a change already.
    assert_eq!(told("c", 8), news);
    made("c", 8);
    made("d", 9);
    assert_eq!([told("c", 10), told("d", 11), told("d", 12)].map(|change| change == news), [true; 3]);
    // What was there before was not made.
    cache.writing().given(Given::There(object("e", "vm", 13)));
    assert_eq!(told("e", 13), news);
    // A list may show it, and then the watch tells what comes after.
    made("f", 14);
    cache.watched(Event::Init);
    cache.watched(Event::InitApply(object("f", "vm", 14)));
    assert_eq!(cache.watched(Event::InitDone), Change::Relisted);
    assert_eq!(told("f", 14), news);
}

#[test]
fn an_own_write_is_seen_before_the_watch_tells_and_older_news_does_not_undo_it() {
    let cache = cache();
    cache.writing().answered(object("a", "vm", 7));
    assert_eq!(cache.watched(Event::Apply(object("a", "vm", 5))), Change::None);
    assert_eq!(version_of(&cache, "a"), Some(7));
    assert_eq!(cache.watched(Event::Apply(object("a", "vm", 9))), Change::Group("vm".to_owned()));
    assert_eq!(version_of(&cache, "a"), Some(9));
}

#[test]
fn an_answer_that_comes_after_the_deletion_brings_nothing_back() {
    let cache = cache();
    cache.watched(Event::Apply(object("a", "vm", 5)));
    cache.watched(Event::Delete(object("a", "vm", 6)));
    cache.writing().answered(object("a", "vm", 5));
    assert_eq!(version_of(&cache, "a"), None);
    cache.writing().answered(object("a", "vm", 8));
    assert_eq!(version_of(&cache, "a"), Some(8));
}

/// Two clients delete a pod that has ended: the later answer shows the pod without its version. The watch may have reported
/// the end before.
#[test]
fn an_answer_without_a_version_brings_nothing_back() {
    let cache = cache();
    cache.watched(Event::Apply(object("a", "vm", 5)));
    cache.watched(Event::Delete(object("a", "vm", 6)));
    let mut answer = object("a", "vm", 0);
    answer.metadata.resource_version = None;
    cache.writing().answered(answer);
    assert_eq!(version_of(&cache, "a"), None);
    cache.writing().given(Given::Made(object("a", "vm", 8)));
    assert_eq!(version_of(&cache, "a"), Some(8));
}

/// Else the operator would know a pod for ever that is not there, and its VM would never start.
#[test]
fn an_answer_that_a_new_list_has_overtaken_brings_nothing_back() {
    let cache = cache();
    let writing = cache.writing();
    // It is made at 5 and deleted at 6; the connection of the watch is cut meanwhile, and the past forgotten.
    cache.watched(Event::Init);
    cache.watched(Event::InitDone);
    writing.answered(object("a", "vm", 5));
    assert_eq!(version_of(&cache, "a"), None);
    cache.writing().answered(object("a", "vm", 8));
    assert_eq!(version_of(&cache, "a"), Some(8));
}

#[test]
fn what_a_new_list_does_not_name_is_gone() {
    let cache = cache();
    for name in ["a", "b"] {
        cache.watched(Event::Apply(object(name, "vm", 1)));
    }
    cache.watched(Event::Init);
    cache.watched(Event::InitApply(object("b", "vm", 2)));
    assert_eq!(cache.len(), 2);
    assert_eq!(cache.watched(Event::InitDone), Change::Relisted);
    assert_eq!((version_of(&cache, "a"), version_of(&cache, "b")), (None, Some(2)));
    assert!(cache.is_ready());
}

#[test]
fn a_group_holds_its_own_objects_even_after_one_has_moved() {
    let cache = cache();
    for (name, vm) in [("a", "vm"), ("b", "vm"), ("c", "vm-2"), ("d", "other")] {
        cache.watched(Event::Apply(object(name, vm, 1)));
    }
    cache.watched(Event::Apply(object("b", "other", 2)));
    let names = |group: &str| cache.group(group).iter().map(|o| name(o.as_ref())).collect::<Vec<_>>();
    assert_eq!(
        (names("vm"), names("vm-2"), names("other")),
        (vec!["a".into()], vec!["c".into()], vec!["b".into(), "d".into()])
    );
    assert_eq!(cache.groups("vm").iter().map(|o| name(o.as_ref())).collect::<Vec<_>>(), ["a", "c"]);
}

/// What is read of an object that has come in as `object`.
fn read<K: Resource + Serialize + DeserializeOwned>(object: &Value) -> Arc<K> {
    let cache = Cache::<K>::new(|_| Some("vm".to_owned()));
    cache.watched(Event::Apply(serde_json::from_value(object.clone()).unwrap()));
    cache.get("a").unwrap()
}

#[test]
fn nothing_that_the_operator_reads_is_lost_while_an_object_lies_here() {
    let meta = json!({
        "name": "a", "uid": "u", "resourceVersion": "7", "generation": 2, "labels": {"l": "1"}, "annotations": {"a": "2"},
        "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
        "ownerReferences": [{"apiVersion": "v", "kind": "k", "name": "o", "uid": "ou", "controller": true}],
        "finalizers": ["example.org/hold"],
    });
    fn same<K: Resource + Serialize + DeserializeOwned + Debug>(object: &Value) {
        let came: K = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(format!("{:?}", read::<K>(object)), format!("{came:?}"));
    }
    let condition = json!({"type": "t", "status": "s", "reason": "r", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let waiting = json!({"reason": "r", "message": "m"});
    let terminated = json!({
        "exitCode": 3, "reason": "r", "message": "m", "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z",
    });
    let state = json!({"waiting": waiting, "terminated": terminated});
    let resources = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}});
    same::<PodView>(&json!({
        "metadata": meta,
        "spec": {"containers": [{"name": "c", "resources": resources}], "terminationGracePeriodSeconds": 30},
        "status": {
            "phase": "p", "reason": "r", "message": "m", "conditions": [condition],
            "containerStatuses": [{"name": "c", "image": "i", "state": state}],
        },
    }));
    same::<ClaimView>(&json!({
        "metadata": meta,
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeMode": "Block", "volumeAttributesClassName": "a",
            "resources": {"requests": {"storage": "1Gi"}},
        },
        "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}},
    }));
    same::<ServiceView>(&json!({
        "metadata": meta, "spec": {"type": "t", "selector": {"a": "b"}, "ports": [{"name": "n", "port": 1, "targetPort": "t"}]},
    }));
    same::<SecretView>(&json!({"metadata": meta}));
    let config = "/Runner:\n  cloudInit:\n    metaData:\n      instance-id: of-the-reference\n";
    let config_map = json!({"metadata": meta, "data": {names::CONFIG_FILE: config, names::LOGGING_FILE: ".level=FINE", "other": "x"}});
    same::<ConfigMapView>(&config_map);
    assert_eq!(read::<ConfigMapView>(&config_map).config.references_instance_id.as_deref(), Some("of-the-reference"));
    same::<ConfigMapView>(&json!({"metadata": meta}));
}

#[test]
fn what_holds_a_pod_back_is_kept_and_what_holds_every_claim_is_not() {
    let of = |finalizers: Value| json!({"metadata": {"name": "a", "finalizers": finalizers}});
    let held = read::<PodView>(&of(json!(["example.org/hold"])));
    assert_eq!(held.metadata.finalizers.as_deref(), Some(&["example.org/hold".to_owned()][..]));
    let claim = read::<ClaimView>(&of(json!(["kubernetes.io/pvc-protection"])));
    assert_eq!(claim.metadata.finalizers, None);
}
