//! Creation, update, patches and deletion of objects.

use super::list::shown;
use super::managers::{self, Manager};
use super::resource::Resource;
use super::route::{Call, Verb};
use super::schema::object_at;
use super::status::{Failure, deleted};
use super::store::{Key, Object, Store};
use super::{State, patch, rules};
use serde_json::{Value, json};
use std::sync::Arc;

/// Code and body of a response.
pub type Answer = (u16, Vec<u8>);

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value["metadata"][name].as_str().unwrap_or_default()
}

fn manager(call: &Call) -> Manager {
    Manager {
        name: call.manager().to_owned(),
        is_apply: call.verb == Verb::Apply,
        subresource: call.subresource.clone(),
        version: call.resource.api_version(),
    }
}

/// `POST` of an object.
pub fn create(state: &mut State, call: &Call) -> Result<Answer, Failure> {
    let mut object = call.body.clone();
    let metadata = object_at(&mut object, "metadata");
    if metadata
        .get("name")
        .is_none_or(|name| name.as_str().is_none_or(str::is_empty))
    {
        let Some(prefix) = metadata.get("generateName").and_then(Value::as_str) else {
            let why = "Required value: name or generateName is required";
            return Err(Failure::invalid(
                &call.resource,
                "",
                "FieldValueRequired",
                "metadata.name",
                why,
            ));
        };
        let name = format!("{prefix}{}", state.suffix());
        metadata.insert("name".to_owned(), name.into());
    }
    if metadata
        .get("resourceVersion")
        .is_some_and(|version| version.as_str().is_some_and(|v| !v.is_empty()))
    {
        return Err(Failure::bad_request(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    let object = insert(state, call, object, |live, new, now, state| {
        managers::update(&call.resource, live, new, &manager(call), now);
        let _ = state;
        Ok(())
    })?;
    Ok((201, shown(&call.resource, call.metadata_only, &object)))
}

/// Stores a new object. `own` assigns its fields to their manager.
fn insert(
    state: &mut State,
    call: &Call,
    mut object: Value,
    own: impl FnOnce(&Value, &mut Value, &Value, &mut State) -> Result<(), Failure>,
) -> Result<Arc<Object>, Failure> {
    let resource = &*call.resource;
    let name = text(&object, "name").to_owned();
    let key = (call.namespace.clone().unwrap_or_default(), name.clone());
    if resource.namespaced && !state.has_namespace(&key.0) {
        return Err(Failure::not_found(
            &state.resource("", "namespaces"),
            &key.0,
        ));
    }
    if state.store.get(resource, &key).is_some() {
        return Err(Failure::already_exists(resource, &name));
    }
    let now: Value = state.time().into();
    object["apiVersion"] = resource.api_version().into();
    object["kind"] = resource.kind.clone().into();
    let metadata = object_at(&mut object, "metadata");
    for system in [
        "uid",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "managedFields",
        "selfLink",
    ] {
        metadata.remove(system);
    }
    metadata.remove("resourceVersion");
    if resource.namespaced {
        metadata.insert("namespace".to_owned(), key.0.clone().into());
    }
    rules::default(resource, &mut object);
    if let Some(fields) = object.as_object_mut().filter(|_| resource.has_status) {
        fields.remove("status");
    }
    let number = state.next_object();
    own(&rules::template(resource), &mut object, &now, state)?;
    let metadata = object_at(&mut object, "metadata");
    metadata.insert("uid".to_owned(), state.uid(number).into());
    metadata.insert("creationTimestamp".to_owned(), now);
    if resource.has_generation {
        metadata.insert("generation".to_owned(), 1.into());
    }
    rules::prepare(resource, &mut object, number);
    if resource.custom {
        rules::default(resource, &mut object);
    }
    if call.is_dry_run() {
        return Ok(Store::unsaved(object));
    }
    Ok(state.store.put(resource, key, object))
}

/// `PUT` and `PATCH` of an object or a subresource.
pub fn change(state: &mut State, call: &Call) -> Result<Answer, Failure> {
    let resource = &*call.resource;
    match (call.subresource.as_str(), resource.kind.as_str()) {
        ("", _) => {}
        ("status", _) if resource.has_status => {}
        ("resize", "Pod") => {}
        ("finalize" | "ephemeralcontainers" | "scale" | "approval", _) => {
            return Err(Failure::unknown(format!(
                "{:?} {}/{}",
                call.verb, resource.plural, call.subresource
            )));
        }
        _ => return Err(Failure::no_such_path()),
    }
    let key = call.key();
    let Some(live) = state.store.get(resource, &key) else {
        return change_missing(state, call, &key);
    };
    check_preconditions(call, &key, &live.value)?;
    let now: Value = state.time().into();
    let mut new = patched(call, &live.value, &now)?;
    keep_system_fields(resource, &live.value, &mut new);
    if call.verb != Verb::Apply {
        keep_other_parts(call, &live.value, &mut new);
        rules::default(resource, &mut new);
        new["metadata"]["managedFields"] = live.value["metadata"]["managedFields"].clone();
        managers::update(resource, &live.value, &mut new, &manager(call), &now);
    } else {
        rules::default(resource, &mut new);
    }
    if resource.kind == "Service" {
        for name in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if new["spec"][name].is_null() {
                new["spec"][name] = live.value["spec"][name].clone();
            }
        }
        rules::allocate_node_ports(&mut new["spec"], state.next_object());
    }
    let is_expandable = |class: &str| state.is_expandable(class);
    rules::check(
        resource,
        &call.subresource,
        &live.value,
        &new,
        is_expandable,
    )?;
    if resource.has_generation && content(resource, &live.value) != content(resource, &new) {
        new["metadata"]["generation"] = (live.value["metadata"]["generation"]
            .as_i64()
            .unwrap_or_default()
            + 1)
        .into();
    }
    if !managers::differ(&live.value, &new) {
        return Ok((200, shown(resource, call.metadata_only, &live)));
    }
    if call.is_dry_run() {
        return Ok((
            200,
            shown(resource, call.metadata_only, &Store::unsaved(new)),
        ));
    }
    let object = match is_released(&new) {
        // The change is not stored. The deletion shows the state before it.
        true => {
            let last = state.store.remove(resource, key, live.value.clone());
            new["metadata"]["resourceVersion"] = last.value["metadata"]["resourceVersion"].clone();
            Store::unsaved(new)
        }
        false => state.store.put(resource, key, new),
    };
    Ok((200, shown(resource, call.metadata_only, &object)))
}

/// A terminating object that has lost its last finalizer.
fn is_released(object: &Value) -> bool {
    let metadata = &object["metadata"];
    let has_finalizer = metadata["finalizers"]
        .as_array()
        .is_some_and(|finalizers| !finalizers.is_empty());
    metadata["deletionTimestamp"].is_string()
        && !has_finalizer
        && metadata["deletionGracePeriodSeconds"]
            .as_i64()
            .unwrap_or_default()
            == 0
}

/// The part of the object with changes that the generation counts.
fn content<'a>(resource: &Resource, object: &'a Value) -> Vec<(&'a str, &'a Value)> {
    if !resource.custom {
        return vec![("spec", &object["spec"])];
    }
    let fields = object.as_object().into_iter().flatten();
    fields
        .map(|(name, value)| (name.as_str(), value))
        .filter(|(name, _)| !matches!(*name, "metadata" | "status"))
        .collect()
}

fn change_missing(state: &mut State, call: &Call, key: &Key) -> Result<Answer, Failure> {
    let resource = &*call.resource;
    if call.verb != Verb::Apply || !call.subresource.is_empty() {
        return Err(Failure::not_found(resource, &key.1));
    }
    let uid = text(&call.body, "uid");
    if !uid.is_empty() {
        let why = format!(
            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        );
        return Err(Failure::conflict(resource, &key.1, &why));
    }
    if text(&call.body, "name").is_empty() {
        let why = "was undeterminable: name must be provided";
        return Err(Failure::bad_request(format!(
            "the name of the object ({} based on URL) {why}",
            key.1
        )));
    }
    let object = call.body.clone();
    let force = call.query("force") == Some("true");
    let object = insert(state, call, object, |_, new, now, _| {
        // Defaults have no owner.
        let mut live = json!({"metadata": {}});
        let mut configuration = call.body.clone();
        if let Some(fields) = configuration
            .as_object_mut()
            .filter(|_| resource.has_status)
        {
            fields.remove("status");
        }
        live = managers::apply(resource, &live, &configuration, &manager(call), force, now)?;
        new["metadata"]["managedFields"] = live["metadata"]["managedFields"].clone();
        Ok(())
    })?;
    Ok((201, shown(resource, call.metadata_only, &object)))
}

/// Checks that UID and resource version of the request are those of the object.
fn check_preconditions(call: &Call, key: &Key, live: &Value) -> Result<(), Failure> {
    let resource = &*call.resource;
    let (uid, version) = (text(&call.body, "uid"), text(&call.body, "resourceVersion"));
    if !uid.is_empty() && uid != text(live, "uid") {
        return Err(match call.verb {
            Verb::Update => {
                Failure::precondition(resource, &key.0, &key.1, "UID", uid, text(live, "uid"))
            }
            _ => Failure::other_uid(resource, &key.1, uid),
        });
    }
    if !version.is_empty() && version != text(live, "resourceVersion") {
        return Err(Failure::modified(resource, &key.1));
    }
    if call.verb == Verb::Update && version.is_empty() && !resource.unconditional {
        return Err(Failure::version_required(resource, &key.1));
    }
    Ok(())
}

/// The object that the request describes.
fn patched(call: &Call, live: &Value, now: &Value) -> Result<Value, Failure> {
    let resource = &*call.resource;
    let mut new = live.clone();
    match call.verb {
        Verb::Merge => patch::merge(&mut new, &call.body),
        Verb::Strategic if resource.custom => {
            let message = "the body of the request was in an unknown format - accepted media types include: \
                application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
            let mut failure = Failure::bad_request(message);
            (failure.code, failure.reason) = (415, "UnsupportedMediaType");
            return Err(failure);
        }
        Verb::Strategic => patch::strategic(&mut new, &call.body)?,
        Verb::Apply => {
            let mut configuration = call.body.clone();
            if let Some(fields) = configuration.as_object_mut() {
                let keeps = |name: &String| match call.subresource.as_str() {
                    "status" => name != "spec" && (name != "metadata" || !resource.custom),
                    _ => name != "status" || !resource.has_status,
                };
                fields.retain(|name, _| keeps(name));
            }
            let force = call.query("force") == Some("true");
            new = managers::apply(resource, live, &configuration, &manager(call), force, now)?;
        }
        _ => new = call.body.clone(),
    }
    Ok(new)
}

/// The fields that only the server writes.
fn keep_system_fields(resource: &Resource, live: &Value, new: &mut Value) {
    new["apiVersion"] = resource.api_version().into();
    new["kind"] = resource.kind.clone().into();
    let metadata = object_at(new, "metadata");
    for name in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "generation",
        "deletionGracePeriodSeconds",
        "selfLink",
    ] {
        match live["metadata"].get(name) {
            Some(value) => metadata.insert(name.to_owned(), value.clone()),
            None => metadata.remove(name),
        };
    }
}

