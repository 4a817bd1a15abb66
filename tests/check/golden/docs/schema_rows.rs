//! The fields of an object, from its definition's schema.

use super::{anchor, cell};
use serde_json::Value;
use std::fmt::Write;

/// Objects that Kubernetes defines. Its documentation describes their fields.
const OF_KUBERNETES: &[&str] = &[
    "/Reconciler.podDefaults.imagePullSecrets[]",
    "/Reconciler.podDefaults.tolerations[]",
    "spec.affinity",
    "spec.imagePullSecrets[]",
    "spec.tolerations[]",
    "spec.topologySpreadConstraints[]",
    "spec.vm.disks[].volumeClaimTemplate.spec.dataSource",
    "spec.vm.disks[].volumeClaimTemplate.spec.dataSourceRef",
    "spec.vm.disks[].volumeClaimTemplate.spec.selector",
    "status.conditions[]",
];
/// A longer default does not help in a table.
const LONGEST_DEFAULT: usize = 80;

/// Rows of a table for all fields below that path: path, type, default, limits, description.
pub(super) fn rows(path: &str, schema: &Value) -> String {
    let mut text = String::new();
    walk(path, schema, false, &mut text);
    text
}

fn walk(path: &str, schema: &Value, required: bool, text: &mut String) {
    let of_kubernetes = OF_KUBERNETES.contains(&path);
    let (default, limits) = (default(schema), sentences(&limits(schema, required)));
    // The descriptions of Kubernetes refer to its code.
    let foreign =
        of_kubernetes && path.ends_with(']') || schema["x-kubernetes-int-or-string"] == true;
    let what = schema["description"]
        .as_str()
        .filter(|_| !foreign)
        .unwrap_or_default();
    // A list item or map value without a description.
    if !(what.is_empty() && limits.is_empty() && path.ends_with([']', '}'])) {
        let type_ = if of_kubernetes {
            "as in Kubernetes"
        } else {
            type_of(schema)
        };
        // An item of a list has no name of its own.
        let is_item = path.ends_with([']', '}']);
        let name = path.replace("[]", "").replace("{}", "");
        let anchor = Some(anchor(&name)).filter(|_| !is_item).unwrap_or_default();
        writeln!(
            text,
            "| {anchor}`{path}` | {type_} | {default} | {} | {} |",
            cell(&limits),
            cell(what)
        )
        .unwrap();
    }
    if of_kubernetes {
        return;
    }
    let is_required = |name: &str| {
        schema["required"]
            .as_array()
            .is_some_and(|all| all.iter().any(|n| n == name))
    };
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), field, is_required(name), text);
    }
    if schema["items"].is_object() {
        walk(&format!("{path}[]"), &schema["items"], false, text);
    }
    if schema["additionalProperties"].is_object() {
        walk(
            &format!("{path}{{}}"),
            &schema["additionalProperties"],
            false,
            text,
        );
    }
}

/// The texts as sentences.
fn sentences(texts: &[String]) -> String {
    let sentence = |text: &String| {
        let mut rest = text.chars();
        let first = rest.next();
        first
            .into_iter()
            .flat_map(char::to_uppercase)
            .chain(rest)
            .collect()
    };
    let sentences: Vec<String> = texts.iter().map(sentence).collect();
    sentences.join(". ")
}

fn type_of(schema: &Value) -> &str {
    match schema["type"].as_str() {
        Some("object") if schema["additionalProperties"].is_object() => "map",
        Some("array") => "list",
        Some(name) => name,
        None if schema["x-kubernetes-int-or-string"] == true => "integer or string",
        None => "any",
    }
}

fn default(schema: &Value) -> String {
    match &schema["default"] {
        Value::Null => String::new(),
        value if value.to_string().len() > LONGEST_DEFAULT => "see below".to_owned(),
        value => format!("`{value}`"),
    }
}

/// The API server's limits besides the type.
fn limits(schema: &Value, required: bool) -> Vec<String> {
    let mut limits: Vec<String> = required
        .then(|| "required".to_owned())
        .into_iter()
        .collect();
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values
            .iter()
            .filter_map(Value::as_str)
            .map(|value| format!("`{value}`"))
            .collect();
        limits.push(format!("one of {}", values.join(", ")));
    }
    let bounds = [
        ("minimum", "at least ", ""),
        ("maximum", "at most ", ""),
        ("maxLength", "at most ", " characters"),
        ("maxItems", "at most ", ""),
        ("maxProperties", "at most ", ""),
    ];
    for (key, before, after) in bounds {
        limits.extend(
            schema[key]
                .as_f64()
                .map(|bound| format!("{before}{bound}{after}")),
        );
    }
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        limits.extend(
            rule["message"]
                .as_str()
                .map(|message| format!("validation: “{message}”")),
        );
    }
    limits
}
