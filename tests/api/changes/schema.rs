//! The fields of a VM by its schema, also in lists: their paths, their possible values, and whether they were changed.

use crate::changes::pick::{Change, Random};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// A leaf field below `spec`.
pub struct Field {
    /// Such as `spec.vm.disks[].bootindex`.
    pub path: String,
    steps: Vec<Step>,
    schema: Value,
}

#[derive(Clone)]
enum Step {
    Name(String),
    /// Each item of a list.
    Items,
}

/// All fields of the definition except the restart request, which the test itself uses.
pub fn fields() -> Vec<Field> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds/vms.vmoperator.jdrupes.org.yaml");
    let crd: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut fields = Vec::new();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    fields_of(schema, "spec", &[], &mut fields);
    fields.retain(|field: &Field| field.path != "spec.vm.restartRequest");
    fields
}

fn fields_of(schema: &Value, path: &str, steps: &[Step], fields: &mut Vec<Field>) {
    let below = |step: Step| [steps, &[step]].concat();
    if let Some(properties) = schema["properties"].as_object() {
        for (name, schema) in properties {
            fields_of(
                schema,
                &format!("{path}.{name}"),
                &below(Step::Name(name.clone())),
                fields,
            );
        }
    } else if schema["items"].is_object() {
        fields_of(
            &schema["items"],
            &format!("{path}[]"),
            &below(Step::Items),
            fields,
        );
    } else {
        fields.push(Field {
            path: path.to_owned(),
            steps: steps.to_vec(),
            schema: schema.clone(),
        });
    }
}

/// The fields that no change reaches: [`crate::changes::pick`] removes their parents, because a claim with them is never bound.
pub const UNREACHABLE: &[&str] = &[
    "spec.vm.disks[].volumeClaimTemplate.spec.dataSource.apiGroup",
    "spec.vm.disks[].volumeClaimTemplate.spec.dataSource.kind",
    "spec.vm.disks[].volumeClaimTemplate.spec.dataSource.name",
    "spec.vm.disks[].volumeClaimTemplate.spec.dataSourceRef.apiGroup",
    "spec.vm.disks[].volumeClaimTemplate.spec.dataSourceRef.kind",
    "spec.vm.disks[].volumeClaimTemplate.spec.dataSourceRef.name",
    "spec.vm.disks[].volumeClaimTemplate.spec.dataSourceRef.namespace",
];

impl Field {
    /// Whether one of the paths is at or below this field.
    pub fn is_among(&self, places: &BTreeSet<String>) -> bool {
        places.iter().any(|place| {
            let rest = place.strip_prefix(&self.path);
            rest.is_some_and(|rest| rest.is_empty() || !rest.starts_with(char::is_alphanumeric))
        })
    }
}

/// Pointers to all values at those steps.
fn pointers(value: &Value, steps: &[Step], at: &str, found: &mut Vec<String>) {
    match steps.split_first() {
        None => found.push(at.to_owned()),
        Some((Step::Name(name), rest)) => {
            if let Some(value) = value.get(name).filter(|value| !value.is_null()) {
                pointers(
                    value,
                    rest,
                    &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")),
                    found,
                );
            }
        }
        Some((Step::Items, rest)) => {
            let items = value.as_array().into_iter().flatten().enumerate();
            items.for_each(|(i, item)| pointers(item, rest, &format!("{at}/{i}"), found));
        }
    }
}

fn all(value: &Value, steps: &[Step]) -> Vec<String> {
    let mut found = Vec::new();
    pointers(value, steps, "", &mut found);
    found
}

impl Field {
    /// Possible values: those in any VM, and those in its schema.
    fn values(&self, specs: &[Value]) -> Vec<Value> {
        let there = specs.iter().flat_map(|spec| {
            let pointers = all(spec, &self.steps);
            pointers
                .into_iter()
                .filter_map(|pointer| spec.pointer(&pointer).cloned())
        });
        let mut values: Vec<Value> = there.collect();
        match self.schema["type"].as_str() {
            _ if self.schema["enum"].is_array() => {
                values.extend(self.schema["enum"].as_array().cloned().unwrap())
            }
            Some("boolean") => values.extend([json!(true), json!(false)]),
            Some("integer") => values.extend([0, 1, 2, 1024].map(Value::from)),
            Some("string") if values.is_empty() => values.push(json!("a")),
            Some("object") if values.is_empty() => values.push(json!({"a": "b"})),
            _ => {}
        }
        let mut seen = BTreeSet::new();
        values.retain(|value| seen.insert(value.to_string()));
        values
    }

