//! Between an operator and the API server: counts what passes, and lets one thing go wrong at one place.
//!
//! A place is named by what passes there and how often the like has passed before since the layer was armed:
//! `POST pods#0`, `LIST secrets#0`, `EVENT vms#2`. Names are the same in every run of a scenario though requests that
//! do not depend on each other come in any order.

use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tower::BoxError;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The request is not sent.
    NotSent,
    /// It is carried out, and the answer is lost.
    AnswerLost,
    /// It is answered with that code and not carried out.
    Refused(u16),
    /// It is never answered, and carried out or not: the operator's own deadline ends it. A list or watch is ended by
    /// the client, whose time-out for reading is short here.
    Hangs { carried_out: bool },
    /// The operator is killed before or after it is carried out, and a new one starts with empty memory.
    Killed { carried_out: bool },
    /// A list shows what was there when the layer was made, and the watch goes on from there.
    Stale,
    /// The connection of a watch is cut before an event, and is made again.
    Cut,
    /// The same, and the API server has forgotten the past: a new list is needed.
    Forgotten,
    /// An event comes late.
    Late,
    /// An event comes twice.
    Twice,
    /// An event comes after the next one about another object.
    Swapped,
}

impl Fault {
    pub const OF_REQUESTS: [Self; 12] = [
        Self::NotSent,
        Self::AnswerLost,
        Self::Refused(403),
        Self::Refused(404),
        Self::Refused(409),
        Self::Refused(422),
        Self::Refused(429),
        Self::Refused(500),
        Self::Hangs { carried_out: false },
        Self::Hangs { carried_out: true },
        Self::Killed { carried_out: false },
        Self::Killed { carried_out: true },
    ];
    /// Of lists and watches. A 404 comes from an API server that does not know the definition (yet, or any more); 409 and
    /// 422 from nobody but what stands between.
    pub const OF_LISTS: [Self; 11] = [
        Self::NotSent,
        Self::Refused(403),
        Self::Refused(404),
        Self::Refused(409),
        Self::Refused(410),
        Self::Refused(422),
        Self::Refused(429),
        Self::Refused(500),
        Self::Hangs { carried_out: false },
        Self::Killed { carried_out: false },
        Self::Stale,
    ];
    pub const OF_EVENTS: [Self; 5] = [Self::Cut, Self::Forgotten, Self::Late, Self::Twice, Self::Swapped];

    /// Those that can happen at a place.
    pub fn at(place: &str) -> &'static [Self] {
        match place.split(' ').next() {
            Some("EVENT") => &Self::OF_EVENTS,
            Some("LIST") => &Self::OF_LISTS,
            // All but an old state.
            Some("WATCH" | "VERSION") => &Self::OF_LISTS[..Self::OF_LISTS.len() - 1],
            _ => &Self::OF_REQUESTS,
        }
    }
}

#[derive(Default)]
struct Plan {
    armed: bool,
    passed: BTreeMap<String, usize>,
    places: Vec<String>,
    faults: Vec<(String, Fault)>,
}

/// One operator's way to the API server. It ends with the operator.
#[derive(Clone)]
pub struct Layer {
    server: Client,
    plan: Arc<Mutex<Plan>>,
    /// Tells that the operator has to be killed.
    pub kill: Arc<Notify>,
    dead: watch::Sender<bool>,
    stale: Arc<AtomicBool>,
    old: String,
}

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// How long a time-out of the client takes, and what comes late does.
const LATE: Duration = Duration::from_millis(100);

impl Layer {
    /// `old` is a revision of the past.
    pub fn new(server: Client, old: String) -> Self {
        let (dead, stale) = (watch::Sender::new(false), Arc::default());
        Self { server, plan: Arc::default(), kill: Arc::default(), dead, stale, old }
    }

    /// The same for the operator that comes after one that was killed.
    pub fn next(&self) -> Self {
        Self { dead: watch::Sender::new(false), ..self.clone() }
    }

    pub fn client(&self, namespace: &str) -> Client {
        let layer = self.clone();
        Client::new(tower::service_fn(move |request| layer.clone().pass(request)), namespace)
    }

    /// From now on what passes is counted, and each fault happens at its place.
    pub fn arm(&self, faults: Vec<(String, Fault)>) {
        *self.plan.lock().unwrap() = Plan { armed: true, faults, ..Plan::default() };
    }

