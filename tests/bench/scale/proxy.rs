//! A proxy between operator and API server. It records when the operator receives a VM, and when each request for a VM
//! starts and ends. So the released program is measured without changes.

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, Response};
use futures::{Stream, StreamExt};
use http_body_util::BodyExt;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use support::replay::vm_in;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// The recorded times of a VM since the last [`Record::forget`].
#[derive(Clone, Default)]
pub struct Times {
    /// The time at which the operator received it.
    pub received: Option<Instant>,
    /// Start and end of the request that creates its pod.
    pub pod: Option<(Instant, Instant)>,
    /// The end of the last write of its status.
    pub status: Option<Instant>,
    /// All requests of the operator for it.
    requests: Vec<(Instant, Instant)>,
}

impl Times {
    /// The start of the first request.
    pub fn first_request(&self) -> Option<Instant> {
        self.requests.iter().map(|(began, _)| *began).min()
    }

    /// The end of the request for its pod.
    pub fn pod_end(&self) -> Option<Instant> {
        Some(self.pod?.1)
    }

    /// The time from the event to the request for the pod.
    pub fn latency(&self) -> Option<Duration> {
        Some(self.pod?.0.duration_since(self.received?))
    }

    /// The same, without the time in which a request for this VM was in progress.
    pub fn own_time(&self) -> Option<Duration> {
        let (mut at, end) = (self.received?, self.pod?.0);
        let mut own = Duration::ZERO;
        let mut requests = self.requests.clone();
        requests.sort();
        for (from, to) in requests {
            own += from.min(end).saturating_duration_since(at);
            at = at.max(to);
        }
        Some(own + end.saturating_duration_since(at))
    }
}

/// The newest events that the API server has sent.
#[derive(Default)]
struct LastEvents {
    /// The last event of each VM, unchanged.
    lines: HashMap<String, String>,
    /// The newest resource version.
    version: u64,
}

impl LastEvents {
    /// All events again. A bookmark with the newest version follows each event, because a watch that restarts at an old
    /// version would receive outdated states.
    fn again(&self) -> Vec<Bytes> {
        let object = json!({
            "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine",
            "metadata": {"resourceVersion": self.version.to_string()},
        });
        let bookmark = json!({"type": "BOOKMARK", "object": object});
        self.lines
            .values()
            .map(|line| format!("{line}\n{bookmark}\n").into())
            .collect()
    }
}

/// The record of the proxy.
#[derive(Default)]
pub struct Record {
    vms: Mutex<HashMap<String, Times>>,
    writes: Mutex<HashMap<String, usize>>,
    events: Mutex<LastEvents>,
    /// Sends repeated events to the watches of VMs.
    again: OnceLock<broadcast::Sender<Bytes>>,
}

/// The capacity for repeated events that are not sent yet. It is more than a round has.
const REPEATED_EVENTS_MAX: usize = 16_384;

impl Record {
    fn again(&self) -> &broadcast::Sender<Bytes> {
        self.again
            .get_or_init(|| broadcast::Sender::new(REPEATED_EVENTS_MAX))
    }

    /// Sends the last event of each VM again. Returns their number.
    pub fn repeat_events(&self) -> usize {
        let events = self.events.lock().unwrap().again();
        events
            .iter()
            .for_each(|line| drop(self.again().send(line.clone())));
        events.len()
    }

    /// Deletes the record.
    pub fn forget(&self) {
        self.vms.lock().unwrap().clear();
        self.writes.lock().unwrap().clear();
    }

    /// The recorded times of each VM, by its name.
    pub fn vms(&self) -> HashMap<String, Times> {
        self.vms.lock().unwrap().clone()
    }

    /// Writes by method and kind, without those of the Lease and of events.
    pub fn writes(&self) -> HashMap<String, usize> {
        self.writes.lock().unwrap().clone()
    }

    fn request(&self, method: &Method, path: &str, body: &[u8], began: Instant) {
        let collection = path
            .split("/namespaces/")
            .nth(1)
            .and_then(|rest| rest.split('/').nth(1))
            .unwrap_or_default();
        if *method == Method::GET || ["events", "leases", ""].contains(&collection) {
            return;
        }
        *self
            .writes
            .lock()
            .unwrap()
            .entry(format!("{method} {collection}"))
            .or_default() += 1;
        // A request that creates an object has the name in its body.
        let vm = vm_in(path)
            .or_else(|| vm_in(&String::from_utf8_lossy(body)).filter(|_| *method == Method::POST));
        let Some(vm) = vm else { return };
        let mut vms = self.vms.lock().unwrap();
        let seen = vms.entry(vm).or_default();
        let span = (began, Instant::now());
        seen.requests.push(span);
        if *method == Method::POST && collection == "pods" {
            seen.pod.get_or_insert(span);
        }
        if collection == "vms" && path.ends_with("/status") {
            seen.status = Some(span.1);
        }
    }

