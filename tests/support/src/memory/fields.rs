//! Sets of fields, as managed fields list them, and the difference of two objects as such sets.

use super::schema::{Node, Shape};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A set of fields below a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// The field itself is in the set.
    pub own: bool,
    /// By path element: `f:name`, `k:{…}` or `v:…`.
    pub below: BTreeMap<String, Self>,
}

impl Set {
    fn leaf() -> Self {
        Self {
            own: true,
            below: BTreeMap::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        !self.own && self.below.values().all(Self::is_empty)
    }

    /// Reads `fieldsV1`.
    pub fn read(fields: &Value) -> Self {
        let mut set = Self::default();
        for (name, value) in fields.as_object().into_iter().flatten() {
            if name == "." {
                set.own = true;
                continue;
            }
            let mut child = Self::read(value);
            child.own |= child.below.is_empty();
            set.below.insert(name.clone(), child);
        }
        set
    }

    /// Writes `fieldsV1`.
    pub fn write(&self) -> Value {
        let mut fields = Map::new();
        for (name, child) in self.below.iter().filter(|(_, child)| !child.is_empty()) {
            let mut value = child.write();
            if let Some(fields) = value
                .as_object_mut()
                .filter(|fields| child.own && !fields.is_empty())
            {
                fields.insert(".".to_owned(), Value::Object(Map::new()));
            }
            fields.insert(name.clone(), value);
        }
        Value::Object(fields)
    }

    pub fn union(mut self, other: &Self) -> Self {
        self.own |= other.own;
        for (name, child) in &other.below {
            let mine = self.below.remove(name).unwrap_or_default();
            self.below.insert(name.clone(), mine.union(child));
        }
        self
    }

    /// The fields that are not in the other set.
    pub fn without(mut self, other: &Self) -> Self {
        self.own &= !other.own;
        for (name, child) in &other.below {
            if let Some(mine) = self.below.remove(name) {
                let rest = mine.without(child);
                if !rest.is_empty() {
                    self.below.insert(name.clone(), rest);
                }
            }
        }
        self
    }

    pub fn intersection(&self, other: &Self) -> Self {
        let both = |(name, child): (&String, &Self)| {
            let both = child.intersection(other.below.get(name)?);
            (!both.is_empty()).then(|| (name.clone(), both))
        };
        Self {
            own: self.own && other.own,
            below: self.below.iter().filter_map(both).collect(),
        }
    }

    /// The paths of the fields in the format of messages.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect("", &mut paths);
        paths
    }

    fn collect(&self, path: &str, paths: &mut Vec<String>) {
        if self.own && !path.is_empty() {
            paths.push(path.to_owned());
        }
        for (name, child) in &self.below {
            child.collect(&format!("{path}{}", shown(name)), paths);
        }
    }
}

/// A path element in the format of messages.
fn shown(element: &str) -> String {
    match element.split_once(':') {
        Some(("k", keys)) => {
            let keys: Value = serde_json::from_str(keys).unwrap_or_default();
            let pairs = keys
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, value)| format!("{name}={value}"));
            format!("[{}]", pairs.collect::<Vec<_>>().join(","))
        }
        Some(("v", value)) => format!("[={value}]"),
        Some((_, name)) => format!(".{name}"),
        None => element.to_owned(),
    }
}

pub fn field(name: &str) -> String {
    format!("f:{name}")
}

/// The path element of a list's item.
pub fn item(shape: &Shape, value: &Value) -> Option<String> {
    match shape {
        Shape::Keyed(keys) => {
            let mut names: Vec<&String> = keys.iter().collect();
            names.sort();
            let key = |name: &&String| {
                value
                    .get(name.as_str())
                    .map(|value| format!("{:?}:{value}", name.as_str()))
            };
            Some(format!(
                "k:{{{}}}",
                names.iter().filter_map(key).collect::<Vec<_>>().join(",")
            ))
        }
        Shape::Set => Some(format!("v:{value}")),
        _ => None,
    }
}

/// The ownership of a value with that schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Leaf,
    Fields,
    Items,
}

fn form(node: &Node, value: &Value) -> Form {
    match (&node.shape, value) {
        (Shape::Atomic | Shape::Scalar, _) => Form::Leaf,
        (_, Value::Object(_)) => Form::Fields,
        (Shape::Keyed(_) | Shape::Set, Value::Array(_)) => Form::Items,
        _ => Form::Leaf,
    }
}

/// The fields that an applied configuration has.
pub fn of(node: &Node, value: &Value) -> Set {
    let mut set = Set::default();
    match (form(node, value), value) {
        (Form::Fields, Value::Object(fields)) => {
            for (name, value) in fields {
                let mut child = of(node.field(name), value);
                let is_empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                child.own |= is_empty || !node.is_field(name);
                set.below.insert(field(name), child);
            }
        }
        (Form::Items, Value::Array(items)) => {
            for value in items {
                let mut child = of(node.item(), value);
                child.own = true;
                set.below
                    .insert(item(&node.shape, value).unwrap_or_default(), child);
            }
        }
        _ => set.own = true,
    }
    set
}

/// Fields that were changed or added, and fields that were removed.
#[derive(Debug, Default)]
pub struct Difference {
    pub changed: Set,
    pub removed: Set,
}

