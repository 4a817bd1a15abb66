//! The stores of a process, for readiness and metrics.

use futures::future::BoxFuture;
use std::sync::Arc;

/// A store of the objects of one resource.
pub trait Stored: Send + Sync {
    /// Whether the first list is complete.
    fn is_ready(&self) -> bool;
    /// Returns when the first list is complete.
    fn ready(&self) -> BoxFuture<'_, ()>;
    /// The number of objects.
    fn count(&self) -> usize;
    /// Whether the API server does not know the resource.
    fn is_unknown(&self) -> bool {
        false
    }
}

/// All stores of a process, by resource.
#[derive(Clone, Default)]
pub struct Registry {
    stores: Vec<(&'static str, Arc<dyn Stored>)>,
    /// Stores that only their own controller waits for.
    optional: Vec<(&'static str, Arc<dyn Stored>)>,
}

impl Registry {
    /// Adds a store. Logs, metrics and /readyz show the name, which is unique in the process: if another controller stores the same
    /// resource, name the controller too.
    pub fn add(&mut self, resource: &'static str, store: Arc<dyn Stored>) {
        self.stores.push((resource, store));
    }

    /// Adds a store that leadership and readiness do not wait for: without it, the other controllers of the process work. The controller
    /// itself waits in [`Reconciler::ready`](crate::k8s::controller::Reconciler::ready).
    pub fn add_optional(&mut self, resource: &'static str, store: Arc<dyn Stored>) {
        self.optional.push((resource, store));
    }

    /// The required resources with an incomplete first list.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        self.resources(|store| !store.is_ready())
    }

    /// The required resources that the API server does not know.
    #[must_use]
    pub fn unknown(&self) -> Vec<&'static str> {
        self.resources(|store| store.is_unknown())
    }

    fn resources(&self, is_meant: impl Fn(&dyn Stored) -> bool) -> Vec<&'static str> {
        let meant = self.stores.iter().filter(|(_, store)| is_meant(&**store));
        meant.map(|(resource, _)| *resource).collect()
    }

    /// The number of objects of each resource.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, usize)> {
        let all = self.stores.iter().chain(&self.optional);
        all.map(|(resource, store)| (*resource, store.count()))
    }

    /// Returns when all required first lists are complete.
    pub async fn ready(&self) {
        futures::future::join_all(self.stores.iter().map(|(_, store)| store.ready())).await;
    }
}
