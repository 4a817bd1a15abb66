//! (client) The few ways in which the operator writes, each of which says in its error what it tried.

use super::cache::{Cache, Given};
use super::context::Context;
use super::error::Error;
use super::views::PodView;
use crate::api::{VirtualMachine, names};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
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

    /// Sends a request. `verb` says in an error what was tried.
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
        let answer = async { self.client.request(request.map_err(kube::Error::BuildRequest)?).await };
        answer.await.map_err(failed::<K>(verb, name))
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
        match self.send::<K, V>("create", &name, self.request::<K>().create(&params, body)).await {
            Err(Error::Api { source, .. }) if is_there(&source) => self.get::<K, V>(&name).await.map(Given::There),
            answer => answer.map(Given::Made),
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
        self.send::<K, V>("get", name, self.request::<K>().get(name, &GetParams::default())).await
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
        let body = with_type(object).map_err(failed::<K>("apply", &name))?;
        let params = PatchParams::apply(names::MANAGER_OPERATOR).force();
        let request = self.request::<K>().patch(&name, &params, &Patch::Apply(&body));
        self.send::<K, V>("apply", &name, request).await
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
        self.send::<K, V>("patch", name, self.request::<K>().patch(name, &as_operator(), &Patch::Merge(patch))).await
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
        let request = self.request::<K>().patch(&name, &as_operator(), &Patch::Strategic(&body));
        self.send::<K, V>("patch", &name, request).await
    }

    /// Changes the resources of a pod's containers, which are merged by name.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn resize(&self, name: &str, patch: &serde_json::Value) -> Result<PodView, Error> {
        let request = self.request::<Pod>().patch_subresource("resize", name, &as_operator(), &Patch::Strategic(patch));
        self.send::<Pod, PodView>("resize", name, request).await
    }

    /// Merges into a VM.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn merge_vm(&self, name: &str, patch: &serde_json::Value) -> Result<VirtualMachine, Error> {
        self.merge::<VirtualMachine, _>(name, patch).await
    }

    /// Applies a part of a VM's status, as the field manager given. The answer may be taken as any type that it fits.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn apply_status<V: DeserializeOwned>(
        &self,
        name: &str,
        manager: &str,
        object: &serde_json::Value,
    ) -> Result<V, Error> {
        let params = PatchParams::apply(manager).force();
        let request =
            self.request::<VirtualMachine>().patch_subresource("status", name, &params, &Patch::Apply(object));
        self.send::<VirtualMachine, V>("apply the status of", name, request).await
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

/// For a patch under the operator's name that owns no fields for good.
fn as_operator() -> PatchParams {
    PatchParams { field_manager: Some(names::MANAGER_OPERATOR.to_owned()), ..PatchParams::default() }
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