/// The differences between two values.
pub fn compare(node: &Node, old: Option<&Value>, new: Option<&Value>) -> Difference {
    let mut found = Difference::default();
    if old == new {
        return found;
    }
    let is_empty = |value: Option<&Value>| match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(fields)) => fields.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        _ => false,
    };
    let form_of = |value: Option<&Value>| value.map(|value| form(node, value));
    let form = match (form_of(old), form_of(new)) {
        (Some(Form::Leaf), Some(other)) if old.is_some_and(Value::is_null) => other,
        (Some(other), Some(Form::Leaf)) if new.is_some_and(Value::is_null) => other,
        (Some(old), Some(new)) if old == new => old,
        (Some(form), None) | (None, Some(form)) => form,
        _ => Form::Leaf,
    };
    if form == Form::Leaf || is_empty(old) && is_empty(new) {
        match new {
            Some(_) => found.changed = Set::leaf(),
            None => found.removed = Set::leaf(),
        }
        return found;
    }
    for (name, (node, old, new)) in children(node, form, old, new) {
        let child = compare(node, old, new);
        if !child.changed.is_empty() {
            found.changed.below.insert(name.clone(), child.changed);
        }
        if !child.removed.is_empty() {
            found.removed.below.insert(name, child.removed);
        }
    }
    found.changed.own = old.is_none();
    found.removed.own = new.is_none();
    found
}

type Children<'a> = BTreeMap<String, (&'a Node, Option<&'a Value>, Option<&'a Value>)>;

/// The elements of both values by their names, without equal fields.
fn children<'a>(
    node: &'a Node,
    form: Form,
    old: Option<&'a Value>,
    new: Option<&'a Value>,
) -> Children<'a> {
    let mut children = Children::new();
    let other = |name: &String, is_new: bool| if is_new { old } else { new }?.get(name);
    for (value, is_new) in [(old, false), (new, true)] {
        let elements: Vec<(String, &Node, &Value)> = match (form, value) {
            (Form::Fields, Some(Value::Object(fields))) => fields
                .iter()
                .filter(|(name, value)| other(name, is_new) != Some(*value))
                .map(|(name, value)| (field(name), node.field(name), value))
                .collect(),
            (Form::Items, Some(Value::Array(items))) => items
                .iter()
                .filter_map(|v| Some((item(&node.shape, v)?, node.item(), v)))
                .collect(),
            _ => Vec::new(),
        };
        for (name, node, value) in elements {
            let child = children.entry(name).or_insert((node, None, None));
            *(if is_new { &mut child.2 } else { &mut child.1 }) = Some(value);
        }
    }
    children
}

/// Merges an applied configuration into an object.
pub fn merge(node: &Node, live: &mut Value, applied: &Value) {
    match (form(node, applied), &mut *live, applied) {
        (Form::Fields, Value::Object(live), Value::Object(applied)) => {
            for (name, value) in applied {
                merge(
                    node.field(name),
                    live.entry(name.as_str()).or_insert(Value::Null),
                    value,
                );
            }
        }
        (Form::Items, Value::Array(live), Value::Array(applied)) => {
            let key = |value: &Value| item(&node.shape, value);
            let mut old: Vec<Value> = std::mem::take(live);
            let is_applied = |value: &Value| applied.iter().any(|item| key(item) == key(value));
            let mut at = 0;
            for value in applied {
                // Items that only the object has stay before the items that follow them there.
                while let Some(item) = old.get(at).filter(|item| !is_applied(item)) {
                    live.push(item.clone());
                    at += 1;
                }
                let same = old.iter().position(|item| key(item) == key(value));
                let mut merged = same
                    .and_then(|n| old.get_mut(n))
                    .map_or(Value::Null, |item| item.clone());
                merge(node.item(), &mut merged, value);
                live.push(merged);
                at += usize::from(old.get(at).is_some_and(is_applied));
            }
            live.extend(old.into_iter().skip(at).filter(|item| !is_applied(item)));
        }
        _ => live.clone_from(applied),
    }
}

/// Removes the fields that were applied last and have no owner any more.
pub fn remove(node: &Node, live: &mut Value, last: &Set, owned: &Set) {
    let nothing = Set::default();
    let owned_below = |name: &str| owned.below.get(name).unwrap_or(&nothing);
    match live {
        Value::Object(fields) => {
            let names: Vec<String> = fields.keys().cloned().collect();
            for name in names {
                let (Some(last), owned) =
                    (last.below.get(&field(&name)), owned_below(&field(&name)))
                else {
                    continue;
                };
                if last.own && owned.is_empty() {
                    fields.remove(&name);
                    continue;
                }
                let Some(value) = fields.get_mut(&name) else {
                    continue;
                };
                remove(node.field(&name), value, last, owned);
                let is_empty = value.as_object().is_some_and(Map::is_empty)
                    || value.as_array().is_some_and(Vec::is_empty);
                if is_empty && owned.is_empty() {
                    fields.remove(&name);
                }
            }
        }
        Value::Array(items) => items.retain_mut(|value| {
            let Some(name) = item(&node.shape, value) else {
                return true;
            };
            let (Some(last), owned) = (last.below.get(&name), owned_below(&name)) else {
                return true;
            };
            if last.own && owned.is_empty() {
                return false;
            }
            remove(node.item(), value, last, owned);
            true
        }),
        _ => {}
    }
}
