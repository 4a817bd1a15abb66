//! A layer between an operator and the API server. It counts requests, events and calls to other services, and injects a fault at a place.
//!
//! A place is named by its request and the number of equal requests since the layer was armed: `POST pods#0`, `LIST
//! secrets#0`, `EVENT vms#2`. The names are the same in each run of a scenario, although independent requests come in
//! any order.

use crate::fault::Fault;
use crate::timings;
use crate::traffic::{InProgress, Traffic};
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tower::{BoxError, Layer as _};
use vm_operator::k8s::client::timeout::Deadlines;

#[derive(Default)]
struct Plan {
    armed: bool,
    passed: BTreeMap<String, usize>,
    places: Vec<String>,
    faults: Vec<(String, Fault)>,
    /// The revision before the step.
    past: String,
    /// For each kind, the revision before the last write to it, if a fault needs it.
    before_write: BTreeMap<String, String>,
    /// Kinds with a next list that shows the state at the revision `past`.
    past_next: BTreeSet<String>,
    /// Kinds with a list of an old state. The events of the following watch are delayed.
    late_watches: BTreeSet<String>,
}

/// The connection of one operator to the API server. It ends with the operator.
#[derive(Clone)]
pub struct Layer {
    server: Client,
    follows: &'static [&'static str],
    late: Duration,
    traces: bool,
    plan: Arc<Mutex<Plan>>,
    /// Notified when the operator has to be killed.
    pub kill: Arc<Notify>,
    /// The traffic of the present operator.
    pub traffic: Traffic,
    dead: watch::Sender<bool>,
    old: String,
    /// Plural name of a kind that the API server does not know yet.
    unknown: Arc<Mutex<Option<&'static str>>>,
}

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

