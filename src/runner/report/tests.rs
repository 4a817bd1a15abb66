use super::*;
use crate::runner::state::Phase;
use crate::runner::status::tests::{identity, observed};
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// An API server that takes a status whenever `takes` says so, and remembers what it has taken.
#[derive(Clone)]
struct Server {
    taken: Arc<Mutex<Vec<Value>>>,
    takes: Arc<dyn Fn(&Value) -> bool + Send + Sync>,
}

impl Server {
    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        assert_eq!(request.method(), Method::PATCH, "{}", request.uri());
        let dry = request.uri().query().is_some_and(|query| query.contains("dryRun"));
        let body: Value = serde_json::from_slice(&request.into_body().collect().await?.to_bytes())?;
        if !dry && !(self.takes)(&body["status"]) {
            return Err("the connection is lost".into());
        }
        if !dry {
            self.taken.lock().unwrap().push(body["status"].clone());
        }
        let metadata = json!({"name": "test-vm", "uid": identity().uid, "resourceVersion": "7"});
        let kind = if dry { "PartialObjectMetadata" } else { "VirtualMachine" };
        let reply = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata}).to_string();
        Ok(Response::new(Body::from(reply.into_bytes())))
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_that_comes_back_after_a_failed_write_is_written() {
    let [before, after] = [1, 2].map(|cpus| Observed { cpus, ..observed(Phase::Booting) });
    let (newest, statuses) = watch::channel(before.clone());
    let newest = Arc::new(newest);
    let taken: Arc<Mutex<Vec<Value>>> = Arc::default();
    let takes = {
        let (newest, taken, after) = (Arc::clone(&newest), Arc::clone(&taken), after.clone());
        move |status: &Value| {
            let cpus = status["cpus"].as_u64().unwrap();
            if taken.lock().unwrap().len() == 1 {
                // The second one fails; what is tried again is the first, and the second is back before that is written.
                newest.send_replace(if cpus == 2 { before.clone() } else { after.clone() });
                return cpus == 1;
            }
            true
        }
    };
    let server = Server { taken: Arc::clone(&taken), takes: Arc::new(takes) };
    let connect: Connect = Box::new(move || {
        let server = server.clone();
        let client = Client::new(tower::service_fn(move |request| server.clone().answer(request)), "ns");
        async { Ok(client) }.boxed()
    });
    let (_notes, queue) = mpsc::channel(1);
    let task = Task { identity: identity(), connect, statuses, queue, client: None, written: Vec::new() };
    tokio::spawn(task.run());
    for expected in [[1].as_slice(), &[1, 1, 2]] {
        sleep(Duration::from_secs(60)).await;
        let written: Vec<_> = taken.lock().unwrap().iter().map(|status| status["cpus"].clone()).collect();
        assert_eq!(written, expected);
        newest.send_replace(after.clone());
    }
}
