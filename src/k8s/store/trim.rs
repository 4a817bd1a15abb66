//! Decodes metadata without managed fields. Managed fields are half of the bytes that an API server sends, no
//! controller reads them, and as values they need hundreds of small allocations for each object.

use crate::k8s::store::packed_map::{PackedMap, Texts};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Read {
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    generate_name: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    self_link: Option<String>,
    uid: Option<String>,
}

/// Prefixes of annotations that no controller reads: those of `kubectl apply`, of Argo CD and of volume binders. Other annotations of
/// Argo CD can be in a template of a PVC, which is compared with the PVC.
const UNUSED_ANNOTATIONS: [&str; 5] = [
    "argocd.argoproj.io/tracking-id",
    "kubectl.kubernetes.io/last-applied-configuration",
    "pv.kubernetes.io/",
    "volume.kubernetes.io/",
    "volume.beta.kubernetes.io/",
];

/// The finalizer that each PVC has.
const PVC_PROTECTION: &str = "kubernetes.io/pvc-protection";

/// Decodes an object's metadata without its managed fields and unused annotations, for `#[serde(deserialize_with)]`.
///
/// # Errors
/// The input is not metadata.
pub fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut read = Read::deserialize(deserializer)?;
    if let Some(annotations) = &mut read.annotations {
        annotations.retain(|name, _| {
            !UNUSED_ANNOTATIONS
                .iter()
                .any(|prefix| name.starts_with(prefix))
        });
    }
    if let Some(finalizers) = &mut read.finalizers {
        finalizers.retain(|name| name != PVC_PROTECTION);
    }
    // A decoded list has room for four elements.
    if let Some(owners) = &mut read.owner_references {
        owners.shrink_to_fit();
    }
    Ok(ObjectMeta {
        // Empty maps and lists would keep their allocations.
        annotations: read
            .annotations
            .filter(|annotations| !annotations.is_empty()),
        creation_timestamp: read.creation_timestamp,
        deletion_grace_period_seconds: read.deletion_grace_period_seconds,
        deletion_timestamp: read.deletion_timestamp,
        finalizers: read.finalizers.filter(|finalizers| !finalizers.is_empty()),
        generate_name: read.generate_name,
        generation: read.generation,
        labels: read.labels,
        managed_fields: None,
        name: read.name,
        namespace: read.namespace,
        owner_references: read.owner_references,
        resource_version: read.resource_version,
        self_link: read.self_link,
        uid: read.uid,
    })
}

/// Decodes an object's metadata without labels, annotations and owners, which take a kilobyte for each object.
///
/// # Errors
/// The input is not metadata.
pub fn key_and_versions<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<ObjectMeta, D::Error> {
    let read = metadata(deserializer)?;
    Ok(ObjectMeta {
        name: read.name,
        namespace: read.namespace,
        uid: read.uid,
        resource_version: read.resource_version,
        generation: read.generation,
        creation_timestamp: read.creation_timestamp,
        deletion_timestamp: read.deletion_timestamp,
        ..ObjectMeta::default()
    })
}

/// The metadata of a stored child, without what [`metadata`] leaves out. Its labels and annotations are packed, so
/// `kube::ResourceExt` finds none: [`packed_texts`] gives the views methods with the same names.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct ChildMetadata {
    object: ObjectMeta,
    pub labels: PackedMap,
    pub annotations: PackedMap,
}

impl Deref for ChildMetadata {
    type Target = ObjectMeta;

    fn deref(&self) -> &ObjectMeta {
        &self.object
    }
}

impl DerefMut for ChildMetadata {
    fn deref_mut(&mut self) -> &mut ObjectMeta {
        &mut self.object
    }
}

impl<'de> Deserialize<'de> for ChildMetadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = metadata(deserializer)?;
        let packed = |entries: Option<BTreeMap<_, _>>| entries.into_iter().flatten().collect();
        Ok(Self {
            labels: packed(object.labels.take()),
            annotations: packed(object.annotations.take()),
            object,
        })
    }
}

/// An object with labels, however they are stored.
pub trait Labelled {
    /// The value of the label.
    fn label(&self, name: &str) -> Option<&str>;
}

impl Labelled for ObjectMeta {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels.as_ref()?.text(name)
    }
}

/// Methods `labels` and `annotations` for views with [`ChildMetadata`], in the place of those of `kube::ResourceExt`.
macro_rules! packed_texts {
    ($($view:ty),+) => { $(
        #[allow(missing_docs)]
        impl $view {
            #[must_use]
            pub fn labels(&self) -> &$crate::k8s::store::packed_map::PackedMap {
                &self.metadata.labels
            }

            #[must_use]
            pub fn annotations(&self) -> &$crate::k8s::store::packed_map::PackedMap {
                &self.metadata.annotations
            }
        }

        impl $crate::k8s::store::trim::Labelled for $view {
            fn label(&self, name: &str) -> Option<&str> {
                self.metadata.labels.get(name)
            }
        }
    )+ };
}
pub(crate) use packed_texts;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object() -> Value {
        json!({
            "apiVersion": "v1", "kind": "K", "spec": {"a": {}},
            "metadata": {
                "name": "a", "namespace": "n", "generateName": "g", "selfLink": "s", "uid": "u", "resourceVersion": "7",
                "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
                "deletionGracePeriodSeconds": 30, "labels": {"l": "1"}, "annotations": {"a": "2"},
                "finalizers": ["example.org/hold"],
                "ownerReferences": [{"apiVersion": "v", "kind": "k", "name": "o", "uid": "ou", "controller": true}],
                "managedFields": [{
                    "manager": "m", "operation": "Apply", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
                    "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {"f:l": {}}}},
                }],
            },
        })
    }

    #[test]
    fn all_but_the_managed_fields_and_unused_annotations_is_read() {
        let object = object();
        let unused = json!({"argocd.argoproj.io/tracking-id": "app:v1/K:n/a"});
        let mut whole: ObjectMeta = serde_json::from_value(object["metadata"].clone()).unwrap();
        assert!(whole.managed_fields.take().is_some());
        assert_eq!(metadata(&object["metadata"]).unwrap(), whole);
        assert_eq!(
            metadata(&json!({"labels": null, "creationTimestamp": null, "annotations": unused}))
                .unwrap(),
            ObjectMeta::default()
        );
    }

    #[test]
    fn the_finalizer_that_holds_a_pod_is_kept_and_that_of_every_claim_is_not() {
        let finalizers =
            |names: &Value| metadata(&json!({"finalizers": names})).unwrap().finalizers;
        assert_eq!(
            finalizers(&json!(["example.org/hold"])),
            Some(vec!["example.org/hold".to_owned()])
        );
        assert_eq!(finalizers(&json!(["kubernetes.io/pvc-protection"])), None);
    }
}