    pub fn disarm(&self) {
        self.plan.lock().unwrap().armed = false;
    }

    /// All places that were passed since the layer was armed, in order.
    pub fn places(&self) -> Vec<String> {
        self.plan.lock().unwrap().places.clone()
    }

    /// Whether a fault is still to come.
    pub fn waits_for_fault(&self) -> bool {
        !self.plan.lock().unwrap().faults.is_empty()
    }

    /// Nothing passes any more.
    pub fn die(&self) {
        self.dead.send_replace(true);
    }

    /// Counts what passes; gives the fault that it meets.
    fn passes(&self, what: &str) -> Option<Fault> {
        let mut plan = self.plan.lock().unwrap();
        if !plan.armed {
            return None;
        }
        let count = plan.passed.entry(what.to_owned()).or_default();
        let place = format!("{what}#{count}");
        *count += 1;
        plan.places.push(place.clone());
        let at = plan.faults.iter().position(|(at, _)| *at == place)?;
        Some(plan.faults.swap_remove(at).1)
    }

    async fn pass(self, request: Request<Body>) -> Result<Answer, BoxError> {
        if *self.dead.borrow() {
            return Err("the operator is dead".into());
        }
        let (what, request) = named(request).await?;
        let fault = self.passes(&what);
        match fault {
            None | Some(Fault::AnswerLost | Fault::Stale) => {}
            Some(Fault::Refused(code)) => return Ok(refused(code)),
            Some(Fault::Hangs { carried_out }) => {
                if carried_out {
                    self.server.send(request).await?;
                }
                if ["LIST", "WATCH", "VERSION"].iter().any(|verb| what.starts_with(verb)) {
                    tokio::time::sleep(LATE).await;
                    return Err("timed out".into());
                }
                return std::future::pending().await;
            }
            Some(Fault::Killed { carried_out }) => {
                if carried_out {
                    self.server.send(request).await?;
                }
                self.die();
                self.kill.notify_one();
                return std::future::pending().await;
            }
            Some(_) => return Err("the connection was refused".into()),
        }
        let (kind, is_list) = match what.split_once(' ') {
            Some(("LIST", kind)) => (kind.to_owned(), true),
            Some(("WATCH", kind)) => (kind.to_owned(), false),
            _ => {
                let answer = self.server.send(request).await?;
                if fault == Some(Fault::AnswerLost) {
                    return Err("the connection was lost".into());
                }
                return Ok(answer.map(|body| body.map_err(BoxError::from).boxed_unsync()));
            }
        };
        let (first, request) = match fault {
            Some(Fault::Stale) if is_list => self.stale_list(request.uri()).await?,
            _ => (Vec::new(), request),
        };
        let (out, lines) = mpsc::unbounded_channel();
        if !first.is_empty() {
            self.stale.store(true, Ordering::Relaxed);
            out.send(first)?;
        }
        let answer = self.server.send(request).await?;
        let (parts, body) = answer.into_parts();
        tokio::spawn(async move { self.pump(&kind, body, out).await });
        let lines = futures::stream::unfold(lines, |mut lines| async move { Some((lines.recv().await?, lines)) });
        let frames = lines.map(|line| Ok::<_, BoxError>(Frame::data(Bytes::from(line))));
        Ok(Response::from_parts(parts, StreamBody::new(frames).boxed_unsync()))
    }

    /// The events of a list as it was once, and the request that goes on from there.
    async fn stale_list(&self, uri: &http::Uri) -> Result<(Vec<u8>, Request<Body>), BoxError> {
        let kept = |drop: &[&str]| {
            let query = uri.query().unwrap_or_default();
            let kept = query.split('&').filter(|part| !drop.iter().any(|name| part.starts_with(name)));
            kept.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("&")
        };
        let path = uri.path();
        let lists = ["watch=", "timeoutSeconds=", "allowWatchBookmarks=", "sendInitialEvents=", "resourceVersion"];
        let query = format!("{}&resourceVersion={}&resourceVersionMatch=Exact", kept(&lists), self.old);
        let list = Request::get(format!("{path}?{query}")).body(Vec::new())?;
        let list: Value = self.server.request(list).await?;
        let (kind, version) = (list["kind"].as_str().unwrap_or_default(), &list["apiVersion"]);
        let kind = kind.trim_end_matches("List");
        let mut lines = Vec::new();
        for item in list["items"].as_array().into_iter().flatten() {
            let mut item = item.clone();
            (item["kind"], item["apiVersion"]) = (kind.into(), version.clone());
            lines.extend(serde_json::to_vec(&json!({"type": "ADDED", "object": item}))?);
            lines.push(b'\n');
        }
        let end = json!({
            "kind": kind, "apiVersion": version,
            "metadata": {"resourceVersion": self.old, "annotations": {"k8s.io/initial-events-end": "true"}},
        });
        lines.extend(serde_json::to_vec(&json!({"type": "BOOKMARK", "object": end}))?);
        lines.push(b'\n');
        let query = format!("{}&resourceVersion={}", kept(&["sendInitialEvents=", "resourceVersion"]), self.old);
        Ok((lines, Request::get(format!("{path}?{query}")).body(Body::empty())?))
    }

