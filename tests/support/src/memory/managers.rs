//! Field managers: the ownership of an object's fields, and server-side apply.

use super::fields::{self, Set};
use super::resource::Resource;
use super::status::Failure;
use serde_json::{Value, json};

/// The manager of a write, its operation and its subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    pub name: String,
    pub is_apply: bool,
    pub subresource: String,
    pub version: String,
}

#[derive(Clone, Debug)]
struct Entry {
    manager: Manager,
    time: Value,
    set: Set,
}

fn read(object: &Value) -> Vec<Entry> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let entry = |entry: &Value| Entry {
        manager: Manager {
            name: text(&entry["manager"]),
            is_apply: entry["operation"] == "Apply",
            subresource: text(&entry["subresource"]),
            version: text(&entry["apiVersion"]),
        },
        time: entry["time"].clone(),
        set: Set::read(&entry["fieldsV1"]),
    };
    object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .map(entry)
        .collect()
}

fn write(object: &mut Value, mut entries: Vec<Entry>) {
    entries.retain(|entry| !entry.set.is_empty());
    let order = |entry: &Entry| {
        let Manager {
            name,
            is_apply,
            subresource,
            version,
        } = entry.manager.clone();
        (
            !is_apply,
            entry.time.to_string(),
            name,
            version,
            subresource,
        )
    };
    entries.sort_by_key(order);
    let written = entries.into_iter().map(|entry| {
        let mut written = json!({
            "manager": entry.manager.name, "operation": if entry.manager.is_apply { "Apply" } else { "Update" },
            "apiVersion": entry.manager.version, "time": entry.time, "fieldsType": "FieldsV1",
            "fieldsV1": entry.set.write(),
        });
        if !entry.manager.subresource.is_empty() {
            written["subresource"] = entry.manager.subresource.into();
        }
        written
    });
    let written: Vec<Value> = written.collect();
    let Some(metadata) = object["metadata"].as_object_mut() else {
        return;
    };
    match written.is_empty() {
        true => metadata.remove("managedFields"),
        false => metadata.insert("managedFields".to_owned(), written.into()),
    };
}

/// Fields of the metadata that have no owner.
const WITHOUT_OWNER: [&str; 11] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "generation",
    "managedFields",
    "resourceVersion",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
];

