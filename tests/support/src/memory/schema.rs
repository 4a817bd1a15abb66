//! The schema of a kind: merge keys of lists, defaults, and known fields.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The way in which the parts of a value are owned and merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The value decides: an object is a map, a list is atomic.
    Deduced,
    Scalar,
    /// A fixed set of fields.
    Struct,
    /// A map. Each of its keys has its own owner.
    Map,
    /// An object or list that is owned as a whole.
    Atomic,
    /// A list of scalars, each with its own owner.
    Set,
    /// A list of objects, which these keys identify.
    Keyed(Vec<String>),
}

/// A field of a schema, with the fields below it.
#[derive(Clone, Debug)]
pub struct Node {
    pub shape: Shape,
    pub fields: BTreeMap<String, Self>,
    /// The items of a list, or the values of a map.
    pub element: Option<Box<Self>>,
    pub default: Option<Value>,
    pub nullable: bool,
    /// Fields that are not in `fields` are removed.
    pub closed: bool,
}

/// The schema of a field without a schema.
pub static DEDUCED: Node = Node {
    shape: Shape::Deduced,
    fields: BTreeMap::new(),
    element: None,
    default: None,
    nullable: true,
    closed: false,
};

/// The schema of a field of a built-in kind that the table does not name: objects have fields, lists are atomic.
pub static PLAIN: Node = Node {
    shape: Shape::Struct,
    fields: BTreeMap::new(),
    element: None,
    default: None,
    nullable: true,
    closed: false,
};

impl Node {
    /// The schema of a field or a map's value.
    pub fn field(&self, name: &str) -> &Self {
        let otherwise = match self.shape {
            Shape::Struct if !self.closed => &PLAIN,
            _ => &DEDUCED,
        };
        self.fields
            .get(name)
            .or(self.element.as_deref())
            .unwrap_or(otherwise)
    }

    /// The schema of a list's items.
    pub fn item(&self) -> &Self {
        self.element
            .as_deref()
            .unwrap_or(if self.shape == Shape::Deduced {
                &DEDUCED
            } else {
                &PLAIN
            })
    }

    /// Whether the name is that of a field of a struct, not a key of a map.
    pub fn is_field(&self, name: &str) -> bool {
        match self.shape {
            Shape::Struct => !self.closed || self.fields.contains_key(name),
            _ => false,
        }
    }
}

// --- structural schemas of CustomResourceDefinitions ---------------------------------------

/// The schema of an `openAPIV3Schema` with the metadata that every object has.
pub fn structural(schema: &Value) -> Node {
    let mut root = node(schema);
    root.default = None;
    root.fields.insert("metadata".to_owned(), metadata());
    for name in ["apiVersion", "kind"] {
        root.fields.insert(
            name.to_owned(),
            Node {
                shape: Shape::Scalar,
                ..PLAIN.clone()
            },
        );
    }
    root
}

fn node(schema: &Value) -> Node {
    let keeps_unknown = schema["x-kubernetes-preserve-unknown-fields"] == true;
    let fields: BTreeMap<String, Node> =
        schema["properties"]
            .as_object()
            .map_or_else(BTreeMap::new, |properties| {
                properties
                    .iter()
                    .map(|(name, schema)| (name.clone(), node(schema)))
                    .collect()
            });
    let values = schema
        .get("additionalProperties")
        .filter(|values| values.is_object());
    let items = schema.get("items");
    let shape = match schema["type"].as_str() {
        Some("object") if schema["x-kubernetes-map-type"] == "atomic" => Shape::Atomic,
        Some("object") if values.is_some() => Shape::Map,
        Some("object") if fields.is_empty() && keeps_unknown => Shape::Deduced,
        Some("object") => Shape::Struct,
        Some("array") => match schema["x-kubernetes-list-type"].as_str() {
            Some("map") => Shape::Keyed(texts(&schema["x-kubernetes-list-map-keys"])),
            Some("set") => Shape::Set,
            _ => Shape::Atomic,
        },
        Some(_) => Shape::Scalar,
        None if keeps_unknown => Shape::Deduced,
        None => Shape::Scalar,
    };
    let closed = schema["type"] == "object" && values.is_none() && !keeps_unknown;
    let element = values.or(items).map(|schema| Box::new(node(schema)));
    let default = schema.get("default").cloned();
    Node {
        shape,
        fields,
        element,
        default,
        nullable: schema["nullable"] == true,
        closed,
    }
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(|text| text.as_str().map(ToOwned::to_owned))
        .collect()
}

