//! Properties of many generated VMs that the Java VM-Operator can run.

use super::vm_of;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use support::generator::specs;
use vm_operator::controllers::vm::objects::{self, Objects};
use vm_operator::controllers::vm::plan::plan;
use vm_operator::settings::{LoadBalancerService, Reconciler};

const SEED: [u8; 32] = *b"the same for everyone, every day";
const COUNT: usize = 500;

/// Fields that the Java VM-Operator can run and this version cannot. Each is in `docs/deviations.md`.
pub const BLOCKING_FIELDS: &[&str] = &["spec.image"];

/// A configuration with which a VM has as many objects as possible.
pub fn settings() -> Reconciler {
    let load_balancer_service = LoadBalancerService::On {
        labels: BTreeMap::new(),
        annotations: [("a".to_owned(), "b".to_owned())].into(),
    };
    Reconciler {
        load_balancer_service,
        ..Reconciler::default()
    }
}

/// The objects of a VM with that spec, or the blocking field.
pub fn made(spec: Value) -> Result<Objects, String> {
    plan(&vm_of(spec), &settings())
        .map(|plan| objects::build(&plan))
        .map_err(|invalid| invalid.subject)
}

/// The object as text, with the fields of each map in reverse order.
fn backwards(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().rev().map(|(name, value)| {
                format!("{}:{}", Value::from(name.as_str()), backwards(value))
            });
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => format!(
            "[{}]",
            items.iter().map(backwards).collect::<Vec<_>>().join(",")
        ),
        scalar => scalar.to_string(),
    }
}

/// The spec without nulls, as the API server returns it. Fields without a schema and the maps of a service keep theirs.
fn as_stored(mut value: Value, path: &str) -> Value {
    let free = ["userData", "networkConfig", "loadBalancerService"]
        .iter()
        .any(|field| path.contains(field));
    match &mut value {
        Value::Object(fields) => {
            fields.retain(|_, value| free || !value.is_null());
            for (name, value) in fields {
                *value = as_stored(value.take(), &format!("{path}.{name}"));
            }
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| *item = as_stored(item.take(), path)),
        _ => {}
    }
    value
}

pub fn stored() -> impl Iterator<Item = Value> {
    specs(SEED, COUNT)
        .into_iter()
        .map(|spec| as_stored(spec, ""))
}

#[test]
fn java_specs_are_run_or_rejected_for_a_known_field() {
    let mut blocking_fields = BTreeSet::new();
    let mut run = 0;
    for spec in stored() {
        match made(spec.clone()) {
            Ok(objects) => {
                run += 1;
                let unknown =
                    vm_operator::runner::check(&objects.config_map.data.unwrap()["config.yaml"]);
                let unknown =
                    unknown.unwrap_or_else(|why| panic!("the runner refuses {spec}: {why}"));
                assert_eq!(
                    unknown,
                    Vec::<String>::new(),
                    "the runner does not know what {spec} has become"
                );
            }
            Err(field) => {
                blocking_fields.insert(field.replace(|c: char| c.is_ascii_digit(), ""));
            }
        }
    }
    assert!(run > COUNT / 10, "only {run} of {COUNT} can be run");
    assert_eq!(
        blocking_fields,
        BLOCKING_FIELDS
            .iter()
            .map(|field| (*field).to_owned())
            .collect()
    );
}

#[test]
fn the_same_vm_gives_the_same_bytes_in_whatever_order_its_fields_come() {
    for spec in stored() {
        let turned: Value = serde_json::from_str(&backwards(&spec)).unwrap();
        assert_eq!(made(spec.clone()), made(turned), "{spec}");
    }
}

#[test]
fn every_field_of_the_reference_is_generated() {
    let mut seen = BTreeSet::new();
    for spec in specs(SEED, COUNT) {
        collect("spec", &spec, &mut seen);
    }
    // The subtrees that Kubernetes defines are represented by some of their fields.
    let subtrees = [
        "spec.affinity",
        ".dataSource",
        ".dataSourceRef",
        ".selector",
    ];
    for leaf in super::fields::leaves().keys().filter(|leaf| {
        !super::fields::OURS
            .iter()
            .any(|ours| leaf.starts_with(ours))
    }) {
        let known = subtrees.iter().any(|subtree| leaf.contains(subtree));
        // The keys of a map are arbitrary.
        let place = leaf.strip_suffix("{}").unwrap_or(leaf);
        assert!(
            known || seen.iter().any(|path: &String| path.starts_with(place)),
            "no VM has {leaf}"
        );
    }
}

pub fn collect(path: &str, value: &Value, seen: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(name, value)| collect(&format!("{path}.{name}"), value, seen)),
        Value::Array(items) => items
            .iter()
            .for_each(|item| collect(&format!("{path}[]"), item, seen)),
        Value::Null => {}
        _ => drop(seen.insert(path.to_owned())),
    }
}
