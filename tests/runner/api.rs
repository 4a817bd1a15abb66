//! An API server that takes everything and remembers it, or takes nothing.

use crate::host::Network;
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Method, path and query.
    pub line: String,
    /// The object.
    pub body: Value,
}

/// What can happen to a request.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// It is refused with that status.
    Status(u16),
    /// It is never answered.
    Hangs,
    /// The connection is closed instead of an answer.
    Closes,
}

/// The server. It listens in the network of each pod that is started with it, and ends with the process.
pub struct Api {
    /// The UID of the VM that it has; a server without one never answers.
    uid: Option<&'static str>,
    requests: Arc<Mutex<Vec<Request>>>,
    faults: Arc<Mutex<VecDeque<Fault>>>,
}

impl Api {
    /// One that has the VM of the rig's configuration and accepts every request.
    pub fn start() -> Self {
        Self::with_uid("uid-1")
    }

    /// One that has a VM of that name with another UID.
    pub fn with_namesake() -> Self {
        Self::with_uid("uid-2")
    }

    /// One that accepts connections and never answers.
    pub fn silent() -> Self {
        Self {
            uid: None,
            requests: Arc::default(),
            faults: Arc::default(),
        }
    }

    fn with_uid(uid: &'static str) -> Self {
        Self {
            uid: Some(uid),
            requests: Arc::default(),
            faults: Arc::default(),
        }
    }

    /// Serves the connections of that listener.
    fn serve(&self, listener: TcpListener) {
        let (uid, requests, faults) = (
            self.uid,
            Arc::clone(&self.requests),
            Arc::clone(&self.faults),
        );
        thread::spawn(move || {
            let mut unanswered = Vec::new();
            for stream in listener.incoming().map(Result::unwrap) {
                let (requests, faults) = (Arc::clone(&requests), Arc::clone(&faults));
                match uid {
                    None => unanswered.push(stream),
                    Some(uid) => drop(thread::spawn(move || {
                        serve(stream, &requests, uid, &faults)
                    })),
                }
            }
        });
    }

    /// That happens to the next requests, one after the other.
    pub fn fail(&self, faults: &[Fault]) {
        self.faults.lock().unwrap().extend(faults);
    }

    /// Listens in that network; gives a kubeconfig that leads here.
    pub fn kubeconfig(&self, network: &Network) -> String {
        let listener = network.enter(|| TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        self.serve(listener);
        format!(
            "{{apiVersion: v1, kind: Config, current-context: a, contexts: [{{name: a, context: {{cluster: a, user: a}}}}], \
             clusters: [{{name: a, cluster: {{server: 'http://127.0.0.1:{port}'}}}}], users: [{{name: a, user: {{}}}}]}}",
        )
    }

    /// The bodies of the status writes so far.
    pub fn statuses(&self) -> Vec<Value> {
        let requests = self.requests.lock().unwrap();
        let kept = requests
            .iter()
            .filter(|r| r.line.starts_with("PATCH") && !is_dry(&r.line));
        kept.map(|r| r.body.clone()).collect()
    }

    /// The bodies of the status writes since the last time; all requests so far are forgotten.
    #[allow(dead_code, reason = "there are many of them only in the bench")]
    pub fn take_statuses(&self) -> Vec<Value> {
        let requests = std::mem::take(&mut *self.requests.lock().unwrap());
        let kept = requests
            .into_iter()
            .filter(|r| r.line.starts_with("PATCH") && !is_dry(&r.line));
        kept.map(|r| r.body).collect()
    }

    /// The events so far.
    #[allow(dead_code, reason = "the bench looks at none")]
    pub fn event_objects(&self) -> Vec<Value> {
        let requests = self.requests.lock().unwrap();
        requests
            .iter()
            .filter(|r| r.line.starts_with("POST"))
            .map(|r| r.body.clone())
            .collect()
    }

    /// The reasons of the events so far.
    pub fn events(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        let events = requests.iter().filter(|r| r.line.starts_with("POST"));
        events
            .map(|r| r.body["reason"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// The reasons of those among them that are warnings.
    pub fn warnings(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        let warnings = requests
            .iter()
            .filter(|r| r.line.starts_with("POST") && r.body["type"] == "Warning");
        warnings
            .map(|r| r.body["reason"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// Methods, paths and queries of the requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests
            .lock()
            .unwrap()
            .iter()
            .map(|r| r.line.clone())
            .collect()
    }

    /// Those that change something.
    pub fn writes(&self) -> Vec<String> {
        self.requests()
            .into_iter()
            .filter(|line| !is_dry(line))
            .collect()
    }
}

/// Whether what is written is not kept.
fn is_dry(line: &str) -> bool {
    line.contains("dryRun=All")
}

/// The status of a condition in an applied object.
pub fn condition<'a>(object: &'a Value, type_: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array().unwrap();
    conditions
        .iter()
        .find(|c| c["type"] == type_)
        .unwrap_or(&Value::Null)
}

fn serve(
    stream: TcpStream,
    seen: &Mutex<Vec<Request>>,
    uid: &str,
    faults: &Mutex<VecDeque<Fault>>,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            let header = header.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        // All that is asked for is who the VM is; all that is given back of a write is not looked at.
        let (api_version, kind) = (&body["apiVersion"], &body["kind"]);
        let metadata = serde_json::json!({"name": "test-vm", "uid": uid, "resourceVersion": "7"});
        let reply = match is_dry(&line) {
            true => serde_json::json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata,
            }),
            false => serde_json::json!({
                "apiVersion": api_version, "kind": kind, "metadata": metadata, "eventTime": null,
            }),
        };
        let fault = faults.lock().unwrap().pop_front();
        match fault {
            Some(Fault::Hangs) => loop {
                thread::park();
            },
            Some(Fault::Closes) => return,
            Some(Fault::Status(status)) => {
                let words = serde_json::json!({
                    "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "not now", "reason": "InternalError",
                    "code": status,
                });
                if !answer(&mut writer, status, &words) {
                    return;
                }
                continue;
            }
            None => {}
        }
        seen.lock().unwrap().push(Request {
            line: line.trim().to_owned(),
            body,
        });
        if !answer(&mut writer, 200, &reply) {
            return;
        }
    }
}

/// Whether somebody has taken the answer.
fn answer(writer: &mut TcpStream, status: u16, reply: &Value) -> bool {
    let reply = reply.to_string();
    let head = format!(
        "HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        reply.len()
    );
    writer.write_all((head + &reply).as_bytes()).is_ok()
}
