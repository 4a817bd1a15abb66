//! Each difference between what the reference makes of a VM and what is made here stands in the one table of
//! `docs/takeover.md`, and nothing else does.

use super::generated::{settings, stored};
use super::{json_of, reference_objects, root, vm_of};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use vm_operator::api::quantity::same_amount;
use vm_operator::api::virtual_machine::rules::RULES;
use vm_operator::operator::vm::build::{self, Objects};
use vm_operator::operator::vm::plan::plan;

/// Parts of a pod that have a name of their own in the table; a disk's do not.
const NAMED: &[&str] = &["config", "runner-data", "vmop-image-repository", "spice"];

/// What is made of a VM here, by kind, with lists of named things as maps.
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
    } = build::build(&plan);
    let config = config_map.data.as_mut().unwrap().remove("config.yaml").unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    Some(reference_objects::by_kind([
        ("ConfigMap", json_of(&config_map)),
        ("config.yaml", config["/Runner"].clone()),
        ("runner-data claim", json_of(&runner_data)),
        ("disk claim", json_of(&disks)),
        ("Secret", json_of(&display_secret)),
        ("Service", json_of(&service)),
        ("Pod", json_of(&build::marked(pod))),
    ]))
}

/// Where the two differ, as paths without the names of disks and places in lists.
fn differences(path: &str, one: &Value, two: &Value, found: &mut BTreeSet<String>) {
    match (one, two) {
        // What is missing is compared field by field.
        (Value::Object(_), Value::Null) => differences(path, one, &Value::Object(Map::new()), found),
        (Value::Null, Value::Object(_)) => differences(path, &Value::Object(Map::new()), two, found),
        (Value::Object(a), Value::Object(b)) => {
            for name in a.keys().chain(b.keys()) {
                let value = |map: &Map<String, Value>| map.get(name).cloned().unwrap_or_default();
                let joined = if path.ends_with(' ') { format!("{path}{name}") } else { format!("{path}.{name}") };
                differences(&joined, &value(a), &value(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            let (a, b) = (by_name(a), by_name(b));
            for name in a.keys().chain(b.keys()) {
                let value = |map: &BTreeMap<String, Value>| map.get(name).cloned().unwrap_or_default();
                let shown = if NAMED.contains(&name.as_str()) { name } else { "" };
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
    objects.as_array().cloned().unwrap_or_else(|| vec![objects.clone()])
}

/// Items by their names, else by their places.
fn by_name(items: &[Value]) -> BTreeMap<String, Value> {
    let name = |item: &Value| Some(item["name"].as_str()?.to_owned());
    items.iter().enumerate().map(|(n, item)| (name(item).unwrap_or_else(|| n.to_string()), item.clone())).collect()
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(is_nothing),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn document() -> String {
    std::fs::read_to_string(root().join("docs/takeover.md")).unwrap()
}

/// First cells of the rows of the table under that heading: what is in code there.
fn named_in_table(heading: &str) -> BTreeSet<String> {
    let text = document();
    let section = text.split(heading).nth(1).unwrap_or_else(|| panic!("no {heading:?} in docs/takeover.md"));
    let section = section.split("\n#").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

fn covers(place: &str, path: &str) -> bool {
    path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

#[test]
fn the_table_of_deviations_has_each_and_no_other() {
    let mut found = BTreeSet::new();
    for spec in stored() {
        let Some(ours) = ours(&spec) else { continue };
        let theirs = reference_objects::of(&vm_of(spec).vm);
        for (kind, object) in &ours {
            // Disks are in the same order.
            for (one, two) in each(&theirs[kind]).iter().zip(each(object)) {
                differences(&format!("{kind} "), one, &two, &mut found);
            }
        }
    }
    let table = named_in_table("## Deviations");
    let missing: Vec<_> = found.iter().filter(|path| !table.iter().any(|place| covers(place, path))).collect();
    assert!(missing.is_empty(), "not in the table of docs/takeover.md: {missing:#?}");
    let gone: Vec<_> = table.iter().filter(|place| !found.iter().any(|path| covers(place, path))).collect();
    assert!(gone.is_empty(), "in the table of docs/takeover.md, and no difference: {gone:#?}");
}

#[test]
fn what_cannot_run_here_is_told() {
    let table = named_in_table("## What runs there and not here");
    let known: BTreeSet<String> = super::generated::IN_THE_WAY.iter().map(|field| (*field).to_owned()).collect();
    for field in &known {
        assert!(table.contains(field), "{field} is not in docs/takeover.md");
    }
    let places: BTreeSet<&str> = RULES.iter().map(|rule| rule.at).collect();
    for field in &table {
        let is_rule = places.contains(field.as_str()) || field == "metadata.name";
        assert!(is_rule || known.contains(field), "{field} in docs/takeover.md is refused by nothing");
    }
}
