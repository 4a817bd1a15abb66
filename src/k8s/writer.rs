//! (client) The write requests of controllers. Each error names the verb and the object.

use crate::k8s::cluster::Cluster;
use crate::k8s::error::Error;
use crate::k8s::store::children::Cache;
use crate::k8s::store::primary::PrimaryStore;
use crate::k8s::watch::PAGE_SIZE;
use kube::api::{
    DeleteParams, GetParams, ListParams, ObjectList, Patch, PatchParams, PostParams, Preconditions,
    PropagationPolicy,
};
use kube::core::{NamespaceResourceScope, PartialObjectMeta, Request};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;

/// Writes objects of one namespace. Responses are decoded into the types that the stores hold.
pub struct Writer<'a> {
    cluster: &'a Cluster,
    namespace: &'a str,
}

fn failed<K: Resource<DynamicType = ()>>(
    verb: &'static str,
    name: &str,
) -> impl FnOnce(kube::Error) -> Error {
    move |source| Error::Api {
        verb,
        kind: K::kind(&()).into(),
        name: name.to_owned(),
        source,
    }
}

/// The API server also returns 409 for a quota conflict, with another reason.
fn already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

impl<'a> Writer<'a> {
    /// A writer for objects of that namespace. The namespace is empty for cluster-scoped objects.
    #[must_use]
    pub fn new(cluster: &'a Cluster, namespace: &'a str) -> Self {
        Self { cluster, namespace }
    }

    /// Parameters of a merge patch or a strategic patch.
    fn params(&self) -> PatchParams {
        PatchParams {
            field_manager: Some(self.cluster.manager.field_manager.to_owned()),
            ..PatchParams::default()
        }
    }

    fn request<K: Resource<DynamicType = ()>>(&self) -> Request {
        let namespace = Some(self.namespace).filter(|namespace| !namespace.is_empty());
        Request::new(K::url_path(&(), namespace))
    }