/// Retains the fields that the subresource, or the main resource, cannot change.
fn keep_other_parts(call: &Call, live: &Value, new: &mut Value) {
    let resource = &*call.resource;
    let mut keep = |name: &str| match (live.get(name), new.as_object_mut()) {
        (Some(value), Some(new)) => drop(new.insert(name.to_owned(), value.clone())),
        (None, Some(new)) => drop(new.remove(name)),
        _ => {}
    };
    match call.subresource.as_str() {
        "status" => {
            keep("spec");
            if resource.custom {
                keep("metadata");
            }
        }
        "resize" => {
            keep("status");
            keep("metadata");
        }
        _ if resource.has_status => keep("status"),
        _ => {}
    }
}

/// `POST` of a pod's binding, which sets the pod's node.
pub fn bind(state: &mut State, call: &Call) -> Result<Answer, Failure> {
    let (resource, key) = (&*call.resource, call.key());
    let pod = state
        .store
        .get(resource, &key)
        .ok_or_else(|| Failure::not_found(resource, &key.1))?;
    let uid = text(&call.body, "uid");
    let mut new = pod.value.clone();
    let failed = |why: &str| Failure::conflict(&binding(resource), &key.1, why);
    if !uid.is_empty() && uid != text(&new, "uid") {
        return Err(Failure::precondition(
            resource,
            &key.0,
            &key.1,
            "UID",
            uid,
            text(&new, "uid"),
        ));
    }
    if new["metadata"]["deletionTimestamp"].is_string() {
        return Err(failed(&format!(
            "pod {} is being deleted, cannot be assigned to a host",
            key.1
        )));
    }
    if let Some(node) = new["spec"]["nodeName"].as_str() {
        return Err(failed(&format!(
            "pod {} is already assigned to node {node:?}",
            key.1
        )));
    }
    new["spec"]["nodeName"] = call.body["target"]["name"].clone();
    let scheduled = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": state.time(),
    });
    match new["status"]["conditions"].as_array_mut() {
        Some(conditions) => {
            conditions.retain(|condition| condition["type"] != "PodScheduled");
            conditions.push(scheduled);
        }
        None => new["status"]["conditions"] = json!([scheduled]),
    }
    state.store.put(resource, key, new);
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok((201, status.to_string().into_bytes()))
}

