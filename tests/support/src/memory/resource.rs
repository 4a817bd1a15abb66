//! The kinds of objects that the server knows, and their properties.

use super::schema::Node;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};

/// A kind of objects.
#[derive(Clone, Debug)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub kind: String,
    pub namespaced: bool,
    /// It has the subresource `/status`, so that the main resource cannot change the status.
    pub has_status: bool,
    /// `metadata.generation` counts the changes of the spec.
    pub has_generation: bool,
    /// An update without a resource version is accepted.
    pub unconditional: bool,
    /// The response to a deletion is the object, not a `Status`.
    pub returns_deleted: bool,
    /// Defined by a CustomResourceDefinition.
    pub custom: bool,
    pub schema: Arc<Node>,
}

impl Resource {
    pub fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// The name of the resource in messages.
    pub fn qualified(&self) -> String {
        match self.group.as_str() {
            "" => self.plural.clone(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// The name of the kind in messages.
    pub fn qualified_kind(&self) -> String {
        match self.group.as_str() {
            "" => self.kind.clone(),
            group => format!("{}.{group}", self.kind),
        }
    }

    pub fn details(&self, name: &str, kind: &str) -> Value {
        let mut details = json!({"kind": kind});
        if !name.is_empty() {
            details["name"] = name.into();
        }
        if !self.group.is_empty() {
            details["group"] = self.group.clone().into();
        }
        details
    }

    /// The key of an object in etcd, as messages contain it.
    pub fn storage_key(&self, namespace: &str, name: &str) -> String {
        let resource = match (self.custom, self.plural.as_str()) {
            (true, plural) => format!("{}/{plural}", self.group),
            (false, "services") => "services/specs".to_owned(),
            (false, plural) => plural.to_owned(),
        };
        match namespace {
            "" => format!("/registry/{resource}/{name}"),
            namespace => format!("/registry/{resource}/{namespace}/{name}"),
        }
    }
}

/// Group, version, plural, kind, and the letters of its properties: `n`amespaced, `s`tatus, `g`eneration,
/// `u`nconditional update, `r`eturns the deleted object.
const KINDS: [(&str, &str, &str, &str, &str); 13] = [
    ("", "v1", "pods", "Pod", "nsgur"),
    (
        "",
        "v1",
        "persistentvolumeclaims",
        "PersistentVolumeClaim",
        "nsur",
    ),
    ("", "v1", "persistentvolumes", "PersistentVolume", "sur"),
    ("", "v1", "configmaps", "ConfigMap", "nu"),
    ("", "v1", "secrets", "Secret", "nu"),
    ("", "v1", "services", "Service", "nsur"),
    ("", "v1", "namespaces", "Namespace", "sur"),
    ("", "v1", "nodes", "Node", "su"),
    ("apps", "v1", "deployments", "Deployment", "nsgu"),
    (
        "policy",
        "v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        "nsgu",
    ),
    ("coordination.k8s.io", "v1", "leases", "Lease", "n"),
    ("events.k8s.io", "v1", "events", "Event", "nu"),
    (
        "storage.k8s.io",
        "v1",
        "storageclasses",
        "StorageClass",
        "ur",
    ),
];

/// The built-in kinds.
pub static BUILT_IN: LazyLock<Vec<Arc<Resource>>> =
    LazyLock::new(|| built_in().into_iter().map(Arc::new).collect());

fn built_in() -> Vec<Resource> {
    let resource = |(group, version, plural, kind, has): (&str, &str, &str, &str, &str)| Resource {
        group: group.to_owned(),
        version: version.to_owned(),
        plural: plural.to_owned(),
        kind: kind.to_owned(),
        namespaced: has.contains('n'),
        has_status: has.contains('s'),
        has_generation: has.contains('g'),
        unconditional: has.contains('u'),
        returns_deleted: has.contains('r'),
        custom: false,
        schema: Arc::new(super::schema::built_in(kind)),
    };
    KINDS.into_iter().map(resource).collect()
}

/// The kind that a CustomResourceDefinition defines, in its first served version.
///
/// # Panics
/// The text is not a CustomResourceDefinition.
pub fn custom(definition: &Value) -> Resource {
    let spec = &definition["spec"];
    let text = |value: &Value| {
        value
            .as_str()
            .expect("a CustomResourceDefinition")
            .to_owned()
    };
    let versions = spec["versions"]
        .as_array()
        .expect("a CustomResourceDefinition has versions");
    let version = versions
        .iter()
        .find(|version| version["served"] == true)
        .expect("one version is served");
    Resource {
        group: text(&spec["group"]),
        version: text(&version["name"]),
        plural: text(&spec["names"]["plural"]),
        kind: text(&spec["names"]["kind"]),
        namespaced: spec["scope"] == "Namespaced",
        has_status: version["subresources"]["status"].is_object(),
        has_generation: true,
        unconditional: false,
        returns_deleted: false,
        custom: true,
        schema: Arc::new(super::schema::structural(
            &version["schema"]["openAPIV3Schema"],
        )),
    }
}
