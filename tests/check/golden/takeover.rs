//! The tables of `docs/deviations.md` list exactly the differences between the objects of the Java VM-Operator and of
//! this operator.

use super::generated::{settings, stored};
use super::{json_of, reference_objects, root, vm_of};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use vm_operator::api::quantity::same_amount;
use vm_operator::api::vm::rules::RULES;
use vm_operator::controllers::vm::objects::{self, Objects};
use vm_operator::controllers::vm::plan::plan;

/// Parts of a pod that have a name of their own in the table. A disk's name is not in it.
const NAMED: &[&str] = &["config", "runner-data", "vmop-image-repository", "spice"];

/// The objects of a VM, by kind, with lists of named items as maps.
fn ours(spec: &Value) -> Option<BTreeMap<&'static str, Value>> {
    let plan = plan(&vm_of(spec.clone()), &settings()).ok()?;
    let Objects {
        image_repository: _,
        fetches: _,
        mut config_map,
        runner_data,
        disks,
        claim_changes: _,
        display_secret,
        service,
        pod,
        identity: _,
        stage: _,
    } = objects::build(&plan);
    let config = config_map
        .data
        .as_mut()
        .unwrap()
        .remove("config.yaml")
        .unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    Some(reference_objects::by_kind([
        ("ConfigMap", json_of(&config_map)),
        ("config.yaml", config["/Runner"].clone()),
        ("runner-data claim", json_of(&runner_data)),
        ("disk claim", json_of(&disks)),
        ("Secret", json_of(&display_secret)),
        ("Service", json_of(&service)),
        ("Pod", json_of(&objects::with_template_hash(pod))),
    ]))
}

/// The differences, as paths without names of disks and list indices.
fn differences(path: &str, one: &Value, two: &Value, found: &mut BTreeSet<String>) {
    match (one, two) {
        // Missing objects are compared field by field.
        (Value::Object(_), Value::Null) => {
            differences(path, one, &Value::Object(Map::new()), found)
        }
        (Value::Null, Value::Object(_)) => {
            differences(path, &Value::Object(Map::new()), two, found)
        }
        (Value::Object(a), Value::Object(b)) => {
            for name in a.keys().chain(b.keys()) {
                let value = |map: &Map<String, Value>| map.get(name).cloned().unwrap_or_default();
                let joined = if path.ends_with(' ') {
                    format!("{path}{name}")
                } else {
                    format!("{path}.{name}")
                };
                differences(&joined, &value(a), &value(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            // The Java VM-Operator has networks without names, in the same order.
            let has_names = !path.ends_with(" vm.network");
            let [a, b] = [a, b].map(|items| by_name(items, has_names));
            for name in a.keys().chain(b.keys()) {
                let value =
                    |map: &BTreeMap<String, Value>| map.get(name).cloned().unwrap_or_default();
                let shown = if NAMED.contains(&name.as_str()) {
                    name
                } else {
                    ""
                };
                differences(&format!("{path}[{shown}]"), &value(&a), &value(&b), found);
            }
        }
        (Value::String(a), Value::String(b)) if same_amount(a, b) => {}
        _ if one == two || is_nothing(one) && is_nothing(two) => {}
        _ => drop(found.insert(path.to_owned())),
    }
}

/// The objects of a list, or the only one.
fn each(objects: &Value) -> Vec<Value> {
    objects
        .as_array()
        .cloned()
        .unwrap_or_else(|| vec![objects.clone()])
}

/// Items by their names, if the items of both sides have names, or else by their indices.
fn by_name(items: &[Value], has_names: bool) -> BTreeMap<String, Value> {
    let name = |item: &Value| Some(item["name"].as_str().filter(|_| has_names)?.to_owned());
    items
        .iter()
        .enumerate()
        .map(|(n, item)| (name(item).unwrap_or_else(|| n.to_string()), item.clone()))
        .collect()
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(is_nothing),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn covers(place: &str, path: &str) -> bool {
    path.strip_prefix(place)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The names in the first column of that section's table in `docs/deviations.md`.
fn names_in_table(section: &str) -> Vec<String> {
    let page = std::fs::read_to_string(root().join("docs/deviations.md")).unwrap();
    let (_, from) = page.split_once(&format!("## {section}\n")).unwrap();
    let rows = from
        .split("\n## ")
        .next()
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once(" |"));
    rows.flat_map(|(names, _)| {
        names
            .trim_end_matches('`')
            .split("` `")
            .map(ToOwned::to_owned)
    })
    .collect()
}

#[test]
fn the_table_of_deviations_has_each_difference_and_no_other() {
    let mut found = BTreeSet::new();
    for mut spec in stored() {
        // The Java VM-Operator has no images of disks. An import pod comes before the pod that is compared.
        let disks = spec.pointer_mut("/vm/disks").and_then(Value::as_array_mut);
        if let Some(disks) = disks {
            disks.retain(|disk| disk["source"].is_null());
        }
        let Some(ours) = ours(&spec) else { continue };
        let theirs = reference_objects::of(&vm_of(spec).vm);
        for (kind, object) in &ours {
            // The disks are in the same order.
            for (one, two) in each(&theirs[kind]).iter().zip(each(object)) {
                differences(&format!("{kind} "), one, &two, &mut found);
            }
        }
    }
    let table = names_in_table("Objects");
    let missing: Vec<_> = found
        .iter()
        .filter(|path| !table.iter().any(|place| covers(place, path)))
        .collect();
    assert!(
        missing.is_empty(),
        "not in docs/deviations.md: {missing:#?}"
    );
    let gone: Vec<_> = table
        .iter()
        .filter(|place| !found.iter().any(|path| covers(place, path)))
        .collect();
    assert!(
        gone.is_empty(),
        "in docs/deviations.md, and no difference: {gone:#?}"
    );
}

#[test]
fn the_table_of_rejected_fields_has_the_fields_that_are_rejected() {
    let table = names_in_table("Rejected fields");
    let table: BTreeSet<&str> = table.iter().map(String::as_str).collect();
    let known: BTreeSet<&str> = super::generated::BLOCKING_FIELDS.iter().copied().collect();
    assert_eq!(
        known.difference(&table).collect::<Vec<_>>(),
        Vec::<&&str>::new(),
        "fields that are not in the table"
    );
    let places: BTreeSet<&str> = RULES.iter().map(|rule| rule.at).collect();
    let accepted: Vec<_> = table
        .iter()
        .filter(|field| !places.contains(*field) && !known.contains(*field))
        .collect();
    assert!(
        accepted.is_empty(),
        "in docs/deviations.md, and no rule rejects them: {accepted:?}"
    );
}
