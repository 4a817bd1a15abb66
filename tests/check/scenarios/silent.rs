//! An API server that accepts connections and requests and does not respond, or requests a delay. It uses real sockets.

use super::fake_api::VMS;
use axum::body::{Body, Bytes};
use axum::response::Response;
use futures::StreamExt;
use http::{Request, StatusCode};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::vms::{children_listed, operate};
use tokio::net::TcpListener;
use vm_operator::api::VirtualMachine;
use vm_operator::controllers::vm;
use vm_operator::controllers::vm::context::VmController;
use vm_operator::controllers::vm::views::VmView;
use vm_operator::k8s::client::gate;
use vm_operator::k8s::client::timeout::Deadlines;
use vm_operator::k8s::cluster::Cluster;
use vm_operator::k8s::controller::after_failure;
use vm_operator::k8s::error::Retry;
use vm_operator::k8s::leader::Leadership;
use vm_operator::k8s::registry::Registry;
use vm_operator::settings::Settings;

/// The response to a request, if there is one.
enum Reply {
    Silence,
    /// The header and the start of the body.
    Half(Value),
    Whole(Value),
    /// The events of a watch, which remains open, by type and object.
    Events(Vec<(&'static str, Value)>),
    /// Too many requests.
    Later,
}

/// The kind of a request, and the number of previous requests of this kind.
type Script = fn(what: &str, path: &str, nth: usize) -> Reply;

/// A scripted server.
#[derive(Clone)]
struct Server {
    script: Script,
    requests: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Server {
    /// A listening server, and a client with short time-outs.
    async fn start(script: Script) -> (Self, Client) {
        let server = Self {
            script,
            requests: Arc::default(),
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let listening = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = listening.clone();
                let service =
                    hyper::service::service_fn(move |request| server.clone().answer(request));
                let serving = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move { drop(serving.await) });
            }
        });
        let _ = rustls::crypto::ring::default_provider().install_default();
        let deadlines = Deadlines {
            answer: Duration::from_millis(300),
            list: Duration::from_millis(300),
        };
        let mut config = Config::new(url);
        config.default_namespace = "ns".to_owned();
        (
            server,
            gate::client(config, Arc::default(), Leadership::alone(), deadlines).unwrap(),
        )
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response, Infallible> {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default();
        let what = match request.method().as_str() {
            "GET" if query.contains("watch=true") => "WATCH",
            method => method,
        };
        let nth = {
            let mut requests = self.requests.lock().unwrap();
            let count = requests.entry(format!("{what} {path}")).or_default();
            *count += 1;
            *count - 1
        };
        let first = match (self.script)(what, &path, nth) {
            Reply::Silence => return std::future::pending().await,
            Reply::Later => {
                let answer = Response::builder()
                    .status(StatusCode::TOO_MANY_REQUESTS)
                    .header("Retry-After", "1");
                return Ok(answer
                    .body(Body::from("Too many requests, please try again later."))
                    .unwrap());
            }
            Reply::Whole(value) => return Ok(Response::new(Body::from(value.to_string()))),
            Reply::Half(value) => value.to_string().split_at(10).0.to_owned(),
            Reply::Events(events) => {
                // The type comes first, as in events of a real API server.
                let line =
                    |(type_, object)| format!("{{\"type\":\"{type_}\",\"object\":{object}}}\n");
                events.into_iter().map(line).collect()
            }
        };
        let first = futures::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(first)))]);
        let frames = first.chain(futures::stream::pending());
        Ok(Response::new(Body::new(StreamBody::new(frames))))
    }

    fn requests(&self, what: &str) -> usize {
        self.requests
            .lock()
            .unwrap()
            .get(what)
            .copied()
            .unwrap_or_default()
    }
}

fn vm() -> Value {
    json!({
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "spec": {"vm": {}}, "status": {},
        "metadata": {"name": "vm", "namespace": "ns", "uid": "vm-uid", "generation": 1, "resourceVersion": "2"},
    })
}

/// The first request of each kind gets no response, the second one half a page. The third one is delayed.
fn responds_late(what: &str, path: &str, nth: usize) -> Reply {
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": []});
    match (what, path, nth) {
        (_, _, 0) => Reply::Silence,
        ("GET", _, 1) => Reply::Half(list),
        ("GET", _, 2) => Reply::Later,
        ("GET", ..) => Reply::Whole(list),
        (_, VMS, _) => Reply::Events(vec![("ADDED", vm())]),
        _ => Reply::Events(Vec::new()),
    }
}

#[tokio::test]
async fn operator_recovers_from_unanswered_initial_requests() {
    let (server, client) = Server::start(responds_late).await;
    let mut cluster = Cluster::new(client, vm::MANAGER);
    cluster.watch_backoff_max = Duration::from_millis(100);
    cluster.leadership = Leadership::waiting();
    let ctx = Arc::new(VmController::new(
        cluster,
        "ns".to_owned(),
        Settings::default(),
    ));
    let store = ctx.vms.reader();
    let standing_by = tokio::spawn(operate(ctx.clone(), std::future::pending()));
    let seen = async {
        children_listed(&ctx).await;
        while store.state().is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let seen = tokio::time::timeout(Duration::from_secs(60), seen).await;
    let mut stores = Registry::default();
    ctx.register(&mut stores);
    assert!(
        seen.is_ok(),
        "{:?}; requests: {:?}",
        stores.missing(),
        server.requests.lock().unwrap()
    );
    assert_eq!(store.state()[0].name_any(), "vm");
    standing_by.abort();
}

#[tokio::test]
async fn a_write_that_is_asked_for_later_is_sent_once_and_then_by_the_controller() {
    let script = |_: &str, _: &str, nth: usize| {
        if nth == 0 {
            Reply::Later
        } else {
            Reply::Whole(vm())
        }
    };
    let (server, client) = Server::start(script).await;
    let mut cluster = Cluster::new(client, vm::MANAGER);
    cluster.jitter = || 0.0;
    let ctx = VmController::new(cluster, "ns".to_owned(), Settings::default());
    let write = || async {
        let writer = ctx.scope.writer();
        let patch = json!({});
        writer
            .merge::<VirtualMachine, VmView>(&ctx.vms, "vm", &patch)
            .await
    };
    let requests = || server.requests(&format!("PATCH {VMS}/vm"));
    let error = write().await.unwrap_err();
    assert_eq!(
        (requests(), error.code(), error.retry()),
        (1, Some(429), Retry::Backoff(Duration::from_secs(30)))
    );
    assert_eq!(
        after_failure(&ctx, &ctx.scope.key("vm"), &error),
        Duration::from_secs(1)
    );
    write().await.unwrap();
    assert_eq!(requests(), 2);
}

#[tokio::test]
async fn a_write_that_is_never_answered_fails_and_says_so() {
    let (_, client) = Server::start(|_, _, _| Reply::Silence).await;
    let cluster = Cluster::new(client, vm::MANAGER);
    let ctx = VmController::new(cluster, "ns".to_owned(), Settings::default());
    let writer = ctx.scope.writer();
    let patch = json!({});
    let error = writer
        .merge::<VirtualMachine, VmView>(&ctx.vms, "vm", &patch)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("no answer within 300ms"),
        "{error}"
    );
    assert_eq!(error.retry(), Retry::Backoff(Duration::from_secs(30)));
}
