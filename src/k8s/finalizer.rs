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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::cluster::{Cluster, Manager};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use serde_json::Value;

    #[tokio::test]
    async fn p17_only_the_own_finalizer_is_removed() {
        let patched = tower::service_fn(async |request: http::Request<Body>| {
            let body = request.into_body().collect_bytes().await.unwrap();
            let patch: Value = serde_json::from_slice(&body).unwrap();
            let expected =
                json!({"metadata": {"finalizers": ["another/finalizer"], "resourceVersion": "7"}});
            assert_eq!(patch, expected);
            Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(
                br#"{"metadata": {"name": "a"}}"#.to_vec(),
            )))
        });
        let manager = Manager {
            field_manager: "fake",
            reporter: "fake",
            action: "Reconcile",
        };
        let cluster = Cluster::new(kube::Client::new(patched, "ns"), manager);
        let object = json!({"metadata": {"name": "a", "resourceVersion": "7", "finalizers": ["another/finalizer", "own/finalizer"]}});
        let object: ConfigMap = serde_json::from_value(object).unwrap();
        let (writer, store) = (Writer::new(&cluster, "ns"), PrimaryStore::default());
        let removed = writer.remove_finalizer(&store, &object, "own/finalizer");
        removed.await.unwrap();
    }
}
