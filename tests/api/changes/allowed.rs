//! In what a VM that was changed may differ from one that was made so: a closed list, each with its reason. All else has
//! to be equal.
//!
//! | what | why |
//! |---|---|
//! | names, UIDs, times, versions, ports that the API server gives (`judge::strip`) | each object has its own |
//! | the display secret stays when no display wants it any more, mounted and listed among what the pod was started with | a password may be the user's, and nobody can tell it from a generated one; who turns the display off and on again has the same one; it goes with the VM. The reference keeps it, too |
//! | with `tap` networks, whether the display is at 127.0.0.1 only | with a secret, also one that stays, it needs not hide |
//! | claims stay | nothing removes data |
//! | a claim has another size or attributes class, and `DisksInSync` names it; then the image file in it has, too | no volume shrinks, and not every one grows |
//! | of the claims that were there in the beginning, only the operator's labels are compared | mode, selector, class cannot change; the data is in it; labels and annotations are given once |
//! | a service that the API server refuses, and then `ServiceInSync` is `False`: of one that was made so there is none, of the other the one of before | guests behind it are still reached |
//! | the password in the display secret | it is drawn |
//! | a VM that is stopped has images that were fetched while it ran | they stay; for a stopped VM none is fetched |
//! | the seed's `instance-id` | it follows the VM's UID |
//! | conditions of the runner | they tell of the past: the last reset, the last boot |
//!
//! Of one that was changed while it runs, besides:
//!
//! | what | why |
//! |---|---|
//! | the pod, and then `RestartRequired` names each field with which it was started otherwise, and no other | a pod cannot be changed |
//! | a pod's longer time to end | a stop names the time of the VM; only a drain takes the pod's |
//! | a pod's resources, and then `ResourcesInSync` is `False` | the API server does not change them in each direction |
//!
//! The other way round nothing is allowed: a secret or a claim of one that was made so is there, too.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use vm_operator::api::conditions;
use vm_operator::api::vm::names;

/// Kinds of which more may be there.
pub const STAY: [&str; 2] = ["PersistentVolumeClaim", "Secret"];

/// How `RestartRequired` names the time that a pod has to end: no hash tells of it.
pub const GRACE: &str = "spec.vm.powerdownTimeout ";

/// Takes what may differ out of an object.
pub fn without(object: &mut Value) {
    if let Some(annotations) = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        // The versions of ConfigMap and secret that the kubelet was told of.
        annotations.retain(|name, _| !name.starts_with("vmrunner.jdrupes.org/"));
        // A hash of what is compared.
        annotations.remove(names::ANNOTATION_TEMPLATE_HASH);
    }
    without_display_secret(object);
    if let Some(text) = object.pointer("/data/config.yaml").and_then(Value::as_str) {
        let mut config: Value = serde_saphyr::from_str(text).unwrap();
        without_instance_id(&mut config);
        if let Some(spice) = config
            .pointer_mut("/~1Runner/vm/display/spice")
            .and_then(Value::as_object_mut)
        {
            spice.remove("address");
        }
        object["data"]["config.yaml"] = config;
    }
    // A pod's: when it became ready.
    object["status"]["conditions"] = Value::Null;
}

/// Takes out of a claim or secret what is drawn, or told by the rest of Kubernetes.
pub fn without_content(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    for value in object["data"]
        .as_object_mut()
        .into_iter()
        .flat_map(|data| data.values_mut())
    {
        *value = Value::Null;
    }
}

/// Takes out of a claim what of it can grow or change: size and attributes class.
pub fn take_growth(claim: &mut Value) -> [Value; 2] {
    let spec = &mut claim["spec"];
    [
        spec["resources"].take()["requests"]["storage"].take(),
        spec["volumeAttributesClassName"].take(),
    ]
}

/// Whether a claim has the size and the attributes class of one that is made so; of what is not asked for, it has any.
pub fn has_grown(made: &[Value; 2], there: &[Value; 2]) -> bool {
    let is_any = [made[0] == "1Mi", made[1].is_null()];
    (0..2).all(|n| is_any[n] || made[n] == there[n])
}

/// Whether a claim has, and keeps, something else than one that is made so. Of what is not asked for, it has any.
pub fn keeps(made: &Value, there: &Value) -> bool {
    let differs = |field: &str| made["spec"][field] != there["spec"][field];
    let classes = [made, there].map(|claim| !claim["spec"]["storageClassName"].is_null());
    classes == [true; 2] && differs("storageClassName")
        || made["spec"]["volumeMode"] == "Filesystem" && differs("volumeMode")
}

