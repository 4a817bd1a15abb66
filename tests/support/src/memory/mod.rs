//! An API server in memory: a tower service with the semantics of a Kubernetes API server, without sockets and threads.
//!
//! It has no CEL, type validation, admission policy, RBAC and quota. It responds with 501 to a call that it does not
//! implement, and records the call ([`Server::unknown_calls`]). It uses tokio's clock, which is virtual if it is
//! paused. Equal seeds give equal UIDs and latencies.
//!
//! | file | content |
//! |---|---|
//! | `route` | parsing of requests |
//! | `resource`, `schema` | kinds and their fields |
//! | `store` | objects and their history |
//! | `list`, `watch`, `selector` | reading |
//! | `write`, `patch` | writing |
//! | `fields`, `managers` | field ownership and server-side apply |
//! | `rules` | defaults and immutable fields of built-in kinds |
//! | `status` | failures |
//! | `clock` | time and latencies |

mod clock;
mod fields;
mod list;
mod managers;
mod patch;
mod quantity;
mod resource;
mod route;
mod rules;
mod schema;
mod selector;
mod status;
mod store;
#[cfg(test)]
mod tests;
mod watch;
mod write;

use bytes::Bytes;
use clock::{Clock, Latency};
use futures::StreamExt;
use http::{Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use resource::Resource;
use route::{Call, Verb};
use serde_json::{Value, json};
use status::Failure;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::Store;
use tower::BoxError;

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// The kinds of calls that are compared with a real API server (`tests/api/apiserver/conformance.rs`). Each line has
/// the format of [`Server::calls_seen`].
pub const COMPARED: &str = include_str!("compared.txt");

/// A Kubernetes API server in memory. Clones share their state.
#[derive(Clone)]
pub struct Server {
    state: Arc<Mutex<State>>,
    latency: Latency,
    clock: Clock,
}

/// The state of the server.
struct State {
    store: Store,
    resources: Vec<Arc<Resource>>,
    unknown: BTreeSet<String>,
    seen: BTreeMap<String, usize>,
    /// The number of used latencies.
    drawn: u64,
    /// The number of created objects.
    created: u64,
    clock: Clock,
    seed: u64,
}

impl Server {
    /// An empty server with the namespace `default`. The seed determines UIDs and latencies.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let clock = Clock::new();
        let state = State {
            store: Store::default(),
            resources: resource::BUILT_IN.clone(),
            unknown: BTreeSet::new(),
            seen: BTreeMap::new(),
            drawn: 0,
            created: 0,
            clock,
            seed,
        };
        let server = Self {
            state: Arc::new(Mutex::new(state)),
            latency: Latency { seed, is_on: true },
            clock,
        };
        server.create_namespace("default");
        server
    }

    /// The same server without latencies.
    #[must_use]
    pub fn without_latency(mut self) -> Self {
        self.latency.is_on = false;
        self
    }

    /// Creates a namespace without a call.
    pub fn create_namespace(&self, name: &str) {
        let mut state = self.lock();
        let namespaces = state.resource("", "namespaces");
        let number = state.next_object();
        let mut object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {}});
        object["metadata"]["uid"] = state.uid(number).into();
        object["metadata"]["creationTimestamp"] = state.time().into();
        rules::default(&namespaces, &mut object);
        rules::prepare(&namespaces, &mut object, number);
        state
            .store
            .put(&namespaces, (String::new(), name.to_owned()), object);
    }

    /// Adds the kind that a CustomResourceDefinition in YAML defines.
    ///
    /// # Panics
    /// The text is not a CustomResourceDefinition.
    pub fn install_crd(&self, yaml: &str) {
        let definition: Value =
            serde_saphyr::from_str(yaml).expect("YAML of a CustomResourceDefinition");
        self.install(Arc::new(resource::custom(&definition)));
    }

    /// Adds the custom kind of another server, because parsing YAML is slow.
    pub fn install_crds_of(&self, other: &Self) {
        let custom: Vec<_> = other
            .lock()
            .resources
            .iter()
            .filter(|resource| resource.custom)
            .cloned()
            .collect();
        custom
            .into_iter()
            .for_each(|resource| self.install(resource));
    }

    fn install(&self, resource: Arc<Resource>) {
        self.lock().resources.push(resource);
    }

    /// A client with the given default namespace.
    #[must_use]
    pub fn client(&self, namespace: &str) -> Client {
        let server = self.clone();
        Client::new(
            tower::service_fn(move |request| server.clone().answer(request)),
            namespace,
        )
    }

    /// The server's wall clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The revision of the last change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.lock().store.revision
    }

    /// Expires the changes before a revision. The server responds with 410 to lists and watches from there.
    pub fn compact(&self, revision: u64) {
        let store = &mut self.lock().store;
        store.floor = store.floor.max(revision);
    }

    /// The calls that the server does not implement, one line each.
    #[must_use]
    pub fn unknown_calls(&self) -> Vec<String> {
        self.lock().unknown.iter().cloned().collect()
    }

    /// Verb, resource, subresource and parameters of each call, and the number of such calls.
    #[must_use]
    pub fn calls_seen(&self) -> BTreeMap<String, usize> {
        self.lock().seen.clone()
    }

    /// Each change of each object in order, with the time since the server's start. The last line has the number of
    /// responses and events. Two runs with equal histories were equal.
    #[must_use]
    pub fn history(&self) -> Vec<String> {
        let state = self.lock();
        let mut lines: Vec<_> = state
            .store
            .changes()
            .map(|(kind, change)| (change.revision, kind, change))
            .collect();
        lines.sort_by_key(|(revision, ..)| *revision);
        let line = |(revision, kind, change): (u64, &str, &store::Change)| {
            let after = change.at.saturating_duration_since(self.clock.began());
            let object = change
                .new
                .as_ref()
                .map_or("deleted".to_owned(), |object| object.value.to_string());
            format!("{revision} {after:?} {kind} {} {object}", change.key.1)
        };
        let end = format!("{} answers and events", state.drawn);
        lines.into_iter().map(line).chain([end]).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Responds to a request. It takes effect after half of its latency.
    async fn answer(self, request: Request<Body>) -> Result<Answer, Infallible> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap_or_default();
        let number = self.lock().next_number();
        let latency = self.latency.of(number);
        pause(latency / 2).await;
        let answer = self.act(&parts, &body);
        pause(latency / 2).await;
        Ok(answer.unwrap_or_else(|failure| self.failed(&failure)))
    }

    fn act(&self, parts: &http::request::Parts, body: &[u8]) -> Result<Answer, Failure> {
        let state = &mut *self.lock();
        let find = |group: &str, version: &str, plural: &str| {
            let is = |r: &&Arc<Resource>| {
                (&*r.group, &*r.version, &*r.plural) == (group, version, plural)
            };
            state.resources.iter().find(is).cloned()
        };
        let call = route::read(&parts.method, &parts.uri, &parts.headers, body, find)?;
        *state.seen.entry(call.signature()).or_default() += 1;
        if call.verb == Verb::Watch {
            let lines = watch::watch(self, state, &call)?.map(|line| Ok(Frame::data(line)));
            return Ok(answer_of(
                200,
                "application/json",
                StreamBody::new(lines).boxed_unsync(),
            ));
        }
        let (code, text, content) = dispatch(state, &call)?;
        Ok(answer_of(code, content, whole(text)))
    }

    fn failed(&self, failure: &Failure) -> Answer {
        if failure.reason == status::NOT_IMPLEMENTED {
            self.lock().unknown.insert(failure.message.clone());
        }
        answer_of(
            failure.code,
            "application/json",
            whole(failure.body().to_string().into_bytes()),
        )
    }
}

