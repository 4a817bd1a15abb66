//! (client) Checks against the API server before a write that depends on an object whose store may be old.

use crate::k8s::error::Error;
use crate::k8s::writer::Writer;
use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt};

/// A version of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version {
    /// Name of the object.
    pub name: String,
    /// UID of the object.
    pub uid: String,
    /// Resource version of the object.
    pub version: String,
}

impl Version {
    /// The version of that object.
    pub fn of<K: Resource>(object: &K) -> Self {
        let metadata = object.meta();
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            version: metadata.resource_version.clone().unwrap_or_default(),
        }
    }

    /// Whether the object, as the API server has it, is this version.
    pub fn is<K: Resource>(&self, found: Option<&K>) -> bool {
        found.is_some_and(|found| {
            found.meta().resource_version.as_ref() == Some(&self.version)
                && found.meta().uid.as_ref() == Some(&self.uid)
        })
    }
}

/// Whether the object with this UID is deleted, replaced, or being deleted. `found` is the object that the API server has.
pub fn is_gone<K: Resource>(found: Option<&K>, uid: &str) -> bool {
    found.is_none_or(|found| {
        found.meta().uid.as_deref() != Some(uid) || found.meta().deletion_timestamp.is_some()
    })
}

impl Writer<'_> {
    /// The metadata of the object as the API server has it; `None` if the object was deleted or replaced.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn find_metadata<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
    ) -> Result<Option<PartialObjectMeta<K>>, Error> {
        let live: Option<PartialObjectMeta<K>> = self.find::<K, _>(&object.name_any()).await?;
        Ok(live.filter(|live| live.uid() == object.uid()))
    }
}