/// Leaves of a claim the labels by which the operator finds it.
pub fn keep_own_labels(claim: &mut Value) {
    let mut labels = claim["metadata"]["labels"].take();
    if let Some(labels) = labels.as_object_mut() {
        labels.retain(|name, _| names::LABELS.iter().any(|(own, _)| own == name));
    }
    *claim = labels;
}

/// Takes the sizes of image files out of the configuration.
pub fn without_sizes(objects: &mut BTreeMap<String, Value>) {
    let config_map = objects.get_mut("ConfigMap");
    let drives = config_map.and_then(|map| {
        map.pointer_mut("/data/config.yaml/~1Runner/vm/drives")?
            .as_array_mut()
    });
    drives
        .into_iter()
        .flatten()
        .for_each(|drive| drop(drive["size"].take()));
}

/// Takes out of a pod how often it was asked to be restarted, and how long it has to end.
pub fn without_restarts(objects: &mut BTreeMap<String, Value>) {
    if let Some(pod) = objects.get_mut("Pod") {
        pod["metadata"]["annotations"][names::ANNOTATION_RESTART_REQUEST].take();
        pod["spec"]["terminationGracePeriodSeconds"].take();
    }
    objects
        .get_mut("conditions")
        .and_then(Value::as_object_mut)
        .map(|all| all.remove(conditions::RESTART_REQUIRED));
}

/// Takes a pod's resources out, and the word that they are not those that are wanted.
pub fn without_resources(objects: &mut BTreeMap<String, Value>) {
    if let Some(pod) = objects.get_mut("Pod") {
        pod["metadata"]["annotations"][names::ANNOTATION_RESOURCES].take();
        pod["spec"]["containers"][0]["resources"].take();
        pod["status"].take();
    }
    objects
        .get_mut("conditions")
        .and_then(Value::as_object_mut)
        .map(|all| all.remove(conditions::RESOURCES_IN_SYNC));
}

/// Whether `RestartRequired` names it for another reason than what the pod was started with.
pub fn is_not_hashed(field: &str) -> bool {
    field == "the display secret" || field.starts_with(GRACE)
}

/// Takes what was fetched out of the configuration of a VM that is stopped.
pub fn without_fetched(config_map: &mut Value) {
    let drives = config_map
        .pointer_mut("/data/config.yaml/~1Runner/vm/drives")
        .and_then(Value::as_array_mut);
    for drive in drives
        .into_iter()
        .flatten()
        .filter(|drive| drive["type"] == "ide-cd")
    {
        if drive["file"]
            .as_str()
            .is_some_and(|file| file.contains("/fetched/"))
        {
            drive["file"] = json!("");
        }
    }
}

/// Whether a condition of the VM has to be the same.
pub fn is_compared(condition: &Value, vm: &Value) -> bool {
    let is_runners = conditions::INITIAL
        .iter()
        .any(|initial| condition["type"] == *initial);
    let is_of_the_past = condition["type"] == conditions::MEDIA_FETCHED && is_stopped(vm);
    condition["type"] != conditions::DISKS_IN_SYNC && !is_runners && !is_of_the_past
}

pub fn is_stopped(vm: &Value) -> bool {
    vm["spec"]["vm"]["state"] == "Stopped"
}

fn without_display_secret(object: &mut Value) {
    let hashes = object
        .pointer_mut("/metadata/annotations")
        .and_then(|all| all.get_mut(names::ANNOTATION_STARTED_WITH));
    if let Some(Value::String(text)) = hashes {
        let mut hashes: Value = serde_json::from_str(text).unwrap();
        hashes["the display secret"] = Value::Null;
        *text = hashes.to_string();
    }
    let volumes = object
        .pointer_mut("/spec/volumes")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten();
    for sources in volumes.filter_map(|volume| {
        volume
            .pointer_mut("/projected/sources")
            .and_then(Value::as_array_mut)
    }) {
        let is_displays = |name: &Value| {
            name.as_str()
                .is_some_and(|name| name.ends_with("-display-secret"))
        };
        sources.retain(|source| !is_displays(&source["secret"]["name"]));
    }
}

fn without_instance_id(config: &mut Value) {
    let meta_data = config
        .pointer_mut("/~1Runner/cloudInit/metaData")
        .and_then(Value::as_object_mut);
    let Some(id) = meta_data.and_then(|meta_data| meta_data.get_mut("instance-id")) else {
        return;
    };
    // One that the user has given is no hash of ours.
    if id
        .as_str()
        .is_some_and(|id| id.len() == 13 && id.starts_with('v'))
    {
        *id = json!("that of the VM");
    }
}
