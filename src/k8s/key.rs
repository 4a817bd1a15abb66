//! (pure) The identity of an object among the objects of its kind.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use std::fmt;
use std::sync::Arc;

/// Namespace and name of an object: `namespace/name`, or `name` for a cluster-scoped object. Clones share the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Arc<str>);

impl ObjectKey {
    /// The key of an object with that namespace and name. The namespace is empty for a cluster-scoped object.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        match namespace {
            "" => Self(Arc::from(name)),
            namespace => Self(format!("{namespace}/{name}").into()),
        }
    }

    /// The key of the object.
    #[must_use]
    pub fn of<K: Resource>(object: &K) -> Self {
        Self::of_metadata(object.meta())
    }

    /// The key of the object with that metadata.
    #[must_use]
    pub fn of_metadata(metadata: &ObjectMeta) -> Self {
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        Self::new(namespace, metadata.name.as_deref().unwrap_or_default())
    }

    /// The key of the object with another name in the same namespace.
    #[must_use]
    pub fn sibling(&self, name: &str) -> Self {
        Self::new(self.namespace(), name)
    }

    /// Namespace; empty for a cluster-scoped object.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0
            .split_once('/')
            .map_or("", |(namespace, _)| namespace)
    }

    /// The name without the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }

    /// Whether the namespace equals that of the prefix, and the name begins with the name of the prefix.
    #[must_use]
    pub fn begins_with(&self, prefix: &Self) -> bool {
        self.0.starts_with(&*prefix.0)
    }

    /// The key as kube's stores represent it.
    #[must_use]
    pub fn object_ref<K: Resource<DynamicType = ()>>(&self) -> ObjectRef<K> {
        let object = ObjectRef::new(self.name());
        match self.namespace() {
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
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_has_namespace_and_name() {
        let key = ObjectKey::new("ns", "a");
        assert_eq!((key.namespace(), key.name()), ("ns", "a"));
        assert_eq!(key.to_string(), "ns/a");
        assert_eq!(key.sibling("b"), ObjectKey::new("ns", "b"));
        let key = ObjectKey::new("", "a");
        assert_eq!((key.namespace(), key.name()), ("", "a"));
        assert_eq!(key.to_string(), "a");
    }

    #[test]
    fn prefix_of_another_namespace_does_not_match() {
        let key = ObjectKey::new("ns", "image-1");
        assert!(key.begins_with(&ObjectKey::new("ns", "image-")));
        assert!(!key.begins_with(&ObjectKey::new("n", "image-")));
        assert!(!ObjectKey::new("", "image-1").begins_with(&ObjectKey::new("ns", "image-")));
    }
}