    /// Sends a request. `verb` appears in the error.
    async fn send<K, V>(
        &self,
        verb: &'static str,
        name: &str,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<V, Error>
    where
        K: Resource<DynamicType = ()>,
        V: DeserializeOwned,
    {
        let answer = async {
            self.cluster
                .client
                .request(request.map_err(kube::Error::BuildRequest)?)
                .await
        };
        answer.await.map_err(failed::<K>(verb, name))
    }

    /// Sends a request and applies the response to the cache.
    async fn send_into<K, V>(
        &self,
        cache: &Cache<V>,
        verb: &'static str,
        name: &str,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Arc<V>, Error>
    where
        K: Resource<DynamicType = ()>,
        V: Resource + DeserializeOwned,
    {
        let writing = cache.writing();
        Ok(writing.answered(self.send::<K, V>(verb, name, request).await?))
    }

    /// Sends a request about a primary object. Its store applies the response.
    async fn send_into_primary<K, V>(
        &self,
        store: &PrimaryStore<K>,
        verb: &'static str,
        name: &str,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Arc<K>, Error>
    where
        K: Resource<DynamicType = ()> + Clone + 'static,
        V: DeserializeOwned + Into<K>,
    {
        let answer = self.send::<K, V>(verb, name, request).await?;
        Ok(store.answered(answer.into()))
    }

    /// Creates the object, or returns the existing object with its name.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn create_or_get<K, V>(&self, cache: &Cache<V>, object: &K) -> Result<Arc<V>, Error>
    where
        K: Resource<DynamicType = ()> + Serialize,
        V: Resource + DeserializeOwned,
    {
        let name = object.name_any();
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError);
        let body = body.map_err(failed::<K>("create", &name))?;
        let params = PostParams {
            field_manager: Some(self.cluster.manager.field_manager.to_owned()),
            ..PostParams::default()
        };
        match self
            .send_into::<K, V>(
                cache,
                "create",
                &name,
                self.request::<K>().create(&params, body),
            )
            .await
        {
            Err(Error::Api { source, .. }) if already_exists(&source) => {
                let request = self.request::<K>().get(&name, &GetParams::default());
                self.send_into::<K, V>(cache, "get", &name, request).await
            }
            answer => answer,
        }
    }

    /// Returns the object with that name, if it exists.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn find<K, V>(&self, name: &str) -> Result<Option<V>, Error>
    where
        K: Resource<DynamicType = ()>,
        V: DeserializeOwned,
    {
        match self
            .send::<K, V>(
                "get",
                name,
                self.request::<K>().get(name, &GetParams::default()),
            )
            .await
        {
            Err(error) if error.is_absence() => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Returns the object with that name, if it exists, and applies the response to the cache.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn find_into<K, V>(
        &self,
        cache: &Cache<V>,
        name: &str,
    ) -> Result<Option<Arc<V>>, Error>
    where
        K: Resource<DynamicType = ()>,
        V: Resource + DeserializeOwned,
    {
        let writing = cache.writing();
        let found = self.find::<K, V>(name).await?;
        Ok(found.map(|found| writing.answered(found)))
    }

    /// The metadata of the objects with these labels.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn list_metadata<K>(&self, labels: &str) -> Result<Vec<PartialObjectMeta<K>>, Error>
    where
        K: Resource<DynamicType = ()> + Clone,
    {
        let request = self
            .request::<K>()
            .list(&ListParams::default().labels(labels));
        let request = request.map_err(kube::Error::BuildRequest);
        let request = request.map_err(failed::<K>("list", labels))?;
        let answer = self
            .cluster
            .client
            .request::<ObjectList<PartialObjectMeta<K>>>(request);
        let list = answer.await.map_err(failed::<K>("list", labels))?;
        Ok(list.items)
    }

    /// All objects, as `V`, in their newest state. The API server answers in pages of one moment.
    ///
    /// # Errors
    /// If a request fails. A part of the list is no list.
    pub async fn list_all<K, V>(&self) -> Result<Vec<V>, Error>
    where
        K: Resource<DynamicType = ()>,
        V: DeserializeOwned + Clone,
    {
        let (mut all, mut params) = (Vec::new(), ListParams::default().limit(PAGE_SIZE));
        let place = match self.namespace {
            "" => "in all namespaces",
            namespace => namespace,
        };
        loop {
            let request = self.request::<K>().list(&params);
            let page: ObjectList<V> = self.send::<K, _>("list", place, request).await?;
            all.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(all),
            }
        }
    }

    /// Patches the object. A strategic patch merges lists of built-in kinds by the keys of their items.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn patch<K, V>(
        &self,
        cache: &Cache<V>,
        name: &str,
        patch: &Patch<Value>,
    ) -> Result<Arc<V>, Error>
    where
        K: Resource<DynamicType = ()>,
        V: Resource + DeserializeOwned,
    {
        self.send_into::<K, V>(
            cache,
            "patch",
            name,
            self.request::<K>().patch(name, &self.params(), patch),
        )
        .await
    }

    /// Patches a subresource of the object. Custom kinds know no strategic patches.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn patch_subresource<K, V>(
        &self,
        cache: &Cache<V>,
        subresource: &'static str,
        name: &str,
        patch: &Patch<Value>,
    ) -> Result<Arc<V>, Error>
    where
        K: Resource<DynamicType = ()>,
        V: Resource + DeserializeOwned,
    {
        let request =
            self.request::<K>()
                .patch_subresource(subresource, name, &self.params(), patch);
        self.send_into::<K, V>(cache, subresource, name, request)
            .await
    }

    /// Creates the object, or changes the fields that this program has applied before or applies now. It takes over fields of other
    /// managers, whoever owns the object: check the owner of a present object before, see [`ownership`](crate::k8s::ownership). Fields that the program has applied before and that the object lacks are removed.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn apply<K, V>(&self, cache: &Cache<V>, object: &K) -> Result<Arc<V>, Error>
    where
        K: Resource<DynamicType = ()> + Serialize,
        V: Resource + DeserializeOwned,
    {
        let name = object.name_any();
        let body = serde_json::to_value(object).map_err(kube::Error::SerdeError);
        let mut body = body.map_err(failed::<K>("apply", &name))?;
        if let Some(fields) = body.as_object_mut() {
            // The API server requires both.
            fields.insert("apiVersion".to_owned(), K::api_version(&()).into());
            fields.insert("kind".to_owned(), K::kind(&()).into());
        }
        let params = PatchParams::apply(self.cluster.manager.field_manager).force();
        let request = self
            .request::<K>()
            .patch(&name, &params, &Patch::Apply(body));
        self.send_into::<K, V>(cache, "apply", &name, request).await
    }

    /// Patches a primary object with a merge patch. The response is decoded as `V`. If the patch contains `metadata.resourceVersion`, the
    /// object must have that version. A merge patch replaces lists as a whole, so a patch of a list needs the version.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn merge<K, V>(
        &self,
        store: &PrimaryStore<K>,
        name: &str,
        patch: &Value,
    ) -> Result<Arc<K>, Error>
    where
        K: Resource<DynamicType = ()> + Clone + 'static,
        V: DeserializeOwned + Into<K>,
    {
        let request = self
            .request::<K>()
            .patch(name, &self.params(), &Patch::Merge(patch));
        self.send_into_primary::<K, V>(store, "patch", name, request)
            .await
    }

