//! The fields of a VM by its schema, also those in lists: where each is, which values there are for it, and which of them were
//! changed.

use crate::pick::{Change, Random};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// A field below `spec` that has no fields itself.
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

/// All fields of the definition but that by which the test asks for restarts.
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
            fields_of(schema, &format!("{path}.{name}"), &below(Step::Name(name.clone())), fields);
        }
    } else if schema["items"].is_object() {
        fields_of(&schema["items"], &format!("{path}[]"), &below(Step::Items), fields);
    } else {
        fields.push(Field { path: path.to_owned(), steps: steps.to_vec(), schema: schema.clone() });
    }
}

/// So many of all fields are changed by a run that has had a turn of each.
pub const TOUCHED: usize = 164;

/// The paths of those fields that none of the places is at or below.
pub fn untouched(fields: &[Field], places: &BTreeSet<String>) -> Vec<String> {
    let is_touched = |field: &&Field| {
        places.iter().any(|place| {
            let rest = place.strip_prefix(&field.path);
            rest.is_some_and(|rest| rest.is_empty() || !rest.starts_with(char::is_alphanumeric))
        })
    };
    fields.iter().filter(|field| !is_touched(field)).map(|field| field.path.clone()).collect()
}

/// Pointers to all that there is at those steps.
fn pointers(value: &Value, steps: &[Step], at: &str, found: &mut Vec<String>) {
    match steps.split_first() {
        None => found.push(at.to_owned()),
        Some((Step::Name(name), rest)) => {
            if let Some(value) = value.get(name).filter(|value| !value.is_null()) {
                pointers(value, rest, &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), found);
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
    /// Values that it can have: those that it has anywhere, and those that its schema names.
    fn values(&self, specs: &[Value]) -> Vec<Value> {
        let there = specs.iter().flat_map(|spec| {
            let pointers = all(spec, &self.steps);
            pointers.into_iter().filter_map(|pointer| spec.pointer(&pointer).cloned())
        });
        let mut values: Vec<Value> = there.collect();
        match self.schema["type"].as_str() {
            _ if self.schema["enum"].is_array() => values.extend(self.schema["enum"].as_array().cloned().unwrap()),
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

    /// A running VM in which this field alone gets another value, or goes; in a list, that of one item. None where no VM has a
    /// place for it.
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
            let at = put(after.pointer_mut(place)?, last, value, random);
            if after != before {
                let told = value.map_or("gone".to_owned(), Value::to_string);
                let fields = vec![format!("spec{}{at} = {told:.60}", place.replace('/', "."))];
                return Some(Change { before, after, fields });
            }
        }
        None
    }
}

/// Puts the value there, or takes what is there away. Says where that is.
fn put(parent: &mut Value, last: &Step, value: Option<&Value>, random: &mut Random) -> String {
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

/// As a run of that many changes would be, without a cluster.
#[test]
fn changes_touch_nearly_all_fields_and_also_those_of_one_item_of_a_list() {
    let (seed, fields) = (1, fields());
    let specs = crate::pick::specs(seed);
    let changes = (0..2 * fields.len() as u64).map(|n| crate::pick::change(&specs, &fields, seed, n));
    let changes: Vec<Change> = changes.collect();
    let places = changes.iter().flat_map(Change::places).collect();
    let untouched = untouched(&fields, &places);
    let touched = fields.len() - untouched.len();
    assert!(touched >= TOUCHED, "only {touched} of {} fields are changed, not: {untouched:#?}", fields.len());
    let alone = |path: &str| changes.iter().any(|change| change.places().iter().eq([path]));
    for path in ["spec.vm.disks[].bootindex", "spec.vm.networks[].tap.mac", "spec.permissions[].may[]"] {
        assert!(alone(path), "{path} is never changed alone");
    }
    let size = fields.iter().find(|field| field.path.ends_with("volumeClaimTemplate.spec.resources.requests")).unwrap();
    let sizes = |spec: &Value| all(spec, &size.steps).iter().map(|at| spec.pointer(at).cloned()).collect::<Vec<_>>();
    assert!(changes.iter().any(|change| sizes(&change.before) != sizes(&change.after)), "no claim ever grows");
}
