//! In what a VM that was changed may differ from one that was made so: a closed list, each with its reason. All else has
//! to be equal.
//!
//! | what | why |
//! |---|---|
//! | names, UIDs, times, versions, ports that the API server gives (`judge::strip`) | each object has its own |
//! | the display secret stays when no display wants it any more, mounted and listed among what the pod was started with | a password may be the user's, and nobody can tell it from a generated one; who turns the display off and on again has the same one; it goes with the VM. The reference keeps it, too |
//! | with `tap` networks, whether the display is at 127.0.0.1 only | with a secret, also one that stays, it needs not hide |
//! | claims stay, and keep their size and class | nothing removes data, and no volume shrinks (`DisksInSync` says so) |
//! | a claim that is there has its mode, and another selector or class of its template is not looked at | none of these can change; the data is in it |
//! | a VM that is stopped has images that were fetched while it ran | they stay; for a stopped VM none is fetched |
//! | the seed's `instance-id` | it follows the VM's UID |
//! | conditions of the runner | they tell of the past: the last reset, the last boot |
//!
//! The other way round nothing is allowed: a secret or a claim of one that was made so is there, too.

use serde_json::{Value, json};
use vm_operator::api::{conditions, names};

/// Kinds of which more may be there.
pub const STAY: [&str; 2] = ["PersistentVolumeClaim", "Secret"];

/// Takes what may differ out of an object.
pub fn without(object: &mut Value) {
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        // The versions of ConfigMap and secret that the kubelet was told of.
        annotations.retain(|name, _| !name.starts_with("vmrunner.jdrupes.org/"));
        // A hash of what is compared.
        annotations.remove(names::ANNOTATION_MADE_OF);
    }
    without_display_secret(object);
    if let Some(text) = object.pointer("/data/config.yaml").and_then(Value::as_str) {
        let mut config: Value = serde_saphyr::from_str(text).unwrap();
        without_instance_id(&mut config);
        if let Some(spice) = config.pointer_mut("/~1Runner/vm/display/spice").and_then(Value::as_object_mut) {
            spice.remove("address");
        }
        object["data"]["config.yaml"] = config;
    }
    // A pod's: when it became ready.
    object["status"]["conditions"] = Value::Null;
}

/// Takes what was fetched out of the configuration of a VM that is stopped.
pub fn without_fetched(config_map: &mut Value) {
    let drives = config_map.pointer_mut("/data/config.yaml/~1Runner/vm/drives").and_then(Value::as_array_mut);
    for drive in drives.into_iter().flatten().filter(|drive| drive["type"] == "ide-cd") {
        if drive["file"].as_str().is_some_and(|file| file.contains("/fetched/")) {
            drive["file"] = json!("");
        }
    }
}

/// Whether a condition of the VM has to be the same.
pub fn is_compared(condition: &Value, vm: &Value) -> bool {
    let is_runners = conditions::INITIAL.iter().any(|initial| condition["type"] == *initial);
    let is_of_the_past = condition["type"] == conditions::MEDIA_FETCHED && is_stopped(vm);
    condition["type"] != conditions::DISKS_IN_SYNC && !is_runners && !is_of_the_past
}

pub fn is_stopped(vm: &Value) -> bool {
    vm["spec"]["vm"]["state"] == "Stopped"
}

fn without_display_secret(object: &mut Value) {
    let hashes =
        object.pointer_mut("/metadata/annotations").and_then(|all| all.get_mut(names::ANNOTATION_STARTED_WITH));
    if let Some(Value::String(text)) = hashes {
        let mut hashes: Value = serde_json::from_str(text).unwrap();
        hashes["the display secret"] = Value::Null;
        *text = hashes.to_string();
    }
    let volumes = object.pointer_mut("/spec/volumes").and_then(Value::as_array_mut).into_iter().flatten();
    for sources in volumes.filter_map(|volume| volume.pointer_mut("/projected/sources").and_then(Value::as_array_mut)) {
        let is_displays = |name: &Value| name.as_str().is_some_and(|name| name.ends_with("-display-secret"));
        sources.retain(|source| !is_displays(&source["secret"]["name"]));
    }
}

fn without_instance_id(config: &mut Value) {
    let meta_data = config.pointer_mut("/~1Runner/cloudInit/metaData").and_then(Value::as_object_mut);
    let Some(id) = meta_data.and_then(|meta_data| meta_data.get_mut("instance-id")) else { return };
    // One that the user has given is no hash of ours.
    if id.as_str().is_some_and(|id| id.len() == 13 && id.starts_with('v')) {
        *id = json!("that of the VM");
    }
}
