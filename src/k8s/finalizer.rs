//! (client) Finalizers of primary objects. Each write has the version of the object as a precondition, because a merge patch replaces the
//! whole list. The store must have all finalizers: the functions of [`trim`](crate::k8s::store::trim) drop some.

use crate::k8s::error::Error;
use crate::k8s::store::primary::PrimaryStore;
use crate::k8s::writer::Writer;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::sync::Arc;

impl Writer<'_> {
    /// Adds the finalizer, if the object lacks it and is not being deleted. Returns the object as written.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn add_finalizer<K>(
        &self,
        store: &PrimaryStore<K>,
        object: Arc<K>,
        finalizer: &str,
    ) -> Result<Arc<K>, Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + 'static,
    {
        let mut finalizers = object.finalizers().to_vec();
        let is_ending = object.meta().deletion_timestamp.is_some();
        if is_ending || finalizers.iter().any(|present| present == finalizer) {
            return Ok(object);
        }
        finalizers.push(finalizer.to_owned());
        self.set_finalizers(store, &*object, &finalizers).await
    }

    /// Removes the finalizer, if the object has it.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn remove_finalizer<K>(
        &self,
        store: &PrimaryStore<K>,
        object: &K,
        finalizer: &str,
    ) -> Result<(), Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + 'static,
    {
        let mut finalizers = object.finalizers().to_vec();
        finalizers.retain(|present| present != finalizer);
        if finalizers.len() < object.finalizers().len() {
            self.set_finalizers(store, object, &finalizers).await?;
        }
        Ok(())
    }

    async fn set_finalizers<K>(
        &self,
        store: &PrimaryStore<K>,
        object: &K,
        finalizers: &[String],
    ) -> Result<Arc<K>, Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + 'static,
    {
        let version = object.resource_version();
        let body = json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}});
        self.merge::<K, K>(store, &object.name_any(), &body).await
    }
}
