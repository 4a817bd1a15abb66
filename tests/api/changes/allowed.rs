//! The allowed differences between a changed VM and a VM that was created with the same spec: a closed list with
//! reasons. All other values must be equal.
//!
//! | difference | reason |
//! |---|---|
//! | names, UIDs, times, versions, ports that the API server allocates (`final_state::strip`) | each object has its own |
//! | the display Secret is retained when no display uses it any more, mounted and listed among the pod's inputs | a password may be the user's, and it cannot be distinguished from a generated one |
//! | with `tap` networks, whether the display listens on 127.0.0.1 only | with a Secret, also a retained one, it need not |
//! | PVCs are retained | the operator never deletes data |
//! | a PVC has another size or attributes class, and `DisksInSync` names it; then its image file differs, too | no volume shrinks, and not each volume can be expanded |
//! | of the first PVCs, only the operator's labels are compared | mode, selector and class are immutable; the data is in the PVC; labels and annotations are set once |
//! | a service that the API server rejects, and then `ServiceInSync` is `False`: the created VM has none, the changed VM the previous one | guests behind it remain reachable |
//! | the password in the display Secret | it is random |
//! | a stopped VM has images that were downloaded while it ran | they are retained; for a stopped VM none is downloaded |
//! | the seed's `instance-id` | it follows the VM's UID |
//! | UIDs of PVCs and the `instance-id` in the environment of the pod | each object has its own |
//! | whether the environment of the pod has `usedRunnerData` | it reports the past: the VM has run before |
//! | conditions of the runner | they report the past: the last reset, the last boot |
//!
//! Additional differences of a VM that was changed while it runs:
//!
//! | difference | reason |
//! |---|---|
//! | the pod, and then `RestartRequired` names exactly the fields that differ | a pod is immutable |
//! | a longer grace period of the pod | a stop uses the grace period of the VM; only a drain uses that of the pod |
//! | the pod's resources and the guest's memory, and then `ResourcesInSync` is `False` | the API server does not allow each resize, and the guest grows after it |
//!
//! In the other direction nothing is allowed: each Secret and PVC of the created VM must exist for the changed VM.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use vm_operator::api::vm::conditions;
use vm_operator::api::vm::names;

/// Kinds of which the changed VM may have more objects.
pub const STAY: [&str; 2] = ["PersistentVolumeClaim", "Secret"];

/// The name of the grace period in `RestartRequired`. No hash includes it.
pub const GRACE: &str = "spec.vm.powerdownTimeout ";

/// Removes the allowed differences from an object.
pub fn without(object: &mut Value) {
    if let Some(annotations) = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        // The versions of ConfigMap and Secret that were reported to the kubelet.
        annotations.retain(|name, _| !name.starts_with("vmrunner.jdrupes.org/"));
        // A hash of values that are compared directly.
        annotations.remove(names::ANNOTATION_TEMPLATE_HASH);
    }
    without_display_secret(object);
    without_identity(object);
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
    // The time at which the pod became ready.
    object["status"]["conditions"] = Value::Null;
}

/// Removes UIDs, the `instance-id` and the past from the identity in the environment of a pod. Paths and names of PVCs are compared.
fn without_identity(object: &mut Value) {
    let Some(variables) = object
        .pointer_mut("/spec/containers/0/env")
        .and_then(Value::as_array_mut)
    else {
        return;
    };
    let is_identity = |variable: &Value| variable["name"] == names::ENV_IDENTITY;
    for variable in variables.iter_mut().filter(|it| is_identity(it)) {
        let text = variable["value"].as_str().unwrap();
        let mut identity: Value = serde_json::from_str(text).unwrap();
        let claims = identity["claims"].as_object_mut();
        for claim in claims.into_iter().flat_map(|claims| claims.values_mut()) {
            claim["uid"] = Value::Null;
        }
        if let Some(instance) = identity.get_mut("generatedInstance") {
            instance["id"] = Value::Null;
        }
        let identity = identity.as_object_mut().unwrap();
        identity.remove("usedRunnerData");
        identity.retain(|_, value| !value.is_null());
        variable["value"] = json!(identity);
    }
    variables.retain(|variable| !is_identity(variable) || variable["value"] != json!({}));
}

/// Removes random values, and values that other components set, from a PVC or Secret.
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

/// Removes the values of a PVC that can change: size and attributes class.
pub fn remove_growth(claim: &mut Value) -> [Value; 2] {
    let spec = &mut claim["spec"];
    [
        spec["resources"].take()["requests"]["storage"].take(),
        spec["volumeAttributesClassName"].take(),
    ]
}

/// Whether a PVC has the size and the attributes class of the created one. Any value matches a missing request.
pub fn has_grown(made: &[Value; 2], there: &[Value; 2]) -> bool {
    let is_any = [made[0] == "1Mi", made[1].is_null()];
    (0..2).all(|n| is_any[n] || made[n] == there[n])
}

/// Whether a PVC differs from the created one in a retained value. Any value matches a missing request.
pub fn keeps(made: &Value, there: &Value) -> bool {
    let differs = |field: &str| made["spec"][field] != there["spec"][field];
    let classes = [made, there].map(|claim| !claim["spec"]["storageClassName"].is_null());
    classes == [true; 2] && differs("storageClassName")
        || made["spec"]["volumeMode"] == "Filesystem" && differs("volumeMode")
}

/// Retains only the labels of a PVC by which the operator finds it.
pub fn keep_own_labels(claim: &mut Value) {
    let mut labels = claim["metadata"]["labels"].take();
    if let Some(labels) = labels.as_object_mut() {
        labels.retain(|name, _| names::LABELS.iter().any(|(own, _)| own == name));
    }
    *claim = labels;
}

/// Removes the sizes of image files from the configuration.
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

/// Removes the restart request and the grace period from a pod.
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

/// Removes the pod's resources, the guest's memory and the report that they are not in sync.
pub fn without_resources(objects: &mut BTreeMap<String, Value>) {
    if let Some(pod) = objects.get_mut("Pod") {
        pod["metadata"]["annotations"][names::ANNOTATION_RESOURCES].take();
        pod["spec"]["containers"][0]["resources"].take();
        pod["status"].take();
    }
    objects
        .get_mut("ConfigMap")
        .and_then(|it| it.pointer_mut("/data/config.yaml/~1Runner/vm"))
        .and_then(Value::as_object_mut)
        .map(|machine| machine.remove("currentRam"));
    objects
        .get_mut("conditions")
        .and_then(Value::as_object_mut)
        .map(|all| all.remove(conditions::RESOURCES_IN_SYNC));
}

/// Whether `RestartRequired` names the field for another reason than the pod's start.
pub fn is_not_hashed(field: &str) -> bool {
    field == "the display secret" || field.starts_with(GRACE)
}

/// Removes downloads from the configuration of a stopped VM.
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

/// Whether a condition of the VM must be equal.
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
    // A value that the user has set is not the operator's hash.
    if id
        .as_str()
        .is_some_and(|id| id.len() == 13 && id.starts_with('v'))
    {
        *id = json!("that of the VM");
    }
}
