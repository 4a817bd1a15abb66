use crate::api::quantity::Bytes;
use crate::runner::report::*;
use crate::runner::status::tests::{identity, observed};
use http::{Method, Request, Response, StatusCode};
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
        let dry = request
            .uri()
            .query()
            .is_some_and(|query| query.contains("dryRun"));
        let body: Value = serde_json::from_slice(&request.into_body().collect().await?.to_bytes())?;
        if !dry && !(self.takes)(&body["status"]) {
            return Ok(Response::builder()
                .status(StatusCode::GATEWAY_TIMEOUT)
                .body(Body::empty())?);
        }
        if !dry {
            self.taken.lock().unwrap().push(body["status"].clone());
        }
        let metadata = json!({"name": "test-vm", "uid": identity().uid, "resourceVersion": "7"});
        let kind = if dry {
            "PartialObjectMetadata"
        } else {
            "VirtualMachine"
        };
        let reply = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata}).to_string();
        Ok(Response::new(Body::from(reply.into_bytes())))
    }
}

fn spawn(server: Server, statuses: watch::Receiver<Observed>) {
    let client = Client::new(
        tower::service_fn(move |request| server.clone().answer(request)),
        "ns",
    );
    let (_, queue) = mpsc::channel(1);
    tokio::spawn(
        Task {
            identity: identity(),
            statuses,
            queue,
            client: Some(client),
            written: Vec::new(),
        }
        .run(),
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_report_waits_for_the_start_and_no_longer() {
    let soon = Duration::from_millis(100);
    for (phase, wait) in [
        (Phase::Starting, START_SPACING),
        (Phase::Booting, Duration::ZERO),
    ] {
        let taken: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (newest, statuses) = watch::channel(observed(Phase::Starting));
        spawn(
            Server {
                taken: Arc::clone(&taken),
                takes: Arc::new(|_| true),
            },
            statuses,
        );
        newest.send_replace(observed(phase));
        tokio::time::sleep(soon).await;
        assert_eq!(taken.lock().unwrap().is_empty(), phase == Phase::Starting);
        tokio::time::sleep(wait).await;
        assert_eq!(taken.lock().unwrap().len(), 1, "{phase:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_that_comes_back_after_a_failed_write_is_written() {
    let [before, after] = [1, 2].map(|cpus| Observed {
        cpus,
        ..observed(Phase::Booting)
    });
    let (newest, statuses) = watch::channel(before.clone());
    let newest = Arc::new(newest);
    let taken: Arc<Mutex<Vec<Value>>> = Arc::default();
    let takes = {
        let (newest, taken, after) = (Arc::clone(&newest), Arc::clone(&taken), after.clone());
        move |status: &Value| {
            let cpus = status["cpus"].as_u64().unwrap();
            if taken.lock().unwrap().len() == 1 {
                // The second one fails; what is tried again is the first, and the second is back before that is written.
                newest.send_replace(if cpus == 2 {
                    before.clone()
                } else {
                    after.clone()
                });
                return cpus == 1;
            }
            true
        }
    };
    spawn(
        Server {
            taken: Arc::clone(&taken),
            takes: Arc::new(takes),
        },
        statuses,
    );
    for expected in [[1].as_slice(), &[1, 1, 2]] {
        tokio::time::sleep(Duration::from_secs(60)).await;
        let written: Vec<_> = taken
            .lock()
            .unwrap()
            .iter()
            .map(|status| status["cpus"].clone())
            .collect();
        assert_eq!(written, expected);
        newest.send_replace(after.clone());
    }
}

#[test]
fn a_phase_is_reported_at_once_and_memory_alone_less_often_than_other_changes() {
    let last = observed(Phase::Booting);
    assert_eq!(spacing(&last, &observed(Phase::Booted)), Duration::ZERO);
    assert_eq!(
        spacing(
            &last,
            &Observed {
                ram: Bytes(700 << 20),
                ..last.clone()
            }
        ),
        MEMORY_SPACING
    );
    assert_eq!(
        spacing(
            &last,
            &Observed {
                ram: Bytes(700 << 20),
                cpus: 1,
                ..last.clone()
            }
        ),
        SPACING
    );
}