    fn received(&self, vm: &str, version: u64, line: &[u8]) {
        let mut events = self.events.lock().unwrap();
        events
            .lines
            .insert(vm.to_owned(), String::from_utf8_lossy(line).into_owned());
        events.version = events.version.max(version);
        drop(events);
        self.vms
            .lock()
            .unwrap()
            .entry(vm.to_owned())
            .or_default()
            .received
            .get_or_insert_with(Instant::now);
    }
}

#[derive(Clone)]
struct Proxy {
    client: Client,
    record: Arc<Record>,
}

/// A kubeconfig for the proxy at that port of the loopback interface.
pub fn kubeconfig(port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
        "users": [{"name": "bench", "user": {}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
    })
}

/// Serves on a port of the loopback interface until the process exits. Returns the port.
pub async fn serve(client: Client, record: Arc<Record>) -> u16 {
    let router = axum::Router::new()
        .fallback(forward)
        .with_state(Proxy { client, record });
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
        .await
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    port
}

async fn forward(State(proxy): State<Proxy>, request: Request) -> Response<Body> {
    let began = Instant::now();
    let (mut parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    parts.headers.remove("host");
    let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
    let watch = parts
        .uri
        .query()
        .is_some_and(|query| query.contains("watch=true"));
    let request = Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
    let Ok(response) = proxy.client.send(request).await else {
        return Response::builder().status(502).body(Body::empty()).unwrap();
    };
    let (mut parts, answer) = response.into_parts();
    // Hop-by-hop headers.
    for header in ["connection", "transfer-encoding"] {
        parts.headers.remove(header);
    }
    if watch && path.ends_with("/vms") {
        return Response::from_parts(
            parts,
            Body::from_stream(with_repeated_events(
                proxy.record,
                answer.into_data_stream(),
            )),
        );
    }
    if watch {
        return Response::from_parts(parts, Body::from_stream(answer.into_data_stream()));
    }
    let Ok(answer) = answer.collect().await else {
        return Response::builder().status(502).body(Body::empty()).unwrap();
    };
    proxy.record.request(&method, &path, &body, began);
    Response::from_parts(parts, Body::from(answer.to_bytes()))
}

/// The events of a watch of VMs, with repeated events in between.
fn with_repeated_events<E>(
    record: Arc<Record>,
    answer: impl Stream<Item = Result<Bytes, E>>,
) -> impl Stream<Item = Result<Bytes, E>> {
    let again = futures::stream::unfold(record.again().subscribe(), |mut again| async move {
        loop {
            match again.recv().await {
                Ok(line) => return Some((Some(Ok(line)), again)),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    });
    let mut lines = Lines::default();
    let whole = answer.map(move |piece| {
        piece.map(|piece| {
            let mut whole = Vec::new();
            lines.take(&piece, |line| {
                record_event(&record, line);
                whole.extend_from_slice(line);
                whole.push(b'\n');
            });
            Bytes::from(whole)
        })
    });
    // The stream ends with the API server's response.
    let whole = whole.map(Some).chain(futures::stream::once(async { None }));
    futures::stream::select(whole, again)
        .take_while(|piece| futures::future::ready(piece.is_some()))
        .filter_map(|piece| {
            futures::future::ready(
                piece.filter(|piece| !piece.as_ref().is_ok_and(|piece| piece.is_empty())),
            )
        })
}

#[derive(Deserialize)]
struct Event {
    object: Named,
}

#[derive(Deserialize)]
struct Named {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    resource_version: Option<String>,
}

fn record_event(record: &Record, line: &[u8]) {
    let Ok(Event {
        object: Named { metadata },
    }) = serde_json::from_slice(line)
    else {
        return;
    };
    let version = metadata
        .resource_version
        .and_then(|version| version.parse().ok());
    if let (Some(vm), Some(version)) = (metadata.name, version) {
        record.received(&vm, version, line);
    }
}

/// Splits a stream into lines.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn take(&mut self, piece: &[u8], mut line: impl FnMut(&[u8])) {
        self.0.extend_from_slice(piece);
        while let Some(end) = self.0.iter().position(|b| *b == b'\n') {
            line(&self.0[..end]);
            self.0.drain(..=end);
        }
    }
}
