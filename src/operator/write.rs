//! (client) The few ways in which the operator writes, each of which says in its error what it tried.

use super::cache::{Cache, Given};
use super::context::Context;
use super::error::Error;
use super::views::PodView;
use crate::api::{VirtualMachine, names};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{NamespaceResourceScope, Request};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Writes objects of the operator's namespace. Answers are decoded into the views that the caches hold.
pub struct Writer<'a> {
    client: &'a Client,
    namespace: &'a str,
}

fn kind<K: Resource<DynamicType = ()>>() -> &'static str {
    // All kinds that are written are static; their names are borrowed from the binary.
    match K::kind(&()) {
        std::borrow::Cow::Borrowed(kind) => kind,
        std::borrow::Cow::Owned(_) => "object",
    }
}

fn failed<K: Resource<DynamicType = ()>>(verb: &'static str, name: &str) -> impl FnOnce(kube::Error) -> Error {
    move |source| Error::Api { verb, kind: kind::<K>(), name: name.to_owned(), source }
}

fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// A quota that others use at the moment is a conflict, too, with the same code.
fn is_there(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

impl<'a> Writer<'a> {
    /// Writes by the context's client, into its namespace.
    #[must_use]
    pub fn new(ctx: &'a Context) -> Self {
        Self { client: &ctx.client, namespace: &ctx.namespace }
    }

    fn request<K: Resource<DynamicType = ()>>(&self) -> Request {
        Request::new(K::url_path(&(), Some(self.namespace)))
    }

    /// Creates the object; if there is one of its name, gives that one.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn create_or_get<K, V>(&self, object: &K) -> Result<Given<V>, Error>
    where
        K: Resource<DynamicType = ()> + Serialize,
        V: DeserializeOwned,
    {
        let name = object.name_any();
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError);
        let body = body.map_err(failed::<K>("create", &name))?;
        let params = PostParams { field_manager: Some(names::MANAGER_OPERATOR.to_owned()), ..PostParams::default() };
        let request = self.request::<K>().create(&params, body).map_err(kube::Error::BuildRequest);
        match self.client.request(request.map_err(failed::<K>("create", &name))?).await {
            Err(error) if is_there(&error) => self.get::<K, V>(&name).await.map(Given::There),
            answer => answer.map(Given::Made).map_err(failed::<K>("create", &name)),
        }
    }

    /// The object of that name, if there is one.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn find<K, V>(&self, name: &str) -> Result<Option<V>, Error>
    where
        K: Resource<DynamicType = ()>,
        V: DeserializeOwned,
    {
        match self.get::<K, V>(name).await {
            Err(error) if error.code() == Some(404) => Ok(None),
            answer => answer.map(Some),
        }
    }

    async fn get<K: Resource<DynamicType = ()>, V: DeserializeOwned>(&self, name: &str) -> Result<V, Error> {
        let request =
            self.request::<K>().get(name, &kube::api::GetParams::default()).map_err(kube::Error::BuildRequest);
        self.client.request(request.map_err(failed::<K>("get", name))?).await.map_err(failed::<K>("get", name))
    }

    /// Applies the object, as its only owner.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn apply<K, V>(&self, object: &K) -> Result<V, Error>
    where
        K: Resource<DynamicType = ()> + Serialize + std::fmt::Debug,
        V: DeserializeOwned,
    {
        let name = object.name_any();
        let params = PatchParams::apply(names::MANAGER_OPERATOR).force();
        let body = with_type(object).map_err(failed::<K>("apply", &name))?;
        let request =
            self.request::<K>().patch(&name, &params, &Patch::Apply(&body)).map_err(kube::Error::BuildRequest);
        self.client.request(request.map_err(failed::<K>("apply", &name))?).await.map_err(failed::<K>("apply", &name))
    }

    /// Merges into the object.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn merge<K, V>(&self, name: &str, patch: &serde_json::Value) -> Result<V, Error>
    where
        K: Resource<DynamicType = ()>,
        V: DeserializeOwned,
    {
        let params = PatchParams { field_manager: Some(names::MANAGER_OPERATOR.to_owned()), ..PatchParams::default() };
        let request = self.request::<K>().patch(name, &params, &Patch::Merge(patch)).map_err(kube::Error::BuildRequest);
        self.client.request(request.map_err(failed::<K>("patch", name))?).await.map_err(failed::<K>("patch", name))
    }

    /// Merges the object into the one that there is, lists by the keys of their items, and the other patch besides.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn merge_by_key<K, V>(&self, object: &K, besides: &serde_json::Value) -> Result<V, Error>
    where
        K: Resource<DynamicType = ()> + Serialize,
        V: DeserializeOwned,
    {
        let name = object.name_any();
        let mut body = with_type(object).map_err(failed::<K>("patch", &name))?;
        overlay(&mut body, besides);
        let params = PatchParams { field_manager: Some(names::MANAGER_OPERATOR.to_owned()), ..PatchParams::default() };
        let request = self.request::<K>().patch(&name, &params, &Patch::Strategic(&body));
        let request = request.map_err(kube::Error::BuildRequest).map_err(failed::<K>("patch", &name))?;
        self.client.request(request).await.map_err(failed::<K>("patch", &name))
    }

    /// Changes the resources of a pod's containers, which are merged by name.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn resize(&self, name: &str, patch: &serde_json::Value) -> Result<PodView, Error> {
        let params = PatchParams { field_manager: Some(names::MANAGER_OPERATOR.to_owned()), ..PatchParams::default() };
        let request = self.request::<Pod>().patch_subresource("resize", name, &params, &Patch::Strategic(patch));
        let request = request.map_err(kube::Error::BuildRequest).map_err(failed::<Pod>("resize", name))?;
        self.client.request(request).await.map_err(failed::<Pod>("resize", name))
    }

    /// Merges into a VM.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn merge_vm(&self, name: &str, patch: &serde_json::Value) -> Result<VirtualMachine, Error> {
        self.merge::<VirtualMachine, _>(name, patch).await
    }

    /// Applies a part of the status of a VM that cannot be read.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn apply_status_unread(
        &self,
        name: &str,
        manager: &str,
        object: &serde_json::Value,
    ) -> Result<(), Error> {
        let params = PatchParams::apply(manager).force();
        let request =
            self.request::<VirtualMachine>().patch_subresource("status", name, &params, &Patch::Apply(object));
        let verb = "apply the status of";
        let request = request.map_err(kube::Error::BuildRequest).map_err(failed::<VirtualMachine>(verb, name))?;
        let answer = self.client.request::<serde_json::Value>(request).await;
        answer.map(drop).map_err(failed::<VirtualMachine>(verb, name))
    }

    /// Applies a part of a VM's status, as the field manager given.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn apply_status(
        &self,
        name: &str,
        manager: &str,
        object: &serde_json::Value,
    ) -> Result<VirtualMachine, Error> {
        let api = Api::<VirtualMachine>::namespaced(self.client.clone(), self.namespace);
        let params = PatchParams::apply(manager).force();
        let answer = api.patch_status(name, &params, &Patch::Apply(object)).await;
        answer.map_err(failed::<VirtualMachine>("apply the status of", name))
    }

    /// Deletes the object, if it still is the one of that UID (and of that version, if one is given), and gives it that many
    /// seconds to end; without, as many as it says itself. The cache takes in what is left of it while it ends.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn delete<K, V>(
        &self,
        cache: &Cache<V>,
        name: &str,
        preconditions: Preconditions,
        grace: Option<i64>,
    ) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        V: Resource + Serialize + DeserializeOwned,
    {
        let grace_period_seconds = grace.map(|grace| u32::try_from(grace).unwrap_or(u32::MAX));
        let params =
            DeleteParams { grace_period_seconds, preconditions: Some(preconditions), ..DeleteParams::default() };
        let request = self.request::<K>().delete(name, &params).map_err(kube::Error::BuildRequest);
        let request = request.map_err(failed::<K>("delete", name))?;
        let writing = cache.writing();
        match self.client.request_status::<V>(request).await {
            Ok(answer) => answer.left().map_or((), |left| writing.answered(left)),
            // Gone, or another one by now, or changed: either way the one that was meant is no more.
            Err(error) if is_code(&error, 404) || is_code(&error, 409) => {}
            Err(error) => return Err(failed::<K>("delete", name)(error)),
        }
        Ok(())
    }
}

/// That the object is the one of that UID.
#[must_use]
pub fn only(uid: &str) -> Preconditions {
    Preconditions { uid: Some(uid.to_owned()), resource_version: None }
}

/// Puts the fields of the second into the first.
fn overlay(object: &mut serde_json::Value, fields: &serde_json::Value) {
    let (Some(target), Some(fields)) = (object.as_object_mut(), fields.as_object()) else {
        object.clone_from(fields);
        return;
    };
    for (name, value) in fields {
        overlay(target.entry(name.as_str()).or_insert(serde_json::Value::Null), value);
    }
}

/// The object with `apiVersion` and `kind`, which server-side apply asks for.
fn with_type<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Result<serde_json::Value, kube::Error> {
    let mut value = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    if let Some(map) = value.as_object_mut() {
        map.insert("apiVersion".to_owned(), K::api_version(&()).into_owned().into());
        map.insert("kind".to_owned(), K::kind(&()).into_owned().into());
    }
    Ok(value)
}
