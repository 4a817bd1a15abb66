//! A scripted API server: a store of objects behind a tower service, which records each request and fails on demand. It
//! implements the rules on which the operator relies: unique names, increasing versions, preconditions, and merges of maps.

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is rejected with that code.
    Refused(u16),
    /// The request is carried out, and the response is lost.
    AnswerLost,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    requests: Vec<String>,
    fault: Option<(usize, Fault)>,
    /// The response to resizes, unless they succeed.
    resize: Option<u16>,
    /// The response to changes of PVCs, unless they succeed.
    claims: Option<u16>,
    /// The logs of pods, by path.
    logs: BTreeMap<String, String>,
    /// The response to creations of objects with names or requests that begin with the key, or to their deletion, unless
    /// they succeed.
    rejected_creation: Option<(String, u16, String)>,
    refusals: u32,
}

#[derive(Clone, Default)]
pub struct FakeApi(Arc<Mutex<State>>);

/// The path of an object's collection in the namespace `ns`.
pub const VMS: &str = "/apis/vmoperator.jdrupes.org/v1/namespaces/ns/vms";
pub const PODS: &str = "/api/v1/namespaces/ns/pods";
pub const CLAIMS: &str = "/api/v1/namespaces/ns/persistentvolumeclaims";
pub const CONFIG_MAPS: &str = "/api/v1/namespaces/ns/configmaps";
pub const SERVICES: &str = "/api/v1/namespaces/ns/services";
pub const SECRETS: &str = "/api/v1/namespaces/ns/secrets";
pub const REPORTS: &str = "/apis/vmoperator.jdrupes.org/v1/namespaces/ns/vmreports";
pub const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/ns/events";

/// The requests since the last call, with events.
pub fn request_paths(api: &FakeApi) -> Vec<String> {
    std::mem::take(&mut api.0.lock().unwrap().requests)
}

impl FakeApi {
    pub fn client(&self) -> Client {
        let api = self.clone();
        Client::new(
            tower::service_fn(move |request| api.clone().answer(request)),
            "ns",
        )
    }

    /// Stores an object as another client.
    pub fn put(&self, collection: &str, mut object: Value) -> Value {
        let mut state = self.0.lock().unwrap();
        let path = format!(
            "{collection}/{}",
            object["metadata"]["name"].as_str().unwrap()
        );
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-{}", state.version).into();
        }
        state.store(&path, object)
    }

    pub fn change(&self, collection: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut state = self.0.lock().unwrap();
        let path = format!("{collection}/{name}");
        let mut object = state.objects[&path].clone();
        change(&mut object);
        state.store(&path, object);
    }

    pub fn remove(&self, collection: &str, name: &str) -> Option<Value> {
        self.0
            .lock()
            .unwrap()
            .objects
            .remove(&format!("{collection}/{name}"))
    }

    pub fn get(&self, collection: &str, name: &str) -> Option<Value> {
        self.0
            .lock()
            .unwrap()
            .objects
            .get(&format!("{collection}/{name}"))
            .cloned()
    }

    pub fn list(&self, collection: &str) -> Vec<Value> {
        let state = self.0.lock().unwrap();
        state
            .objects
            .iter()
            .filter(|(path, _)| path.starts_with(&format!("{collection}/")))
            .map(|(_, o)| o.clone())
            .collect()
    }

    /// The requests since the last call without events, sorted. Independent requests are sent concurrently and arrive
    /// in any order.
    pub fn requests(&self) -> Vec<String> {
        let mut requests = std::mem::take(&mut self.0.lock().unwrap().requests);
        requests.retain(|request| !request.contains("/events"));
        requests.sort();
        requests
    }

    /// Makes the `k`-th request from now fail, counted from 0.
    pub fn fail(&self, k: usize, fault: Fault) {
        self.0.lock().unwrap().fault = Some((k, fault));
    }

    /// Rejects resizes of pods with that code, or accepts them.
    pub fn reject_resizes(&self, code: Option<u16>) {
        self.0.lock().unwrap().resize = code;
    }

    /// Rejects changes of PVCs with that code, or accepts them.
    pub fn reject_changes_of_claims(&self, code: Option<u16>) {
        self.0.lock().unwrap().claims = code;
    }

    /// Sets the log of a pod.
    pub fn log(&self, pod: &str, text: &str) {
        self.0
            .lock()
            .unwrap()
            .logs
            .insert(format!("{PODS}/{pod}/log"), text.to_owned());
    }

    /// Rejects the creation of objects with names or requests that begin with that text, for that reason, or accepts all
    /// again. `{n}` in the reason is a different number each time.
    pub fn reject_creation(&self, rejected: Option<(&str, u16, &str)>) {
        let rejected = rejected.map(|(name, code, why)| (name.to_owned(), code, why.to_owned()));
        self.0.lock().unwrap().rejected_creation = rejected;
    }

    /// Rejects deletions in that collection with that code.
    pub fn reject_deletion(&self, collection: &str, code: u16) {
        self.reject_creation(Some((
            &format!("DELETE {collection}"),
            code,
            "rejected by the test",
        )));
    }

    /// Whether a fault has not been injected yet.
    pub fn fault_is_due(&self) -> bool {
        self.0.lock().unwrap().fault.is_some()
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let body: Value = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&body)?
        };
        let mut state = self.0.lock().unwrap();
        let path = parts.uri.path().to_owned();
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        state.requests.push(match parts.method {
            // The name of a report is the UID of a pod.
            Method::POST if path == REPORTS => format!("POST {path}/POD"),
            Method::POST => format!("POST {path}/{name}"),
            ref method => format!("{method} {path}"),
        });
        let fault = match &mut state.fault {
            Some((0, fault)) => Some(*fault),
            Some((k, _)) => {
                *k -= 1;
                None
            }
            None => None,
        };
        if fault.is_some() {
            state.fault = None;
        }
        if let Some(Fault::Refused(code)) = fault {
            return Ok(status(code, "rejected by the test"));
        }
        let manager = parts.uri.query().unwrap_or_default().to_owned();
        let answer = state.carry_out(&parts.method, &path, &manager, body);
        if fault == Some(Fault::AnswerLost) {
            return Err("the connection was lost".into());
        }
        Ok(answer)
    }
}