fn binding(pods: &Resource) -> Resource {
    Resource {
        plural: "pods/binding".to_owned(),
        ..pods.clone()
    }
}

/// `DELETE` of an object.
pub fn delete(state: &mut State, call: &Call) -> Result<Answer, Failure> {
    let (resource, key) = (&*call.resource, call.key());
    if resource.kind == "Namespace" {
        return Err(Failure::unknown("deletion of a namespace"));
    }
    if call.is_dry_run() {
        return Err(Failure::unknown("dry run of a deletion"));
    }
    let live = state
        .store
        .get(resource, &key)
        .ok_or_else(|| Failure::not_found(resource, &key.1))?;
    let wanted = &call.body["preconditions"];
    for (name, field) in [("UID", "uid"), ("ResourceVersion", "resourceVersion")] {
        if let Some(given) = wanted[field]
            .as_str()
            .filter(|given| *given != text(&live.value, field))
        {
            return Err(Failure::delete_precondition(
                resource,
                &key.1,
                name,
                given,
                text(&live.value, field),
            ));
        }
    }
    let policy = call.body["propagationPolicy"]
        .as_str()
        .or(call.query("propagationPolicy"));
    let mut new = live.value.clone();
    match policy {
        None | Some("Background") => {}
        Some("Foreground") => add_finalizer(&mut new, "foregroundDeletion"),
        Some("Orphan") => add_finalizer(&mut new, "orphan"),
        Some(other) => return Err(Failure::unknown(format!("propagationPolicy {other}"))),
    }
    let given = call.body["gracePeriodSeconds"].as_i64();
    let given = given.or_else(|| {
        call.query("gracePeriodSeconds")
            .and_then(|seconds| seconds.parse().ok())
    });
    let has_finalizer = new["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|finalizers| !finalizers.is_empty());
    let is_pod = resource.kind == "Pod" && !resource.custom;
    let is_marked = mark(
        state,
        &mut new,
        if is_pod { Some(given) } else { None },
        has_finalizer,
    );
    let grace = new["metadata"]["deletionGracePeriodSeconds"]
        .as_i64()
        .unwrap_or_default();
    let object = match (is_marked, has_finalizer || is_pod && grace > 0) {
        (true, true) => state.store.put(resource, key, new),
        (false, true) => live,
        (is_marked, false) => {
            if is_marked && is_pod {
                // The deletion timestamp is an update of its own.
                new = state.store.put(resource, key.clone(), new).value.clone();
            }
            let uid = new["metadata"]["uid"].clone();
            let last = state.store.remove(resource, key.clone(), new);
            if !resource.returns_deleted {
                return Ok((
                    200,
                    deleted(resource, &key.1, &uid).to_string().into_bytes(),
                ));
            }
            last
        }
    };
    Ok((200, shown(resource, call.metadata_only, &object)))
}

fn add_finalizer(object: &mut Value, finalizer: &str) {
    let finalizers = &mut object["metadata"]["finalizers"];
    match finalizers.as_array_mut() {
        Some(finalizers) if finalizers.iter().any(|there| there == finalizer) => {}
        Some(finalizers) => finalizers.push(finalizer.into()),
        None => *finalizers = json!([finalizer]),
    }
}

/// Sets the deletion timestamp of an object. `grace` is `Some` for pods, with the requested seconds. Returns whether
/// anything has changed.
fn mark(
    state: &State,
    object: &mut Value,
    grace: Option<Option<i64>>,
    has_finalizer: bool,
) -> bool {
    let before = object["metadata"]["deletionGracePeriodSeconds"].as_i64();
    let is_deleting = object["metadata"]["deletionTimestamp"].is_string();
    let seconds = match (grace, is_deleting) {
        (None, true) => return false,
        (None, false) if !has_finalizer => return false,
        (None, false) => 0,
        (Some(given), true) => match given {
            Some(given) if given < before.unwrap_or_default() => given,
            _ => return false,
        },
        (Some(given), false) => pod_grace(object, given),
    };
    let time = match (
        is_deleting,
        object["metadata"]["deletionTimestamp"].as_str(),
    ) {
        (true, Some(time)) => super::clock::shifted(time, seconds - before.unwrap_or_default()),
        _ => state.time_in(seconds),
    };
    let generation = object["metadata"]["generation"].as_i64();
    if let Some(generation) = generation.filter(|_| !is_deleting) {
        object["metadata"]["generation"] = (generation + 1).into();
    }
    object["metadata"]["deletionTimestamp"] = time.into();
    object["metadata"]["deletionGracePeriodSeconds"] = seconds.into();
    true
}

/// The grace period of a pod: 0 if it has no node or has finished.
fn pod_grace(pod: &Value, given: Option<i64>) -> i64 {
    let has_ended = matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    );
    if pod["spec"]["nodeName"].is_null() || has_ended {
        return 0;
    }
    given
        .or_else(|| pod["spec"]["terminationGracePeriodSeconds"].as_i64())
        .unwrap_or(30)
        .max(0)
}
