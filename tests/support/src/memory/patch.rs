//! JSON merge patches and strategic merge patches.

use super::status::Failure;
use serde_json::{Map, Value};

/// Applies a JSON merge patch (RFC 7396).
pub fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(fields) = target.as_object_mut() else {
        return;
    };
    for (name, value) in patch {
        match value {
            Value::Null => drop(fields.remove(name)),
            value => merge(fields.entry(name.as_str()).or_insert(Value::Null), value),
        }
    }
}

/// The key by which a strategic merge patch identifies the items of a list, by the names of the list and its parent.
fn key(parent: &str, name: &str) -> Option<&'static str> {
    match (parent, name) {
        (
            _,
            "containers"
            | "initContainers"
            | "ephemeralContainers"
            | "volumes"
            | "env"
            | "imagePullSecrets",
        ) => Some("name"),
        (_, "volumeMounts") => Some("mountPath"),
        (_, "volumeDevices") => Some("devicePath"),
        (_, "ownerReferences") => Some("uid"),
        (_, "conditions") => Some("type"),
        (_, "podIPs" | "hostIPs" | "hostAliases") => Some("ip"),
        (_, "topologySpreadConstraints") => Some("topologyKey"),
        ("spec", "ports") => Some("port"),
        (_, "ports") => Some("containerPort"),
        _ => None,
    }
}

/// Applies a strategic merge patch.
pub fn strategic(target: &mut Value, patch: &Value) -> Result<(), Failure> {
    strategic_below("", target, patch)
}

fn strategic_below(parent: &str, target: &mut Value, patch: &Value) -> Result<(), Failure> {
    let Some(patch) = patch.as_object() else {
        target.clone_from(patch);
        return Ok(());
    };
    if let Some(directive) = patch.keys().find(|name| name.starts_with('$')) {
        return Err(Failure::unknown(format!(
            "strategic merge patch with {directive}"
        )));
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(fields) = target.as_object_mut() else {
        return Ok(());
    };
    for (name, value) in patch {
        match (value, key(parent, name)) {
            (Value::Null, _) => drop(fields.remove(name)),
            (Value::Array(items), Some(key)) => {
                let present = fields
                    .entry(name.as_str())
                    .or_insert_with(|| Value::Array(Vec::new()));
                strategic_items(name, key, present, items)?;
            }
            // A merged list of scalars.
            (Value::Array(items), None) if name == "finalizers" => {
                let present = fields
                    .entry(name.as_str())
                    .or_insert_with(|| Value::Array(Vec::new()));
                let Some(present) = present.as_array_mut() else {
                    continue;
                };
                items.iter().for_each(|item| {
                    if !present.contains(item) {
                        present.push(item.clone())
                    }
                });
            }
            (value, _) => strategic_below(
                name,
                fields.entry(name.as_str()).or_insert(Value::Null),
                value,
            )?,
        }
    }
    Ok(())
}

fn strategic_items(
    name: &str,
    key: &str,
    present: &mut Value,
    items: &[Value],
) -> Result<(), Failure> {
    let Some(present) = present.as_array_mut() else {
        return Ok(());
    };
    for item in items {
        match (
            item["$patch"].as_str(),
            present.iter().position(|there| there[key] == item[key]),
        ) {
            (Some("delete"), at) => drop(at.map(|at| present.remove(at))),
            (_, Some(at)) => strategic_below(name, &mut present[at], item)?,
            (_, None) => {
                let mut new = Value::Null;
                strategic_below(name, &mut new, item)?;
                present.push(new);
            }
        }
    }
    Ok(())
}
