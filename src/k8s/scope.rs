//! (client) The objects of one namespace, as a controller reads and writes them.

use crate::k8s::cluster::Cluster;
use crate::k8s::key::ObjectKey;
use crate::k8s::watch::Namespaces;
use crate::k8s::writer::Writer;

/// One namespace of the cluster.
#[derive(Clone)]
pub struct Scope {
    /// Client, leadership, clocks and metrics, shared by all controllers.
    pub cluster: Cluster,
    /// The namespace.
    pub namespace: String,
}

impl Scope {
    /// A writer for objects of the namespace.
    #[must_use]
    pub fn writer(&self) -> Writer<'_> {
        Writer::new(&self.cluster, &self.namespace)
    }

    /// The namespace, as the watches need it.
    #[must_use]
    pub fn namespaces(&self) -> Namespaces {
        Namespaces::Only(vec![self.namespace.clone()])
    }

    /// The key of an object in the namespace.
    #[must_use]
    pub fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(&self.namespace, name)
    }
}