    /// Passes the events of a watch on.
    async fn pump(&self, kind: &str, mut body: Body, out: mpsc::UnboundedSender<Vec<u8>>) {
        let (mut buffer, mut held) = (Vec::new(), None);
        let mut dead = self.dead.subscribe();
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                _ = dead.wait_for(|dead| *dead) => return,
                () = out.closed() => return,
                () = tokio::time::sleep(LATE * 2), if held.is_some() => {
                    let _ = out.send(held.take().unwrap_or_default());
                    continue;
                }
            };
            let Some(Ok(frame)) = frame else { return };
            buffer.extend_from_slice(frame.data_ref().map(AsRef::as_ref).unwrap_or_default());
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let is_bookmark = line.starts_with(br#"{"type":"BOOKMARK""#);
                match if is_bookmark { None } else { self.passes(&format!("EVENT {kind}")) } {
                    None => {}
                    Some(Fault::Late) => tokio::time::sleep(LATE * 3).await,
                    Some(Fault::Twice) => drop(out.send(line.clone())),
                    Some(Fault::Swapped) => {
                        held = Some(line);
                        continue;
                    }
                    Some(Fault::Forgotten) => {
                        let gone = json!({"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old"});
                        let _ = out.send(format!("{}\n", json!({"type": "ERROR", "object": gone})).into_bytes());
                        return;
                    }
                    Some(_) => return,
                }
                // The order of events about one object is always kept.
                if held.as_ref().is_some_and(|held| name(held) == name(&line)) {
                    let _ = out.send(held.take().unwrap_or_default());
                }
                let _ = out.send(line);
                if let Some(held) = held.take() {
                    let _ = out.send(held);
                }
            }
        }
    }
}

fn name(line: &[u8]) -> Option<Value> {
    let event: Value = serde_json::from_slice(line).ok()?;
    Some(event["object"]["metadata"]["name"].clone())
}

/// What the request is, without names that differ from run to run.
async fn named(request: Request<Body>) -> Result<(String, Request<Body>), BoxError> {
    let (parts, mut body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().unwrap_or_default();
    let within = path.split_once("/namespaces/").and_then(|(_, rest)| rest.split_once('/')).map(|(_, within)| within);
    let what = match (&parts.method, within) {
        (_, None) => format!("VERSION {path}"),
        (&Method::GET, Some(kind))
            if query.contains("sendInitialEvents=true") || !query.contains("watch=true") && !kind.contains('/') =>
        {
            format!("LIST {kind}")
        }
        (&Method::GET, Some(kind)) if query.contains("watch=true") => format!("WATCH {kind}"),
        (&Method::POST, Some(kind)) if kind != "events" => {
            let bytes = body.collect().await?.to_bytes();
            let object: Value = serde_json::from_slice(&bytes)?;
            body = Body::from(bytes.to_vec());
            format!("POST {kind}/{}", object["metadata"]["name"].as_str().unwrap_or_default())
        }
        (method, Some(within)) => format!("{method} {within}"),
    };
    Ok((what, Request::from_parts(parts, body)))
}

fn refused(code: u16) -> Answer {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    let details = (code == 429).then(|| json!({"retryAfterSeconds": 1}));
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "refused by the test", "reason": reason,
        "code": code, "details": details,
    });
    let body = StreamBody::new(futures::stream::iter([Ok(Frame::data(Bytes::from(status.to_string())))]));
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = StatusCode::from_u16(code).unwrap();
    if code == 429 {
        answer.headers_mut().insert("Retry-After", http::HeaderValue::from_static("1"));
    }
    answer
}