impl Layer {
    /// A layer for an operator that watches these kinds, its own one first. `old` is an old revision. Delayed events
    /// arrive later by a multiple of `late`.
    #[must_use]
    pub fn new(
        server: Client,
        follows: &'static [&'static str],
        old: String,
        late: Duration,
        traces: bool,
    ) -> Self {
        let (dead, traffic) = (watch::Sender::new(false), Traffic::new(follows));
        Self {
            server,
            follows,
            late,
            traces,
            plan: Arc::default(),
            kill: Arc::default(),
            traffic,
            dead,
            old,
            unknown: Arc::default(),
        }
    }

    /// Makes the kind with that plural name unknown to the API server, or all kinds known. Requests about it are no places.
    pub fn set_unknown(&self, kind: Option<&'static str>) {
        *self.unknown.lock().unwrap() = kind;
    }

    /// The layer for the next operator, after this one was killed.
    #[must_use]
    pub fn next(&self) -> Self {
        Self {
            dead: watch::Sender::new(false),
            traffic: Traffic::new(self.follows),
            ..self.clone()
        }
    }

    /// A client with the operator's time-outs.
    #[must_use]
    pub fn client(&self, namespace: &str, deadlines: Deadlines) -> Client {
        let layer = self.clone();
        let home: Arc<str> = namespace.into();
        let service = tower::service_fn(move |request| layer.clone().pass(request, home.clone()));
        Client::new(deadlines.layer(service), namespace)
    }

    /// A call of the operator to another service. `act` carries it out. `instead` is the answer with a fault.
    ///
    /// # Errors
    /// The operator gets no answer.
    pub async fn call<T>(
        &self,
        action: &str,
        act: impl Future<Output = T>,
        instead: impl FnOnce(Fault) -> T,
    ) -> Result<T, BoxError> {
        if *self.dead.borrow() {
            return Err("the operator was killed".into());
        }
        let what = format!("CALL {action}");
        let _in_progress = self.traffic.start(&what);
        let fault = self.next_fault(&what);
        match fault {
            Some(Fault::NotSent) => return Err("the connection was refused".into()),
            Some(fault @ (Fault::Refused(_) | Fault::Garbage)) => return Ok(instead(fault)),
            Some(Fault::Hangs { carried_out: false }) => return std::future::pending().await,
            Some(Fault::Killed { carried_out: false }) => return self.kill().await,
            _ => {}
        }
        let answer = act.await;
        match fault {
            Some(Fault::AnswerLost) => return Err("the connection was lost".into()),
            Some(Fault::Hangs { .. }) => return std::future::pending().await,
            Some(Fault::Killed { .. }) => return self.kill().await,
            // Less than the time-out of a call.
            Some(Fault::Late) => tokio::time::sleep(self.late * 40).await,
            _ => {}
        }
        Ok(answer)
    }

    /// The API server without the layer.
    #[must_use]
    pub fn server(&self) -> &Client {
        &self.server
    }

    /// Starts to count, and injects each fault at its place. `past` is the present revision.
    pub fn arm(&self, faults: Vec<(String, Fault)>, past: String) {
        *self.plan.lock().unwrap() = Plan {
            armed: true,
            faults,
            past,
            ..Plan::default()
        };
    }

    /// Stops counting.
    pub fn disarm(&self) {
        self.plan.lock().unwrap().armed = false;
    }

    /// All places since the layer was armed, in order.
    pub fn places(&self) -> Vec<String> {
        self.plan.lock().unwrap().places.clone()
    }

    /// Whether a fault has not been injected yet.
    pub fn has_pending_fault(&self) -> bool {
        !self.plan.lock().unwrap().faults.is_empty()
    }

    /// Rejects all further requests.
    pub fn disconnect(&self) {
        self.dead.send_replace(true);
    }

    /// Kills the operator, which gets no response.
    async fn kill<T>(&self) -> T {
        self.disconnect();
        self.kill.notify_one();
        std::future::pending().await
    }

    /// Counts a request or an event. Returns the fault at its place.
    fn next_fault(&self, what: &str) -> Option<Fault> {
        let mut plan = self.plan.lock().unwrap();
        if !plan.armed {
            return None;
        }
        let count = plan.passed.entry(what.to_owned()).or_default();
        let place = format!("{what}#{count}");
        *count += 1;
        plan.places.push(place.clone());
        self.trace(&place);
        let at = plan.faults.iter().position(|(at, _)| *at == place)?;
        Some(plan.faults.swap_remove(at).1)
    }

    fn trace(&self, text: &str) {
        if self.traces {
            eprintln!("{} {text}", timings::now());
        }
    }

    async fn pass(self, request: Request<Body>, home: Arc<str>) -> Result<Answer, BoxError> {
        if *self.dead.borrow() {
            return Err("the operator was killed".into());
        }
        let path = request.uri().path().to_owned();
        let unknown = *self.unknown.lock().unwrap();
        if unknown.is_some_and(|kind| within(&path).1 == kind) {
            return Ok(rejection(404));
        }
        let (what, request) = named(request, &home).await?;
        let in_progress = self.traffic.start(&what);
        let before_write = self.before_write(&what, &path).await?;
        let fault = self.next_fault(&what);
        match fault {
            None | Some(Fault::AnswerLost | Fault::Overtaken | Fault::Stale | Fault::Past) => {}
            Some(Fault::Refused(code)) => return Ok(rejection(code)),
            Some(Fault::Hangs { carried_out }) => {
                if carried_out {
                    self.server.send(request).await?;
                }
                return std::future::pending().await;
            }
            Some(Fault::Killed { carried_out }) => {
                if carried_out {
                    self.server.send(request).await?;
                }
                return self.kill().await;
            }
            Some(Fault::KilledBehind { all }) => {
                self.server.send(request).await?;
                let kinds = if all {
                    self.follows
                } else {
                    &self.follows[..1]
                };
                self.fall_behind(kinds, None);
                return self.kill().await;
            }
            Some(Fault::KilledFarBehind) => {
                self.server.send(request).await?;
                self.fall_behind(self.follows, before_write);
                return self.kill().await;
            }
            Some(_) => return Err("the connection was refused".into()),
        }
        match what.split_once(' ') {
            Some(("LIST", kind)) => self.list(kind, request, fault).await,
            Some(("WATCH", kind)) => self.follow(kind, request, in_progress).await,
            _ => {
                let answer = self.server.send(request).await?;
                if fault == Some(Fault::AnswerLost) {
                    return Err("the connection was lost".into());
                }
                match fault {
                    Some(Fault::Overtaken) => self.overtaken(answer).await,
                    _ => Ok(forwarded(answer)),
                }
            }
        }
    }

    /// Makes the next lists of these kinds show that revision, or the state before the step.
    fn fall_behind(&self, kinds: &[&str], revision: Option<String>) {
        let plan = &mut *self.plan.lock().unwrap();
        plan.past_next.extend(kinds.iter().map(ToString::to_string));
        plan.past = revision.unwrap_or_else(|| plan.past.clone());
    }

    /// Records the revision before a write. Returns that of the previous write to the same kind.
    async fn before_write(&self, what: &str, path: &str) -> Result<Option<String>, BoxError> {
        let is_needed = self
            .plan
            .lock()
            .unwrap()
            .faults
            .iter()
            .any(|(_, fault)| *fault == Fault::KilledFarBehind);
        let Some((verb, kind)) = what.split_once(' ').filter(|_| is_needed) else {
            return Ok(None);
        };
        if matches!(verb, "GET" | "LIST" | "WATCH") {
            return Ok(None);
        }
        let namespace = match path.split_once("/namespaces/") {
            Some((_, within)) => within.split('/').next().unwrap_or_default(),
            None => "default",
        };
        let list = Request::get(format!("/api/v1/namespaces/{namespace}/configmaps?limit=1"))
            .body(Body::empty())?;
        let list = self
            .server
            .send(list)
            .await?
            .into_body()
            .collect()
            .await?
            .to_bytes();
        let list: Value = serde_json::from_slice(&list)?;
        let revision = list["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let kind = kind.split('/').next().unwrap_or_default().to_owned();
        Ok(self
            .plan
            .lock()
            .unwrap()
            .before_write
            .insert(kind, revision))
    }

    /// The response to the deletion of a finished pod that another client has deleted first.
    async fn overtaken(&self, answer: Response<Body>) -> Result<Answer, BoxError> {
        let (parts, body) = answer.into_parts();
        let bytes = body.collect().await?.to_bytes();
        let mut pod: Value = serde_json::from_slice(&bytes)?;
        let has_ended = pod["metadata"]["deletionGracePeriodSeconds"] == 0;
        if let Some(metadata) = pod["metadata"].as_object_mut().filter(|_| has_ended) {
            metadata.remove("resourceVersion");
            tokio::time::sleep(self.late).await;
        }
        Ok(forwarded(Response::from_parts(
            parts,
            Body::from(serde_json::to_vec(&pod)?),
        )))
    }

    /// Forwards a list, or lists an old state.
    async fn list(
        &self,
        kind: &str,
        request: Request<Body>,
        fault: Option<Fault>,
    ) -> Result<Answer, BoxError> {
        let past = {
            let mut plan = self.plan.lock().unwrap();
            let is_past =
                plan.past_next.remove(kind) && fault.is_none() || fault == Some(Fault::Past);
            let past = is_past
                .then(|| plan.past.clone())
                .or_else(|| (fault == Some(Fault::Stale)).then(|| self.old.clone()));
            if past.is_some() {
                plan.late_watches.insert(kind.to_owned());
            }
            past
        };
        let at = past
            .map(|past| format!("&resourceVersion={past}&resourceVersionMatch=Exact"))
            .unwrap_or_default();
        let request = Request::get(format!("{}{at}", request.uri())).body(Body::empty())?;
        Ok(forwarded(self.server.send(request).await?))
    }

    /// Starts a watch.
    async fn follow(
        &self,
        kind: &str,
        request: Request<Body>,
        in_progress: InProgress,
    ) -> Result<Answer, BoxError> {
        if self.plan.lock().unwrap().late_watches.remove(kind) {
            // The operator acts on the old list, and first receives the changes of other kinds.
            tokio::time::sleep(self.late * if kind == self.follows[0] { 4 } else { 2 }).await;
        }
        let answer = self.server.send(request).await?;
        if !answer.status().is_success() {
            return Ok(forwarded(answer));
        }
        let (parts, body) = answer.into_parts();
        let (out, lines) = mpsc::unbounded_channel();
        let (layer, kind) = (self.clone(), kind.to_owned());
        let number = in_progress.into_watch(&kind);
        tokio::spawn(async move {
            layer.forward_events(&kind, number, body, &out).await;
            layer.traffic.end_watch(&kind, number);
        });
        let lines = futures::stream::unfold(lines, |mut lines| async move {
            Some((lines.recv().await?, lines))
        });
        let frames = lines.map(|line| Ok::<_, BoxError>(Frame::data(Bytes::from(line))));
        Ok(Response::from_parts(
            parts,
            StreamBody::new(frames).boxed_unsync(),
        ))
    }

    /// Forwards the events of a watch.
    async fn forward_events(
        &self,
        kind: &str,
        number: usize,
        mut body: Body,
        out: &mpsc::UnboundedSender<Vec<u8>>,
    ) {
        let (mut buffer, mut held) = (Vec::new(), None);
        let mut dead = self.dead.subscribe();
        loop {
            let frame = tokio::select! {
                biased;
                _ = dead.wait_for(|dead| *dead) => return,
                () = out.closed() => return,
                frame = body.frame() => frame,
                () = tokio::time::sleep(self.late * 2), if held.is_some() => {
                    let _ = out.send(held.take().map(|(line, _)| line).unwrap_or_default());
                    continue;
                }
            };
            let Some(Ok(frame)) = frame else { return };
            buffer.extend_from_slice(frame.data_ref().map(AsRef::as_ref).unwrap_or_default());
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let is_bookmark = line.starts_with(br#"{"type":"BOOKMARK""#);
                let what = format!("EVENT {kind}");
                match if is_bookmark {
                    None
                } else {
                    self.next_fault(&what)
                } {
                    None => {}
                    Some(Fault::Late) => {
                        let _late = self.traffic.start(&what);
                        tokio::time::sleep(self.late * 3).await;
                    }
                    Some(Fault::Twice) => drop(out.send(line.clone())),
                    Some(Fault::Swapped) => {
                        held = Some((line, self.traffic.start(&what)));
                        continue;
                    }
                    Some(fault @ (Fault::Forgotten | Fault::ForgottenPast)) => {
                        if fault == Fault::ForgottenPast {
                            self.plan.lock().unwrap().past_next.insert(kind.to_owned());
                        }
                        let gone = json!({"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old"});
                        // Marked before the operator receives it, so that the operator does not count as idle.
                        self.traffic.end_watch(kind, number);
                        let _ = out.send(event("ERROR", &gone));
                        return;
                    }
                    Some(_) => return,
                }
                // Events about one object always keep their order.
                if held
                    .as_ref()
                    .is_some_and(|(held, _)| name(held) == name(&line))
                {
                    let _ = out.send(held.take().map(|(line, _)| line).unwrap_or_default());
                }
                let _ = out.send(line);
                if let Some((held, _)) = held.take() {
                    let _ = out.send(held);
                }
            }
        }
    }
}

