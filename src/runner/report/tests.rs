use crate::api::quantity::Bytes;
use crate::runner::report::*;
use crate::runner::status::tests::observed;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// An API server that accepts a status if `takes` returns true, and records accepted ones.
#[derive(Clone)]
struct Server {
    taken: Arc<Mutex<Vec<Value>>>,
    takes: Arc<dyn Fn(&Value) -> bool + Send + Sync>,
}

impl Server {
    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        assert_eq!(request.method(), Method::PATCH, "{}", request.uri());
        let body: Value = serde_json::from_slice(&request.into_body().collect().await?.to_bytes())?;
        if !(self.takes)(&body["status"]) {
            return Ok(Response::builder()
                .status(StatusCode::GATEWAY_TIMEOUT)
                .body(Body::empty())?);
        }
        self.taken.lock().unwrap().push(body["status"].clone());
        Ok(Response::new(Body::from(serde_json::to_vec(&body)?)))
    }
}

fn key() -> ReportKey {
    ReportKey {
        namespace: "ns".to_owned(),
        name: "pod-1".to_owned(),
    }
}

fn spawn(server: Server, statuses: watch::Receiver<Observed>) {
    let client = Client::new(
        tower::service_fn(move |request| server.clone().answer(request)),
        "ns",
    );
    tokio::spawn(
        Task {
            key: key(),
            statuses,
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
        (Phase::Starting, FIRST_REPORT_DELAY_MAX),
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
                // The second write fails. The retry sends the first status, and the second status returns before that write.
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
    assert_eq!(
        report_interval(&last, &observed(Phase::Booted)),
        Duration::ZERO
    );
    assert_eq!(
        report_interval(
            &last,
            &Observed {
                ram: Bytes(700 << 20),
                ..last.clone()
            }
        ),
        MEMORY_REPORT_INTERVAL_MIN
    );
    assert_eq!(
        report_interval(
            &last,
            &Observed {
                ram: Bytes(700 << 20),
                cpus: 1,
                ..last.clone()
            }
        ),
        REPORT_INTERVAL_MIN
    );
}

#[tokio::test(start_paused = true)]
async fn missing_report_is_retried_without_other_requests() {
    let requests: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
    let seen = Arc::clone(&requests);
    let answer = move |request: Request<Body>| {
        let seen = Arc::clone(&seen);
        async move {
            let line = format!("{} {}", request.method(), request.uri().path());
            let body = request.into_body().collect().await?.to_bytes();
            let body: Value = serde_json::from_slice(&body)?;
            let mut seen = seen.lock().unwrap();
            seen.push((line, body.clone()));
            // The operator creates the report after the third attempt.
            let (code, reply) = match seen.len() {
                1..=3 => (
                    404,
                    json!({"status": "Failure", "reason": "NotFound", "code": 404}),
                ),
                _ => (200, body),
            };
            let reply = Body::from(serde_json::to_vec(&reply)?);
            let response = Response::builder().status(code).body(reply)?;
            Ok::<_, tower::BoxError>(response)
        }
    };
    let (newest, statuses) = watch::channel(observed(Phase::Booted));
    let task = Task {
        key: key(),
        statuses,
        client: Some(Client::new(tower::service_fn(answer), "ns")),
        written: Vec::new(),
    };
    tokio::spawn(task.run());
    tokio::time::sleep(Duration::from_secs(60)).await;
    newest.send_replace(observed(Phase::Terminating));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let requests = requests.lock().unwrap();
    let path = "PATCH /apis/vmoperator.jdrupes.org/v1/namespaces/ns/vmreports/pod-1/status";
    assert_eq!(requests.len(), 5);
    assert!(
        requests.iter().all(|(line, _)| line == path),
        "{requests:?}"
    );
    let (_, last) = requests.last().unwrap();
    assert_eq!(
        (&last["kind"], &last["metadata"]),
        (&json!("VmReport"), &json!({"name": "pod-1"}))
    );
    let reasons: Vec<_> = [3, 4]
        .map(|n: usize| requests[n].1["status"]["conditions"][0]["reason"].clone())
        .into();
    assert_eq!(reasons, ["VmBooted", "VmTerminating"]);
}
