//! An API server that accepts and records all requests, or injects faults.

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
    pub body: Value,
}

/// A fault of a request.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The request is rejected with that status.
    Status(u16),
    /// The request gets no response.
    Hangs,
    /// The connection is closed without a response.
    Closes,
}

/// The server. It listens in the network of each pod that is started with it, and runs until the process exits.
pub struct Api {
    responds: bool,
    requests: Arc<Mutex<Vec<Request>>>,
    faults: Arc<Mutex<VecDeque<Fault>>>,
}

impl Api {
    /// A server that accepts each request.
    pub fn start() -> Self {
        Self {
            responds: true,
            ..Self::without_responses()
        }
    }

    /// A server that accepts connections and never responds.
    pub fn without_responses() -> Self {
        Self {
            responds: false,
            requests: Arc::default(),
            faults: Arc::default(),
        }
    }

    /// Serves the connections of that listener.
    fn serve(&self, listener: TcpListener) {
        let (responds, requests, faults) = (
            self.responds,
            Arc::clone(&self.requests),
            Arc::clone(&self.faults),
        );
        thread::spawn(move || {
            let mut unanswered = Vec::new();
            for stream in listener.incoming().map(Result::unwrap) {
                let (requests, faults) = (Arc::clone(&requests), Arc::clone(&faults));
                if responds {
                    thread::spawn(move || serve(stream, &requests, &faults));
                } else {
                    unanswered.push(stream);
                }
            }
        });
    }

    /// The faults of the next requests, in order.
    pub fn fail(&self, faults: &[Fault]) {
        self.faults.lock().unwrap().extend(faults);
    }

    /// Listens in that network. Returns a kubeconfig for it.
    pub fn kubeconfig(&self, network: &Network) -> String {
        let listener = network.enter(|| TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        self.serve(listener);
        format!(
            "{{apiVersion: v1, kind: Config, current-context: a, contexts: [{{name: a, context: {{cluster: a, user: a}}}}], \
             clusters: [{{name: a, cluster: {{server: 'http://127.0.0.1:{port}'}}}}], users: [{{name: a, user: {{}}}}]}}",
        )
    }

    /// The bodies of the reports so far.
    pub fn statuses(&self) -> Vec<Value> {
        let requests = self.requests.lock().unwrap();
        requests.iter().map(|r| r.body.clone()).collect()
    }

    /// The bodies of the reports since the last call. All recorded requests are deleted.
    #[allow(dead_code, reason = "there are many of them only in the bench")]
    pub fn take_statuses(&self) -> Vec<Value> {
        let requests = std::mem::take(&mut *self.requests.lock().unwrap());
        requests.into_iter().map(|r| r.body).collect()
    }

    /// Methods, paths and queries of the requests so far.
    pub fn requests(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        requests.iter().map(|r| r.line.clone()).collect()
    }
}

/// The status of a condition in an applied object.
pub fn condition<'a>(object: &'a Value, type_: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array().unwrap();
    conditions
        .iter()
        .find(|c| c["type"] == type_)
        .unwrap_or(&Value::Null)
}

fn serve(stream: TcpStream, seen: &Mutex<Vec<Request>>, faults: &Mutex<VecDeque<Fault>>) {
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
        let fault = faults.lock().unwrap().pop_front();
        match fault {
            Some(Fault::Hangs) => loop {
                thread::park();
            },
            Some(Fault::Closes) => return,
            Some(Fault::Status(status)) => {
                let body = serde_json::json!({
                    "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "not now", "reason": "InternalError",
                    "code": status,
                });
                if !answer(&mut writer, status, &body) {
                    return;
                }
                continue;
            }
            None => {}
        }
        seen.lock().unwrap().push(Request {
            line: line.trim().to_owned(),
            body: body.clone(),
        });
        if !answer(&mut writer, 200, &body) {
            return;
        }
    }
}

/// Whether the client has read the response.
fn answer(writer: &mut TcpStream, status: u16, reply: &Value) -> bool {
    let reply = reply.to_string();
    let head = format!(
        "HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        reply.len()
    );
    writer.write_all((head + &reply).as_bytes()).is_ok()
}