/// A copy of the object without these fields.
fn without(object: &Value, fields: &[&str], metadata: &[&str]) -> Value {
    let copy = |value: &Value, omitted: &[&str]| match value {
        Value::Object(map) => map
            .iter()
            .filter(|(name, _)| !omitted.contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
        other => other.clone(),
    };
    let Value::Object(map) = object else {
        return object.clone();
    };
    let part = |(name, value): (&String, &Value)| match name.as_str() {
        "metadata" => (name.clone(), copy(value, metadata)),
        _ => (name.clone(), value.clone()),
    };
    map.iter()
        .filter(|(name, _)| !fields.contains(&name.as_str()))
        .map(part)
        .collect()
}

/// The object without fields that have no owner.
fn owned_part(object: &Value) -> Value {
    without(object, &["apiVersion", "kind"], &WITHOUT_OWNER)
}

/// `metadata` itself has no owner.
fn without_metadata(mut set: Set) -> Set {
    if let Some(metadata) = set.below.get_mut("f:metadata") {
        metadata.own = false;
    }
    set.own = false;
    set
}

/// Assigns the fields that an update has changed to its manager.
pub fn update(resource: &Resource, live: &Value, new: &mut Value, manager: &Manager, now: &Value) {
    let found = fields::compare(
        &resource.schema,
        Some(&owned_part(live)),
        Some(&owned_part(new)),
    );
    let changed = without_metadata(found.changed);
    let mut entries = read(live);
    for entry in &mut entries {
        entry.set = std::mem::take(&mut entry.set)
            .without(&changed)
            .without(&found.removed);
    }
    if !changed.is_empty() {
        assign(&mut entries, manager, |set| set.union(&changed), now);
    }
    write(new, entries);
}

/// Assigns fields to a manager.
fn assign(entries: &mut Vec<Entry>, manager: &Manager, set: impl FnOnce(Set) -> Set, now: &Value) {
    let is_same = |entry: &Entry| {
        let version = if manager.is_apply {
            entry.manager.version.clone()
        } else {
            manager.version.clone()
        };
        entry.manager
            == Manager {
                version,
                ..manager.clone()
            }
    };
    let before = entries
        .iter()
        .position(is_same)
        .map(|n| entries.remove(n).set)
        .unwrap_or_default();
    entries.push(Entry {
        manager: manager.clone(),
        time: now.clone(),
        set: set(before),
    });
}

/// Applies a configuration. Returns the resulting object with its managed fields.
pub fn apply(
    resource: &Resource,
    live: &Value,
    configuration: &Value,
    manager: &Manager,
    force: bool,
    now: &Value,
) -> Result<Value, Failure> {
    let configuration = owned_part(configuration);
    let mut entries = read(live);
    let set = without_metadata(fields::of(&resource.schema, &configuration));
    let is_same = |entry: &Entry| {
        entry.manager
            == Manager {
                version: entry.manager.version.clone(),
                ..manager.clone()
            }
    };
    let mine = entries.iter().position(is_same);
    let last = mine
        .and_then(|n| entries.get(n))
        .map(|entry| entry.set.clone())
        .unwrap_or_default();
    let mut new = live.clone();
    fields::merge(&resource.schema, &mut new, &configuration);
    let others = entries.iter().filter(|entry| !is_same(entry));
    let owned = others
        .clone()
        .fold(set.clone(), |owned, entry| owned.union(&entry.set));
    fields::remove(&resource.schema, &mut new, &last, &owned);
    let found = fields::compare(
        &resource.schema,
        Some(&owned_part(live)),
        Some(&owned_part(&new)),
    );
    let changed = without_metadata(found.changed);
    let conflict = |entry: &Entry| {
        let paths = entry.set.intersection(&changed).paths();
        let manager = shown(entry);
        paths
            .into_iter()
            .map(move |path| (manager.clone(), path))
            .collect::<Vec<_>>()
    };
    let conflicts: Vec<(String, String)> = others.flat_map(conflict).collect();
    if !force && !conflicts.is_empty() {
        return Err(Failure::apply_conflict(&conflicts));
    }
    for entry in entries.iter_mut().filter(|entry| !is_same(entry)) {
        entry.set = std::mem::take(&mut entry.set)
            .without(&changed)
            .without(&found.removed);
    }
    let is_same_object = changed.is_empty() && found.removed.is_empty();
    let time = match mine.and_then(|n| entries.get(n)) {
        Some(entry) if is_same_object && entry.set == set => entry.time.clone(),
        _ => now.clone(),
    };
    assign(&mut entries, manager, |_| set, &time);
    write(&mut new, entries);
    Ok(new)
}

/// The manager in the format of messages.
fn shown(entry: &Entry) -> String {
    let Manager {
        name,
        is_apply,
        subresource,
        version,
    } = &entry.manager;
    let with = if subresource.is_empty() {
        String::new()
    } else {
        format!(" with subresource {subresource:?}")
    };
    match is_apply {
        true => format!("{name:?}{with}"),
        false => format!("{name:?}{with} using {version}"),
    }
}

/// Whether two objects differ by more than the times of their managed fields.
pub fn differ(a: &Value, b: &Value) -> bool {
    if a["metadata"]["managedFields"] != b["metadata"]["managedFields"] {
        let managed = |object: &Value| {
            read(object)
                .into_iter()
                .map(|e| (e.manager, e.set))
                .collect::<Vec<_>>()
        };
        let (a, b) = (managed(a), managed(b));
        if a.len() != b.len() || a.iter().any(|m| !b.contains(m)) {
            return true;
        }
    }
    let rest = |object| without(object, &[], &["managedFields", "resourceVersion"]);
    rest(a) != rest(b)
}