/// Even a sleep of zero would let other tasks run.
async fn pause(duration: std::time::Duration) {
    if !duration.is_zero() {
        tokio::time::sleep(duration).await;
    }
}

fn whole(text: Vec<u8>) -> UnsyncBoxBody<Bytes, BoxError> {
    Full::new(Bytes::from(text))
        .map_err(Into::into)
        .boxed_unsync()
}

fn answer_of(code: u16, content: &'static str, body: UnsyncBoxBody<Bytes, BoxError>) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static(content),
    );
    answer
}

/// Carries out a call. Returns code, body and content type.
fn dispatch(state: &mut State, call: &Call) -> Result<(u16, Vec<u8>, &'static str), Failure> {
    let json = |(code, text)| (code, text, "application/json");
    let unknown = || {
        Failure::unknown(format!(
            "{:?} {}/{}",
            call.verb, call.resource.plural, call.subresource
        ))
    };
    match (
        call.verb,
        call.subresource.as_str(),
        call.resource.plural.as_str(),
    ) {
        (Verb::Get, "", _) => list::get(state_store(state), call).map(|text| json((200, text))),
        (Verb::Get, "status", _) if call.resource.has_status => {
            list::get(state_store(state), call).map(|text| json((200, text)))
        }
        (Verb::Get, "log", "pods") => {
            list::get(state_store(state), call).map(|_| (200, Vec::new(), "text/plain"))
        }
        (Verb::List, "", _) => list::list(state_store(state), call).map(|text| json((200, text))),
        (Verb::Create, "", _) if call.name.is_none() => write::create(state, call).map(json),
        (Verb::Create, "binding", "pods") => write::bind(state, call).map(json),
        (Verb::Update | Verb::Apply | Verb::Merge | Verb::Strategic, ..) => {
            write::change(state, call).map(json)
        }
        (Verb::Delete, "", _) => write::delete(state, call).map(json),
        _ => Err(unknown()),
    }
}

