//! Each field of a VM has its effect: each leaf of the schema is in one of three lists, and the effects of the first
//! two are tested. A new field fails the test until it is in a list.
//!
//! An effect is a path in the result of a VM (`built`), as a JSON pointer. `/config` is the runner's configuration
//! below `/Runner`, and `/decision` the decision about the pod.

mod lists;

pub use lists::{LATER, OURS};

use super::{json_of, vm_of};
use lists::{Change, changes, copied};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use vm_operator::api::vm::crd;
use vm_operator::controllers::vm::decide::decide;
use vm_operator::controllers::vm::objects::{self, Objects};
use vm_operator::controllers::vm::plan::plan;
use vm_operator::settings::{LoadBalancerService, Reconciler};

const HOW_TO_GO_ON: &str = "each field must stand in one list of tests/check/golden/fields/lists.rs: in `copied` or `changes` with the \
    place that it changes, which is then tried; or in `LATER`, with the reason why it changes nothing";

/// The result of a VM with that spec.
fn built(spec: &Value) -> Value {
    let observed = vm_of(spec.clone());
    let (labels, annotations) = (BTreeMap::new(), BTreeMap::new());
    let load_balancer_service = LoadBalancerService::On {
        labels,
        annotations,
    };
    let settings = Reconciler {
        load_balancer_service,
        ..Reconciler::default()
    };
    let plan = plan(&observed, &settings).unwrap_or_else(|invalid| panic!("{spec}: {invalid:?}"));
    let Objects {
        image_repository,
        fetches,
        config_map,
        runner_data,
        disks,
        claim_changes,
        display_secret,
        service,
        pod,
        identity: _,
        stage: _,
    } = objects::build(&plan);
    let config: Value =
        serde_json::from_str(&config_map.data.as_ref().unwrap()["config.yaml"]).unwrap();
    json!({
        "imageRepository": json_of(&image_repository),
        "fetches": fetches.iter().map(|fetch| json_of(&fetch.pod)).collect::<Vec<_>>(),
        "configMap": json_of(&config_map),
        "config": config["/Runner"],
        "runnerData": json_of(&runner_data),
        "disks": disks.iter().map(json_of).collect::<Vec<_>>(),
        "claimChanges": format!("{claim_changes:?}"),
        "displaySecret": json_of(&display_secret),
        "service": json_of(&service),
        "pod": json_of(&objects::with_template_hash(pod)),
        "decision": format!("{:?}", decide(&observed, true)),
    })
}

/// Leaves of the schema below `spec`, with their schemas.
pub fn leaves() -> BTreeMap<String, Value> {
    let crd = serde_json::to_value(crd()).unwrap();
    let mut leaves = BTreeMap::new();
    let root = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    collect("spec".to_owned(), root, &mut leaves);
    leaves
}

fn collect(path: String, schema: &Value, leaves: &mut BTreeMap<String, Value>) {
    if let Some(fields) = schema["properties"]
        .as_object()
        .filter(|fields| !fields.is_empty())
    {
        for (name, field) in fields {
            collect(format!("{path}.{name}"), field, leaves);
        }
    } else if schema["items"].is_object() {
        collect(format!("{path}[]"), &schema["items"], leaves);
    } else if schema["additionalProperties"].is_object() {
        collect(
            format!("{path}{{}}"),
            &schema["additionalProperties"],
            leaves,
        );
    } else {
        leaves.insert(path, schema.clone());
    }
}

/// Sets the value at that path: in the first item of a list, under `key` in a map.
fn set_at(target: &mut Value, path: &str, value: Value) {
    let path = path.replace("[]", ".[]").replace("{}", ".key");
    let mut at = target;
    for step in path.split('.').skip(1) {
        if at.is_null() {
            *at = if step == "[]" { json!([]) } else { json!({}) };
        }
        at = match step {
            "[]" => {
                let items = at.as_array_mut().unwrap();
                if items.is_empty() {
                    items.push(Value::Null);
                }
                &mut items[0]
            }
            field => at
                .as_object_mut()
                .unwrap()
                .entry(field)
                .or_insert(Value::Null),
        };
    }
    *at = value;
}

/// A valid value that differs from every default.
fn sample(path: &str, schema: &Value) -> Value {
    let special = json!({
        "spec.vm.currentCpus": 7, "spec.vm.rtcClock": "vm", "spec.vm.rtcBase": "localtime",
        "spec.vm.display.spice.streamingVideo": "all",
    });
    if path.ends_with(".tap.mac") {
        return json!("52:54:00:12:34:56");
    }
    if let Some(value) = special.get(path) {
        return value.clone();
    }
    match schema["type"].as_str() {
        Some("boolean") => json!(true),
        Some("integer") => json!(7),
        Some("object") => json!({"any": ["content"]}),
        _ => json!("sample"),
    }
}

pub fn covers(prefix: &str, leaf: &str) -> bool {
    leaf.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[', '{']))
}

fn pointer(relative: &str) -> String {
    relative
        .replace("[]", "/0")
        .replace("{}", "/key")
        .replace('.', "/")
}

#[test]
fn every_field_stands_in_a_list() {
    let leaves = leaves();
    let copied = copied().into_iter().map(|(from, ..)| from);
    let changed = changes().into_iter().map(|change| change.leaf);
    let effective: Vec<&str> = copied.chain(changed).collect();
    for leaf in leaves.keys() {
        let acts = effective.iter().any(|prefix| covers(prefix, leaf));
        let later = LATER.iter().any(|(prefix, _)| covers(prefix, leaf));
        assert!(acts || later, "{leaf} stands in no list: {HOW_TO_GO_ON}");
        assert!(
            acts != later,
            "{leaf} stands in a list of effects and in LATER: {HOW_TO_GO_ON}"
        );
    }
    for prefix in effective
        .iter()
        .chain(LATER.iter().map(|(prefix, _)| prefix))
    {
        assert!(
            leaves.keys().any(|leaf| covers(prefix, leaf)),
            "the schema has no {prefix}"
        );
    }
}

#[test]
fn copied_fields_are_equal_in_vm_and_object() {
    let mut wrong = Vec::new();
    for (from, to, with) in copied() {
        for (leaf, schema) in leaves().iter().filter(|(leaf, _)| covers(from, leaf)) {
            let (value, mut spec) = (sample(leaf, schema), base(&with));
            set_at(&mut spec, leaf, value.clone());
            let place = format!("{to}{}", pointer(&leaf[from.len()..]));
            let built = built(&spec);
            let found = built.pointer(&place);
            if found != Some(&value) {
                wrong.push(format!("{leaf}: {place} is {found:?} and not {value}"));
            }
            if self::built(&base(&with)).pointer(&place) == Some(&value) {
                wrong.push(format!("{leaf}: {place} is {value} without it too"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn converted_fields_change_their_target_paths() {
    let mut wrong = Vec::new();
    for Change {
        leaf,
        value,
        with,
        places,
    } in changes()
    {
        let before = base(&with);
        let mut after = before.clone();
        set_at(&mut after, leaf, value);
        let (before, after) = (built(&before), built(&after));
        for place in places {
            let (old, new) = (before.pointer(place), after.pointer(place));
            if old == new {
                wrong.push(format!("{leaf}: {place} is {new:?} as before"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A spec with that and the required fields of the VM.
fn base(with: &Value) -> Value {
    let mut spec = with.clone();
    spec.as_object_mut()
        .unwrap()
        .entry("vm")
        .or_insert(Value::Object(Map::new()));
    spec
}