impl State {
    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if path.contains("/namespaces/ns/") {
            object["metadata"]["namespace"] = "ns".into();
        }
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    fn resized(&mut self, pod: &str, body: &Value) -> Response<Body> {
        if let Some(code) = self.resize {
            return status(code, "no resize in this test");
        }
        let Some(mut object) = self.objects.get(pod).cloned() else {
            return not_found(pod);
        };
        let [wanted] = body["spec"]["containers"].as_array().unwrap().as_slice() else {
            panic!("{body}")
        };
        let containers = object["spec"]["containers"].as_array_mut().unwrap();
        let container = containers
            .iter_mut()
            .find(|c| c["name"] == wanted["name"])
            .unwrap();
        merge(&mut container["resources"], &wanted["resources"]);
        answer(StatusCode::OK, &self.store(pod, object))
    }

    fn carry_out(
        &mut self,
        method: &Method,
        path: &str,
        query: &str,
        mut body: Value,
    ) -> Response<Body> {
        if let Some(pod) = path.strip_suffix("/resize") {
            return self.resized(pod, &body);
        }
        if let Some(code) = self
            .claims
            .filter(|_| method == Method::PATCH && path.starts_with(CLAIMS))
        {
            return status(code, "no change in this test");
        }
        let (path, is_status) = path
            .strip_suffix("/status")
            .map_or((path, false), |path| (path, true));
        let present = self.objects.get(path).cloned();
        match (method, present) {
            (&Method::POST, _) => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                let path = format!("{path}/{name}");
                let begins = |prefix: &String| {
                    name.starts_with(prefix) || format!("POST {path}").starts_with(prefix)
                };
                if let Some((_, code, why)) = self
                    .rejected_creation
                    .clone()
                    .filter(|(prefix, ..)| begins(prefix))
                {
                    self.refusals += 1;
                    return status(code, &why.replace("{n}", &self.refusals.to_string()));
                }
                if self.objects.contains_key(&path) {
                    return status(409, EXISTS);
                }
                body["metadata"]["uid"] = format!("uid-{}", self.version).into();
                answer(StatusCode::CREATED, &self.store(&path, body))
            }
            (&Method::GET, None) if path.ends_with("/log") => match self.logs.get(path) {
                Some(log) => Response::new(Body::from(log.clone().into_bytes())),
                None => status(404, "not found"),
            },
            (&Method::GET, Some(object)) => answer(StatusCode::OK, &object),
            (&Method::GET, None) if path == EVENTS => {
                let is_selected = |event: &&Value| {
                    let uid = event["regarding"]["uid"].as_str().unwrap_or_default();
                    query.contains(&format!("regarding.uid%3D{uid}%2Ctype%3DWarning"))
                        && event["type"] == "Warning"
                };
                let events = self
                    .objects
                    .iter()
                    .filter(|(path, _)| path.starts_with(EVENTS))
                    .map(|(_, event)| event);
                let items: Vec<&Value> = events.filter(is_selected).collect();
                answer(StatusCode::OK, &json!({"metadata": {}, "items": items}))
            }
            (&Method::PATCH, None) if query.contains("force=true") && !is_status => {
                body["metadata"]["uid"] = format!("uid-{}", self.version).into();
                answer(StatusCode::CREATED, &self.store(path, body))
            }
            (&Method::PATCH, Some(mut object)) => {
                // A real API server does not check the UID in a status write.
                for precondition in if is_status {
                    &["resourceVersion"][..]
                } else {
                    &["uid", "resourceVersion"]
                } {
                    let wanted = &body["metadata"][precondition];
                    if !wanted.is_null() && *wanted != object["metadata"][precondition] {
                        return status(409, "precondition failed");
                    }
                }
                if !is_status && query.contains("force=true") {
                    remove_annotations(&mut object, &body);
                }
                let spec = object["spec"].clone();
                if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
                    metadata.remove("resourceVersion");
                }
                merge(&mut object, &body);
                if object["spec"] != spec {
                    object["metadata"]["generation"] =
                        (object["metadata"]["generation"].as_i64().unwrap_or(0) + 1).into();
                }
                answer(StatusCode::OK, &self.store(path, object))
            }
            (&Method::DELETE, Some(mut object)) => {
                let begins = |(prefix, ..): &&(String, u16, String)| {
                    format!("DELETE {path}").starts_with(prefix.as_str())
                };
                if let Some((_, code, why)) = self.rejected_creation.as_ref().filter(begins) {
                    return status(*code, why);
                }
                let wanted = &body["preconditions"]["uid"];
                if wanted.is_null() || *wanted != object["metadata"]["uid"] {
                    return status(409, "precondition failed");
                }
                let version = &body["preconditions"]["resourceVersion"];
                if !version.is_null() && *version != object["metadata"]["resourceVersion"] {
                    return status(409, "precondition failed");
                }
                // A finalizer holds a service until its load balancer is released.
                let has_to_end = match path {
                    pod if pod.starts_with(PODS) => body["gracePeriodSeconds"] != 0,
                    path => path.starts_with(SERVICES),
                };
                if !has_to_end {
                    self.objects.remove(path);
                    return answer(StatusCode::OK, &object);
                }
                object["metadata"]["deletionTimestamp"] = super::world::now().to_string().into();
                answer(StatusCode::OK, &self.store(path, object))
            }
            _ => not_found(path),
        }
    }
}