fn state_store(state: &mut State) -> &mut Store {
    &mut state.store
}

impl State {
    /// The next number for a latency.
    fn next_number(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    /// The next number for an object.
    fn next_object(&mut self) -> u64 {
        self.created += 1;
        self.created
    }

    /// The UID of the object with that number.
    fn uid(&self, number: u64) -> String {
        let (a, b) = (
            clock::pseudo_random(self.seed ^ clock::pseudo_random(number)),
            clock::pseudo_random(number.wrapping_add(self.seed << 7)),
        );
        let (part, last) = (b & 0x0fff_u64, clock::pseudo_random(b) >> 16);
        format!(
            "{:08x}-{:04x}-4{:03x}-8{part:03x}-{last:012x}",
            a >> 32,
            (a >> 16) & 0xffff,
            a & 0xfff
        )
    }

    /// The suffix of a generated name.
    fn suffix(&mut self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut random = clock::pseudo_random(self.seed ^ clock::pseudo_random(self.next_object()));
        let mut letter = || {
            random = clock::pseudo_random(random);
            char::from(LETTERS[(random % LETTERS.len() as u64) as usize])
        };
        (0..5).map(|_| letter()).collect()
    }

    /// The present time in the format of objects.
    fn time(&self) -> String {
        clock::written(self.clock.now())
    }

    fn time_in(&self, seconds: i64) -> String {
        clock::shifted(&self.time(), seconds)
    }

    /// A built-in kind.
    fn resource(&self, group: &str, plural: &str) -> Arc<Resource> {
        let is = |resource: &&Arc<Resource>| resource.group == group && resource.plural == plural;
        self.resources
            .iter()
            .find(is)
            .cloned()
            .expect("a built-in kind")
    }

    fn has_namespace(&mut self, name: &str) -> bool {
        let namespaces = self.resource("", "namespaces");
        self.store
            .get(&namespaces, &(String::new(), name.to_owned()))
            .is_some()
    }

    /// Whether PVCs of the storage class can be expanded.
    fn is_expandable(&mut self, class: &str) -> bool {
        let classes = self.resource("storage.k8s.io", "storageclasses");
        let class = self.store.get(&classes, &(String::new(), class.to_owned()));
        class.is_some_and(|class| class.value["allowVolumeExpansion"] == true)
    }
}