    /// A running VM in which only this field gets another value or is removed; in a list, the field of one item. `None`
    /// if no VM has a place for it.
    pub fn change(&self, specs: &[Value], random: &mut Random) -> Option<Change> {
        let (last, parents) = self.steps.split_last()?;
        let from = random.below(specs.len());
        let mut order = specs.iter().cycle().skip(from).take(specs.len());
        let (mut before, places) = order.find_map(|spec| {
            let places = all(spec, parents);
            (!places.is_empty()).then(|| (spec.clone(), places))
        })?;
        before["vm"]["state"] = "Running".into();
        let place = &places[random.below(places.len())];
        let values = self.values(specs);
        for _ in 0..50 {
            let value = values.get(random.below(values.len() + 1));
            let mut after = before.clone();
            let at = set_at(after.pointer_mut(place)?, last, value, random);
            if after != before {
                let text = value.map_or("removed".to_owned(), Value::to_string);
                let fields = vec![format!("spec{}{at} = {text:.60}", place.replace('/', "."))];
                return Some(Change {
                    before,
                    after,
                    fields,
                });
            }
        }
        None
    }
}

/// Sets or removes the value at that path. Returns the path.
fn set_at(parent: &mut Value, last: &Step, value: Option<&Value>, random: &mut Random) -> String {
    match (last, parent) {
        (Step::Name(name), Value::Object(fields)) => {
            match value {
                Some(value) => drop(fields.insert(name.clone(), value.clone())),
                None => drop(fields.remove(name)),
            }
            format!(".{name}")
        }
        (Step::Items, Value::Array(items)) => {
            let i = random.below(items.len() + 1);
            match value {
                Some(value) if i == items.len() => items.push(value.clone()),
                Some(value) => items[i] = value.clone(),
                None if i < items.len() => drop(items.remove(i)),
                None => {}
            }
            format!(".{i}")
        }
        _ => String::new(),
    }
}

/// The fields that a run with that many changes reaches, without a cluster.
#[test]
fn changes_cover_every_field_and_each_item_of_lists() {
    let (seed, fields) = (1, fields());
    let specs = crate::changes::pick::specs(seed);
    // A day's number of changes does not divide a round, so that a round begins at any number.
    for first in [
        0,
        7 * crate::changes::SLICE,
        20_000 * crate::changes::SLICE + 1,
    ] {
        let pick = |count: u64| -> Vec<Change> {
            (first..first + count)
                .map(|n| crate::changes::pick::change(&specs, &fields, seed, n))
                .collect()
        };
        let changes = pick(2 * fields.len() as u64);
        let places = changes.iter().flat_map(Change::places).collect();
        let missed = fields
            .iter()
            .filter(|field| !field.is_among(&places))
            .map(|field| field.path.as_str());
        assert_eq!(
            missed.collect::<Vec<_>>(),
            UNREACHABLE,
            "in the round from change {first} on"
        );
        // A change of one item of a list and of nothing else is rare, but part of each round.
        let round = pick(crate::changes::ROUND);
        let alone = |path: &str| round.iter().any(|change| change.places().iter().eq([path]));
        for path in [
            "spec.vm.disks[].bootindex",
            "spec.vm.networks[].tap.mac",
            "spec.permissions[].may[]",
        ] {
            assert!(alone(path), "{path} is never changed alone");
        }
        let size = "volumeClaimTemplate.spec.resources.requests";
        let size = fields
            .iter()
            .find(|field| field.path.ends_with(size))
            .unwrap();
        let sizes = |spec: &Value| {
            all(spec, &size.steps)
                .iter()
                .map(|at| spec.pointer(at).cloned())
                .collect::<Vec<_>>()
        };
        assert!(
            changes
                .iter()
                .any(|change| sizes(&change.before) != sizes(&change.after)),
            "no claim ever grows"
        );
    }
    assert!(
        2 * fields.len() as u64 <= crate::changes::ROUND,
        "{} fields do not fit in a round",
        fields.len()
    );
}

/// The run itself asserts this only for its own changes.
#[test]
fn generated_change_changes_the_selected_field() {
    let (seed, fields) = (1, fields());
    let specs = crate::changes::pick::specs(seed);
    for n in 0..2 * fields.len() as u64 {
        let Some(field) = crate::changes::pick::field_of_change(&fields, seed, n) else {
            continue;
        };
        let places = crate::changes::pick::change(&specs, &fields, seed, n).places();
        let is_reachable = !UNREACHABLE.contains(&field.path.as_str());
        assert_eq!(
            field.is_among(&places),
            is_reachable,
            "change {n}, {}: {places:?}",
            field.path
        );
    }
}
