//! The pages of `docs/reference/` have every condition, label and annotation. The compiler guarantees that it has every reason.

use super::generated::{made, stored};
use super::json_of;
use serde_json::Value;
use std::collections::BTreeSet;
use strum::VariantArray;
use vm_operator::api::vm::conditions::{self, ConditionReason, ReadyReason};
use vm_operator::api::vm::names;
use vm_operator::controllers::vm::objects::Objects;

#[test]
fn every_condition_has_a_reason() {
    let described: BTreeSet<&str> = ConditionReason::ALL
        .iter()
        .flat_map(|reason| reason.conditions())
        .copied()
        .collect();
    let mut all: BTreeSet<&str> = conditions::TYPES.iter().map(|(name, _)| *name).collect();
    // Its reasons have their own list, in docs/troubleshooting.md.
    assert!(all.remove(conditions::READY) && ReadyReason::VARIANTS.len() > 20);
    assert_eq!(described, all);
}

/// The names in `metadata.labels` and `metadata.annotations`, at any depth.
fn collect_names(value: &Value, found: &mut BTreeSet<String>) {
    for field in ["/metadata/labels", "/metadata/annotations"] {
        let names = value.pointer(field).and_then(Value::as_object);
        found.extend(names.into_iter().flatten().map(|(name, _)| name.clone()));
    }
    match value {
        Value::Object(fields) => fields
            .values()
            .for_each(|value| collect_names(value, found)),
        Value::Array(items) => items.iter().for_each(|value| collect_names(value, found)),
        _ => {}
    }
}

#[test]
fn every_label_and_annotation_of_created_objects_is_documented() {
    let mut found = BTreeSet::new();
    for spec in stored().take(100) {
        let Ok(Objects {
            config_map,
            runner_data,
            disks,
            display_secret,
            service,
            pod,
            fetches,
            ..
        }) = made(spec)
        else {
            continue;
        };
        let fetches = fetches
            .into_iter()
            .map(|fetch| fetch.pod)
            .collect::<Vec<_>>();
        let objects = (
            config_map,
            runner_data,
            disks,
            display_secret,
            service,
            pod,
            fetches,
        );
        collect_names(&json_of(&objects), &mut found);
    }
    let of_ours = names::ANNOTATION_PREFIXES
        .into_iter()
        .chain(["app.kubernetes.io/"]);
    let of_ours: Vec<&str> = of_ours.collect();
    found.retain(|name| of_ours.iter().any(|prefix| name.starts_with(prefix)));
    assert!(found.len() > 8, "{found:?}");
    let documented: BTreeSet<&str> = names::LABELS
        .iter()
        .chain(names::ANNOTATIONS)
        .map(|(name, _)| *name)
        .collect();
    let missing: Vec<_> = found
        .iter()
        .filter(|name| !documented.contains(name.as_str()))
        .collect();
    assert!(
        missing.is_empty(),
        "not in the lists of src/api/vm/names.rs: {missing:?}"
    );
}