/// An apply removes fields that the operator applied before and omits now.
fn remove_annotations(object: &mut Value, body: &Value) {
    let now = &body["metadata"]["annotations"];
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations
            .retain(|name, _| !name.starts_with("vmoperator.jdrupes.org/") || !now[name].is_null());
    }
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                if value.is_null() {
                    into.remove(key);
                    continue;
                }
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        // A null removes a field.
        (into @ Value::Null, Value::Object(_)) => {
            *into = json!({});
            merge(into, from);
        }
        (into, from) => *into = from.clone(),
    }
}

fn answer(code: StatusCode, object: &Value) -> Response<Body> {
    Response::builder()
        .status(code)
        .body(Body::from(serde_json::to_vec(object).unwrap()))
        .unwrap()
}

const EXISTS: &str = "already exists";

/// The answer about an object that does not exist.
fn not_found(path: &str) -> Response<Body> {
    let name = path.rsplit('/').next();
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "not found", "reason": "NotFound", "code": 404,
        "details": {"name": name},
    });
    answer(StatusCode::NOT_FOUND, &body)
}

fn status(code: u16, message: &str) -> Response<Body> {
    let reason = match code {
        409 if message == EXISTS => "AlreadyExists",
        409 => "Conflict",
        _ => "Test",
    };
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code});
    answer(StatusCode::from_u16(code).unwrap(), &body)
}