/// A line of a watch. API servers write the type first, and the name of a VM is read only from that position.
fn event(type_: &str, object: &Value) -> Vec<u8> {
    format!("{{\"type\":\"{type_}\",\"object\":{object}}}\n").into_bytes()
}

fn name(line: &[u8]) -> Option<Value> {
    let event: Value = serde_json::from_slice(line).ok()?;
    Some(event["object"]["metadata"]["name"].clone())
}

fn forwarded(answer: Response<Body>) -> Answer {
    answer.map(|body| body.map_err(BoxError::from).boxed_unsync())
}

/// The namespace of a path, if it has one, and the part after group, version and namespace.
fn within(path: &str) -> (Option<&str>, &str) {
    if let Some((namespace, within)) = path
        .split_once("/namespaces/")
        .and_then(|(_, rest)| rest.split_once('/'))
    {
        return (Some(namespace), within);
    }
    let of_core = path.strip_prefix("/api/v1/");
    let of_group = || path.strip_prefix("/apis/")?.splitn(3, '/').nth(2);
    (None, of_core.or_else(of_group).unwrap_or(path))
}

/// The name of a request, without parts that differ from run to run. A namespace other than `home` is appended.
async fn named(request: Request<Body>, home: &str) -> Result<(String, Request<Body>), BoxError> {
    let (parts, mut body) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default();
    let (namespace, kind) = within(parts.uri.path());
    let other = namespace.filter(|namespace| *namespace != home);
    let at = other.map_or(String::new(), |namespace| format!("@{namespace}"));
    let what = match &parts.method {
        &Method::GET if query.contains("watch=true") => format!("WATCH {kind}"),
        &Method::GET if !kind.contains('/') => format!("LIST {kind}"),
        &Method::POST if kind != "events" => {
            let bytes = body.collect().await?.to_bytes();
            let object: Value = serde_json::from_slice(&bytes)?;
            body = Body::from(bytes.to_vec());
            // The name of a report is the UID of a pod, which differs from run to run.
            let name = match kind {
                "vmreports" => "POD",
                _ => object["metadata"]["name"].as_str().unwrap_or_default(),
            };
            format!("POST {kind}/{name}{at}")
        }
        method if kind.starts_with("vmreports/") => format!("{method} vmreports/POD{at}"),
        method => format!("{method} {kind}{at}"),
    };
    Ok((what, Request::from_parts(parts, body)))
}

fn rejection(code: u16) -> Answer {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    let details = (code == 429).then(|| json!({"retryAfterSeconds": 1}));
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "rejected by the test", "reason": reason,
        "code": code, "details": details,
    });
    let body = StreamBody::new(futures::stream::iter([Ok(Frame::data(Bytes::from(
        status.to_string(),
    )))]));
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = StatusCode::from_u16(code).unwrap();
    if code == 429 {
        answer
            .headers_mut()
            .insert("Retry-After", http::HeaderValue::from_static("1"));
    }
    answer
}