    /// Patches the status of a primary object with a merge patch, which can remove fields that another manager owns. The response is
    /// decoded as `V`.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn merge_status<K, V>(
        &self,
        store: &PrimaryStore<K>,
        name: &str,
        patch: &Value,
    ) -> Result<Arc<K>, Error>
    where
        K: Resource<DynamicType = ()> + Clone + 'static,
        V: DeserializeOwned + Into<K>,
    {
        let (params, patch) = (self.params(), Patch::Merge(patch));
        let request = self
            .request::<K>()
            .patch_subresource("status", name, &params, &patch);
        self.send_into_primary::<K, V>(store, "patch the status of", name, request)
            .await
    }

    /// Applies a part of the status of a primary object with the given field manager. The response is decoded as `V`.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn apply_status<K, V>(
        &self,
        store: &PrimaryStore<K>,
        name: &str,
        manager: &str,
        object: &Value,
    ) -> Result<Arc<K>, Error>
    where
        K: Resource<DynamicType = ()> + Clone + 'static,
        V: DeserializeOwned + Into<K>,
    {
        let (params, patch) = (PatchParams::apply(manager).force(), Patch::Apply(object));
        let request = self
            .request::<K>()
            .patch_subresource("status", name, &params, &patch);
        self.send_into_primary::<K, V>(store, "apply the status of", name, request)
            .await
    }

    /// Deletes the object if it still has that UID, and that version if one is given. The default grace period is the
    /// object's own. If the object still exists, the cache applies the response, which has a deletion timestamp. Returns
    /// whether this request has deleted the object.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn delete<K, V>(
        &self,
        cache: &Cache<V>,
        name: &str,
        preconditions: Preconditions,
        grace: Option<i64>,
    ) -> Result<bool, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        V: Resource + DeserializeOwned,
    {
        let grace_period_seconds = grace.map(|grace| u32::try_from(grace).unwrap_or(u32::MAX));
        let params = DeleteParams {
            grace_period_seconds,
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        let writing = cache.writing();
        let left = self.send_delete::<K, V>(name, &params).await?;
        Ok(left
            .map(|left| left.map(|left| writing.answered(left)))
            .is_some())
    }

    /// Deletes a primary object under these preconditions. With [`PropagationPolicy::Foreground`], the object remains until its children are
    /// deleted. Returns whether this request has deleted the object. If the object still exists, the store applies the response, which has a
    /// deletion timestamp.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn delete_primary<K, V>(
        &self,
        store: &PrimaryStore<K>,
        name: &str,
        preconditions: Preconditions,
        propagation: PropagationPolicy,
    ) -> Result<bool, Error>
    where
        K: Resource<DynamicType = ()> + Clone + 'static,
        V: DeserializeOwned + Into<K>,
    {
        let params = propagated(preconditions, propagation);
        let left = self.send_delete::<K, V>(name, &params).await?;
        Ok(left
            .map(|left| left.map(|left| store.answered(left.into())))
            .is_some())
    }

    /// Deletes an object that is in no store, under these preconditions. Returns whether this request has deleted the object.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn delete_unstored<K: Resource<DynamicType = ()>>(
        &self,
        name: &str,
        preconditions: Preconditions,
        propagation: PropagationPolicy,
    ) -> Result<bool, Error> {
        let params = propagated(preconditions, propagation);
        let left = self.send_delete::<K, PartialObjectMeta<K>>(name, &params);
        Ok(left.await?.is_some())
    }

    /// Sends a deletion. Returns `None` if this request has not deleted the object, else the object if it still exists.
    async fn send_delete<K, V>(
        &self,
        name: &str,
        params: &DeleteParams,
    ) -> Result<Option<Option<V>>, Error>
    where
        K: Resource<DynamicType = ()>,
        V: DeserializeOwned,
    {
        let request = self
            .request::<K>()
            .delete(name, params)
            .map_err(kube::Error::BuildRequest);
        let request = request.map_err(failed::<K>("delete", name))?;
        let answer = self.cluster.client.request_status::<V>(request).await;
        match answer.map_err(failed::<K>("delete", name)) {
            Ok(answer) => Ok(Some(answer.left())),
            // The object was deleted, replaced or changed, so the intended object no longer exists.
            Err(error) if error.is_absence() || error.code() == Some(409) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The parameters of a deletion with that propagation.
fn propagated(preconditions: Preconditions, propagation: PropagationPolicy) -> DeleteParams {
    DeleteParams {
        preconditions: Some(preconditions),
        propagation_policy: Some(propagation),
        ..DeleteParams::default()
    }
}

/// The precondition that the object has that UID.
#[must_use]
pub fn only_uid(uid: &str) -> Preconditions {
    Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::cluster::Manager;
    use k8s_openapi::api::core::v1::{ConfigMap, Node};
    use kube::client::Body;
    use serde_json::json;

    const MANAGER: Manager = Manager {
        field_manager: "fake",
        reporter: "fake",
        action: "Reconcile",
    };

    #[tokio::test]
    async fn list_is_complete_or_fails() {
        let list = async |last: u16| {
            let pages = tower::service_fn(move |request: http::Request<Body>| {
                let query = request.uri().query().unwrap_or_default();
                let (status, next, name) = match query.contains("continue=next") {
                    false => (200, "next", "a"),
                    true => (last, "", "b"),
                };
                let page = json!({"metadata": {"continue": next}, "items": [{"metadata": {"name": name}}]});
                let body = Body::from(page.to_string().into_bytes());
                let answer = http::Response::builder().status(status).body(body);
                async { Ok::<_, std::convert::Infallible>(answer.unwrap()) }
            });
            let cluster = Cluster::new(kube::Client::new(pages, "ns"), MANAGER);
            let listed = Writer::new(&cluster, "").list_all::<Node, Node>().await;
            listed.map(|all| all.iter().map(ResourceExt::name_any).collect::<Vec<_>>())
        };
        assert_eq!(list(200).await.unwrap(), ["a", "b"]);
        list(410).await.unwrap_err();
    }

    #[tokio::test]
    async fn the_path_of_a_cluster_scoped_object_has_no_namespace() {
        let nothing = tower::service_fn(async |_| {
            Ok::<_, std::convert::Infallible>(axum::http::Response::new(Body::empty()))
        });
        let cluster = Cluster::new(kube::Client::new(nothing, "ns"), MANAGER);
        let path = |request: Request| {
            request
                .get("a", &GetParams::default())
                .unwrap()
                .uri()
                .path()
                .to_owned()
        };
        assert_eq!(
            path(Writer::new(&cluster, "").request::<Node>()),
            "/api/v1/nodes/a"
        );
        assert_eq!(
            path(Writer::new(&cluster, "ns").request::<ConfigMap>()),
            "/api/v1/namespaces/ns/configmaps/a"
        );
    }
}
