//! The writes of a client to the API server about VMs, and another client that sends the same writes about other VMs. So the
//! API server has the same work, without the work of the first client.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response};
use kube::client::Body;
use kube::core::PartialObjectMeta;
use kube::{Client, Error};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use vm_operator::api::VirtualMachine;
use vm_operator::k8s::live::Version;

/// The name of a VM. All names have the same length, so that [`vm_in`] finds them.
#[must_use]
pub fn vm_name(n: usize) -> String {
    format!("vm-{n:05}")
}

/// The first name of a VM in the text, in the format of [`vm_name`].
#[must_use]
pub fn vm_in(text: &str) -> Option<String> {
    let is_name = |name: &&str| name.bytes().skip(3).all(|b| b.is_ascii_digit());
    text.match_indices("vm-")
        .filter_map(|(at, _)| text.get(at..at + 8))
        .find(is_name)
        .map(str::to_owned)
}

/// The version of the object in a response.
fn version_in(body: &[u8]) -> Version {
    let object = serde_json::from_slice::<PartialObjectMeta<VirtualMachine>>(body);
    object
        .map(|object| Version::of(&object))
        .unwrap_or_default()
}

/// A successful write.
#[derive(Clone, Debug)]
pub struct Write {
    method: Method,
    /// Path and query.
    target: String,
    /// The type of a patch.
    content_type: Option<HeaderValue>,
    body: String,
    /// The object after the write.
    result: Version,
}

impl Write {
    /// Method, resource with subresource, and type of the body, such as `PATCH vms/status application/merge-patch+json`.
    #[must_use]
    pub fn kind(&self) -> String {
        let path = self.target.split('?').next().unwrap_or_default();
        let in_namespace = path.split("/namespaces/").nth(1).unwrap_or_default();
        let parts: Vec<&str> = in_namespace.split('/').collect();
        let subresource = parts.get(3).map(|name| format!("/{name}"));
        let content_type = self.content_type.as_ref().map(|value| value.to_str());
        format!(
            "{} {}{} {}",
            self.method,
            parts.get(1).unwrap_or(&""),
            subresource.unwrap_or_default(),
            content_type.and_then(Result::ok).unwrap_or_default()
        )
    }
}

/// The recorded writes of clients, in the order of their responses.
#[derive(Clone, Default)]
pub struct Writes(Arc<Mutex<Option<Vec<Write>>>>);

impl Writes {
    /// Starts a new record.
    pub fn start(&self) {
        *self.0.lock().unwrap() = Some(Vec::new());
    }

    /// Ends the record, and returns the writes about each VM. Other writes, such as those of a Lease, are left out.
    #[must_use]
    pub fn stop(&self) -> BTreeMap<String, Vec<Write>> {
        let mut writes = BTreeMap::<_, Vec<_>>::new();
        for write in self.0.lock().unwrap().take().unwrap_or_default() {
            if let Some(vm) = vm_in(&write.target).or_else(|| vm_in(&write.body)) {
                writes.entry(vm).or_default().push(write);
            }
        }
        writes
    }

    /// A client with the connection of that one. Its successful writes are recorded.
    #[must_use]
    pub fn client(&self, server: Client) -> Client {
        let (writes, namespace) = (self.clone(), server.default_namespace().to_owned());
        let service = move |request| writes.clone().pass(server.clone(), request);
        Client::new(tower::service_fn(service), namespace)
    }

    async fn pass(self, server: Client, request: Request<Body>) -> Result<Response<Body>, Error> {
        if request.method() == Method::GET || self.0.lock().unwrap().is_none() {
            return server.send(request).await;
        }
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        let mut write = Write {
            method: parts.method.clone(),
            target: parts.uri.to_string(),
            content_type: parts.headers.get(CONTENT_TYPE).cloned(),
            body: String::from_utf8_lossy(&body).into_owned(),
            result: Version::default(),
        };
        let response = server.send(Request::from_parts(parts, body.into())).await?;
        let (parts, body) = response.into_parts();
        let body: Bytes = body.collect_bytes().await?;
        if parts.status.is_success() {
            write.result = version_in(&body);
            if let Some(writes) = self.0.lock().unwrap().as_mut() {
                writes.push(write);
            }
        }
        Ok(Response::from_parts(parts, body.into()))
    }
}

/// Sends recorded writes again, about VMs with the same names in another namespace.
pub struct Replay<'a> {
    /// The client that sends them.
    pub client: &'a Client,
    /// The namespace of the recorded writes.
    pub from: &'a str,
    /// The namespace of the sent ones.
    pub to: &'a str,
}

impl Replay<'_> {
    /// Sends the writes about a VM, one after the other. UIDs and resource versions are replaced by those of the objects
    /// in the other namespace.
    ///
    /// # Panics
    /// The API server rejects a write.
    pub async fn send(&self, writes: &[Write], recorded: Version, present: Version) {
        let mut replacements = vec![(self.from.to_owned(), self.to.to_owned())];
        add_replacements(&mut replacements, recorded, present);
        for write in writes {
            // A new UID or resource version never equals a recorded one, so the order of replacements has no effect.
            let replaced = |text: &str| {
                let text = text.to_owned();
                let pairs = replacements.iter();
                pairs.fold(text, |text, (old, new)| text.replace(old, new))
            };
            let mut request = Request::builder()
                .method(write.method.clone())
                .uri(replaced(&write.target));
            if let Some(content_type) = &write.content_type {
                request = request.header(CONTENT_TYPE, content_type);
            }
            let body = Body::from(replaced(&write.body).into_bytes());
            let response = self.client.send(request.body(body).unwrap()).await.unwrap();
            let status = response.status();
            let body = response.into_body().collect_bytes().await.unwrap();
            let text = String::from_utf8_lossy(&body);
            assert!(status.is_success(), "{}: {text}", write.kind());
            let present = version_in(&body);
            add_replacements(&mut replacements, write.result.clone(), present);
        }
    }
}

fn add_replacements(replacements: &mut Vec<(String, String)>, old: Version, new: Version) {
    let field = |version: String| format!("\"resourceVersion\":\"{version}\"");
    let versions = (field(old.version), field(new.version));
    for (old, new) in [(old.uid, new.uid), versions] {
        let is_known = replacements.iter().any(|(known, _)| *known == old);
        if !old.is_empty() && !is_known {
            replacements.push((old, new));
        }
    }
}