/// Removes unknown fields.
pub fn prune(node: &Node, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if node.closed {
                fields.retain(|name, _| node.fields.contains_key(name));
            }
            for (name, value) in fields {
                if node.fields.contains_key(name) || node.element.is_some() {
                    prune(node.field(name), value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| prune(node.item(), item)),
        _ => {}
    }
}

/// Adds the defaults of the schema. Removes nulls of fields that are not nullable and have a default.
pub fn default(node: &Node, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in &node.fields {
                let Some(default) = &field.default else {
                    continue;
                };
                let is_missing = fields
                    .get(name)
                    .is_none_or(|value| value.is_null() && !field.nullable);
                if is_missing {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in fields {
                default(node.field(name), value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| default(node.item(), item)),
        _ => {}
    }
}

// --- the kinds of Kubernetes itself -------------------------------------------------------

/// Exceptions from [`PLAIN`] for built-in kinds: `=` a map, `!` an object that is owned as a whole, `*` a set,
/// otherwise the keys of a list's items.
const METADATA: [(&str, &str); 4] = [
    ("labels", "="),
    ("annotations", "="),
    ("ownerReferences", "uid"),
    ("finalizers", "*"),
];
const POD_SPEC: [(&str, &str); 34] = [
    ("containers", "name"),
    ("containers.ports", "containerPort,protocol"),
    ("containers.env", "name"),
    ("containers.env.valueFrom.fieldRef", "!"),
    ("containers.env.valueFrom.configMapKeyRef", "!"),
    ("containers.env.valueFrom.secretKeyRef", "!"),
    ("containers.env.valueFrom.resourceFieldRef", "!"),
    ("containers.volumeMounts", "mountPath"),
    ("containers.volumeDevices", "devicePath"),
    ("containers.resources.limits", "="),
    ("containers.resources.requests", "="),
    ("containers.resources.claims", "name"),
    ("initContainers", "name"),
    ("initContainers.ports", "containerPort,protocol"),
    ("initContainers.env", "name"),
    ("initContainers.volumeMounts", "mountPath"),
    ("initContainers.resources.limits", "="),
    ("initContainers.resources.requests", "="),
    ("ephemeralContainers", "name"),
    ("volumes", "name"),
    ("volumes.csi.nodePublishSecretRef", "!"),
    ("volumes.csi.volumeAttributes", "="),
    ("imagePullSecrets", "name"),
    ("hostAliases", "ip"),
    ("nodeSelector", "!"),
    ("topologySpreadConstraints", "topologyKey,whenUnsatisfiable"),
    ("topologySpreadConstraints.labelSelector", "!"),
    ("resources.limits", "="),
    ("resources.requests", "="),
    ("overhead", "="),
    ("schedulingGates", "name"),
    ("resourceClaims", "name"),
    (
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
        "!",
    ),
    ("readinessGates", ""),
];
const KINDS: [(&str, &str, &str); 29] = [
    ("Pod", "status.conditions", "type"),
    ("Pod", "status.podIPs", "ip"),
    ("Pod", "status.hostIPs", "ip"),
    ("PersistentVolumeClaim", "spec.resources.requests", "="),
    ("PersistentVolumeClaim", "spec.resources.limits", "="),
    ("PersistentVolumeClaim", "spec.selector", "!"),
    ("PersistentVolumeClaim", "spec.dataSource", "!"),
    ("PersistentVolumeClaim", "status.capacity", "="),
    ("PersistentVolumeClaim", "status.allocatedResources", "="),
    ("PersistentVolumeClaim", "status.conditions", "type"),
    ("PersistentVolume", "spec.capacity", "="),
    ("PersistentVolume", "spec.claimRef", "="),
    ("ConfigMap", "data", "="),
    ("ConfigMap", "binaryData", "="),
    ("Secret", "data", "="),
    ("Secret", "stringData", "="),
    ("Service", "spec.ports", "port,protocol"),
    ("Service", "spec.selector", "!"),
    ("Service", "status.conditions", "type"),
    ("Namespace", "status.conditions", "type"),
    ("Node", "status.conditions", "type"),
    ("Node", "status.capacity", "="),
    ("Node", "status.allocatable", "="),
    ("Deployment", "spec.selector", "!"),
    ("Deployment", "status.conditions", "type"),
    ("PodDisruptionBudget", "spec.selector", "!"),
    ("PodDisruptionBudget", "status.conditions", "type"),
    ("Event", "regarding", "!"),
    ("Event", "related", "!"),
];

fn shape(mark: &str) -> Shape {
    match mark {
        "=" => Shape::Map,
        "!" | "" => Shape::Atomic,
        "*" => Shape::Set,
        keys => Shape::Keyed(keys.split(',').map(ToOwned::to_owned).collect()),
    }
}

fn metadata() -> Node {
    let mut node = PLAIN.clone();
    METADATA
        .iter()
        .for_each(|(path, mark)| insert(&mut node, path, mark));
    node
}

/// The schema of a built-in kind.
pub fn built_in(kind: &str) -> Node {
    let mut root = PLAIN.clone();
    let pod = match kind {
        "Pod" => "spec",
        "Deployment" => "spec.template.spec",
        _ => "",
    };
    for (path, mark) in POD_SPEC.iter().filter(|_| !pod.is_empty()) {
        insert(&mut root, &format!("{pod}.{path}"), mark);
    }
    for (_, path, mark) in KINDS.iter().filter(|(of, _, _)| *of == kind) {
        insert(&mut root, path, mark);
    }
    if kind == "Deployment" {
        METADATA.iter().for_each(|(path, mark)| {
            insert(&mut root, &format!("spec.template.metadata.{path}"), mark)
        });
    }
    root.fields.insert("metadata".to_owned(), metadata());
    root
}

/// Sets the shape at a path. A list in the path stands for its items.
fn insert(root: &mut Node, path: &str, mark: &str) {
    let mut node = root;
    for name in path.split('.') {
        let fields = match (&node.shape, &mut node.element) {
            (Shape::Keyed(_) | Shape::Set, Some(item)) => &mut item.fields,
            _ => &mut node.fields,
        };
        node = fields
            .entry(name.to_owned())
            .or_insert_with(|| PLAIN.clone());
    }
    node.shape = shape(mark);
    node.element = match node.shape {
        Shape::Keyed(_) => Some(Box::new(PLAIN.clone())),
        Shape::Map | Shape::Set => Some(Box::new(Node {
            shape: Shape::Scalar,
            ..PLAIN.clone()
        })),
        _ => None,
    };
}

/// The object's fields. Adds an empty object if it is missing.
pub fn object_at<'a>(value: &'a mut Value, name: &str) -> &'a mut Map<String, Value> {
    if !value[name].is_object() {
        value[name] = Value::Object(Map::new());
    }
    value[name].as_object_mut().expect("it is an object")
}
