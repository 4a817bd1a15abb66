//! Between operator and API server: passes everything on, and notes when the operator is told of a VM, and when which
//! request for a VM begins and ends. So the very program that ships is measured, from outside.

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
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// What was seen of a VM since the last [`Record::forget`].
#[derive(Clone, Default)]
pub struct Seen {
    /// When the operator was told of it.
    pub told: Option<Instant>,
    /// When the operator asked for its pod, and when it had the answer.
    pub pod: Option<(Instant, Instant)>,
    /// All of the operator's requests for it.
    requests: Vec<(Instant, Instant)>,
}

impl Seen {
    /// When the first request for it began.
    pub fn first_request(&self) -> Option<Instant> {
        self.requests.iter().map(|(began, _)| *began).min()
    }

    /// From the news to the pod's request.
    pub fn latency(&self) -> Option<Duration> {
        Some(self.pod?.0.duration_since(self.told?))
    }

    /// The same less the time in which a request of this VM was under way.
    pub fn own_time(&self) -> Option<Duration> {
        let (mut at, end) = (self.told?, self.pod?.0);
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

/// What the API server has told last.
#[derive(Default)]
struct News {
    /// Of each VM, as it came.
    lines: HashMap<String, String>,
    /// The newest of all versions.
    version: u64,
}

impl News {
    /// All of it once more. After each line stands how far the watch is: with an old version alone, one that begins anew
    /// there would be told of states that are gone.
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

/// All that was noted.
#[derive(Default)]
pub struct Record {
    vms: Mutex<HashMap<String, Seen>>,
    writes: Mutex<HashMap<String, usize>>,
    news: Mutex<News>,
    /// To whoever watches VMs.
    again: OnceLock<broadcast::Sender<Bytes>>,
}

/// News that are repeated and not yet sent: more than a round has.
const AHEAD: usize = 16_384;

impl Record {
    fn again(&self) -> &broadcast::Sender<Bytes> {
        self.again.get_or_init(|| broadcast::Sender::new(AHEAD))
    }

    /// Tells the operator once more what it has been told last of each VM. Gives of how many.
    pub fn tell_again(&self) -> usize {
        let news = self.news.lock().unwrap().again();
        news.iter()
            .for_each(|line| drop(self.again().send(line.clone())));
        news.len()
    }

    /// Begins anew.
    pub fn forget(&self) {
        self.vms.lock().unwrap().clear();
        self.writes.lock().unwrap().clear();
    }

    /// What was seen of each VM.
    pub fn vms(&self) -> Vec<Seen> {
        self.vms.lock().unwrap().values().cloned().collect()
    }

    /// Writes by method and kind, but for those to the Lease and for events.
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
        // New objects have their names in the body.
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
    }

    fn told(&self, vm: &str, version: u64, line: &[u8]) {
        let mut news = self.news.lock().unwrap();
        news.lines
            .insert(vm.to_owned(), String::from_utf8_lossy(line).into_owned());
        news.version = news.version.max(version);
        drop(news);
        self.vms
            .lock()
            .unwrap()
            .entry(vm.to_owned())
            .or_default()
            .told
            .get_or_insert_with(Instant::now);
    }
}

/// The first name of a VM in the text, as [`super::vm_name`] makes them.
fn vm_in(text: &str) -> Option<String> {
    let is_name = |name: &&str| name.bytes().skip(3).all(|b| b.is_ascii_digit());
    text.match_indices("vm-")
        .filter_map(|(at, _)| text.get(at..at + 8))
        .find(is_name)
        .map(str::to_owned)
}

#[derive(Clone)]
struct Proxy {
    client: Client,
    record: Arc<Record>,
}

/// The operator's way to the API server, past that port of loopback.
pub fn kubeconfig(port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
        "users": [{"name": "bench", "user": {}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
    })
}

/// Serves on a port of loopback until the process ends. Returns the port.
pub async fn serve(client: Client, record: Arc<Record>) -> u16 {
    let router = axum::Router::new()
        .fallback(pass_on)
        .with_state(Proxy { client, record });
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
        .await
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    port
}

async fn pass_on(State(proxy): State<Proxy>, request: Request) -> Response<Body> {
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
    // These are between two neighbours.
    for header in ["connection", "transfer-encoding"] {
        parts.headers.remove(header);
    }
    if watch && path.ends_with("/vms") {
        return Response::from_parts(
            parts,
            Body::from_stream(with_news_again(proxy.record, answer.into_data_stream())),
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

/// What the API server tells of VMs, line by line, and between the lines what it has told before.
fn with_news_again<E>(
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
                told(&record, line);
                whole.extend_from_slice(line);
                whole.push(b'\n');
            });
            Bytes::from(whole)
        })
    });
    // It ends with the API server's answer.
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

fn told(record: &Record, line: &[u8]) {
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
        record.told(&vm, version, line);
    }
}

/// Puts pieces of a stream together to lines.
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
