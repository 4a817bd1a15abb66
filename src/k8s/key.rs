//! (pure) The identity of an object among those of its kind.

use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use std::fmt;

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace; empty for a cluster-scoped object.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// The key of the object of that name in that namespace.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The key of the object.
    #[must_use]
    pub fn of<K: Resource>(object: &K) -> Self {
        Self {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        }
    }

    /// The object of this key, as kube's controller and stores name it.
    #[must_use]
    pub fn object_ref<K: Resource<DynamicType = ()>>(&self) -> ObjectRef<K> {
        let object = ObjectRef::new(&self.name);
        match self.namespace.as_str() {
            "" => object,
            namespace => object.within(namespace),
        }
    }
}

impl<K: Resource> From<&ObjectRef<K>> for ObjectKey {
    fn from(object: &ObjectRef<K>) -> Self {
        Self::new(
            object.namespace.as_deref().unwrap_or_default(),
            &object.name,
        )
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}
