//! The operator's start where the cluster is not as it should be: no definition yet, objects that cannot be read.

use super::fake_api::VMS;
use futures::StreamExt;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vm_operator::operator::context::Context;
use vm_operator::operator::settings::Settings;
use vm_operator::operator::streams;

/// A server that lists VMs once it knows them, watches that tell nothing, and the patches that it was sent.
#[derive(Clone, Default)]
struct Server {
    knows_vms: Arc<AtomicBool>,
    vms: Arc<Mutex<Vec<Value>>>,
    patches: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Server {
    fn context(&self) -> Arc<Context> {
        let server = self.clone();
        let client = Client::new(tower::service_fn(move |request| server.clone().answer(request)), "ns");
        Arc::new(Context::new(client, "ns".to_owned(), Settings::default()))
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let query = parts.uri.query().unwrap_or_default();
        let is_watch = query.contains("watch=true");
        let answer = match (&parts.method, path.as_str()) {
            (&Method::GET, VMS) if !self.knows_vms.load(Ordering::Relaxed) => {
                let status =
                    json!({"status": "Failure", "code": 404, "reason": "NotFound", "message": "page not found"});
                return Ok(Response::builder().status(404).body(Body::from(serde_json::to_vec(&status)?))?);
            }
            (&Method::GET, VMS) if is_watch => {
                return std::future::pending().await;
            }
            (&Method::GET, VMS) => json!({
                "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachineList",
                "metadata": {"resourceVersion": "7"}, "items": *self.vms.lock().unwrap(),
            }),
            (&Method::PATCH, _) => {
                let body: Value = serde_json::from_slice(&body.collect().await?.to_bytes())?;
                self.patches.lock().unwrap().push((path, body.clone()));
                body
            }
            _ => json!({"metadata": {}}),
        };
        Ok(Response::new(Body::from(serde_json::to_vec(&answer)?)))
    }
}

fn vm(name: &str, maximum_ram: &Value, status: &Value) -> Value {
    json!({
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "ns", "uid": "u", "generation": 2, "resourceVersion": "5"},
        "spec": {"vm": {"maximumRam": maximum_ram}}, "status": status,
    })
}

#[tokio::test(start_paused = true)]
async fn a_missing_definition_is_waited_for() {
    let server = Server::default();
    server.vms.lock().unwrap().push(vm("vm", &json!("1Gi"), &json!({})));
    let ctx = server.context();
    let vms = streams::vms(&ctx);
    let mut stream = std::pin::pin!(vms.changed);
    assert!(tokio::time::timeout(Duration::from_mins(10), stream.next()).await.is_err());
    assert!(ctx.definition_missing.load(Ordering::Relaxed));
    server.knows_vms.store(true, Ordering::Relaxed);
    // The pauses have not grown so much that anybody would notice.
    let seen = tokio::time::timeout(Duration::from_secs(6), stream.next()).await.unwrap().unwrap();
    assert_eq!(seen.name, "vm");
    assert!(!ctx.definition_missing.load(Ordering::Relaxed));
    // Who is told of a VM finds it in the store.
    assert_eq!(vms.store.state().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_cannot_be_read_is_told_so_and_the_others_go_on() {
    let server = Server::default();
    server.knows_vms.store(true, Ordering::Relaxed);
    let restarts = json!({"attempts": 1, "podUid": "p", "reason": "R", "time": "2026-01-01T00:00:00Z"});
    *server.vms.lock().unwrap() =
        vec![vm("bad", &json!(5), &json!({"restarts": restarts})), vm("good", &json!("1Gi"), &json!({}))];
    let ctx = server.context();
    let vms = streams::vms(&ctx);
    let mut stream = std::pin::pin!(vms.changed);
    assert_eq!(stream.next().await.unwrap().name, "good");

    let patched = async {
        while server.patches.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), patched).await.unwrap();
    let (path, body) = server.patches.lock().unwrap()[0].clone();
    assert_eq!(path, format!("{VMS}/bad/status"));
    let ready = body["status"]["conditions"][0].clone();
    let told = (&ready["type"], &ready["status"], &ready["reason"], &ready["observedGeneration"]);
    assert_eq!(told, (&json!("Ready"), &json!("False"), &json!("Unreadable"), &json!(2)));
    let message = ready["message"].as_str().unwrap();
    assert!(message.contains("spec.vm.maximumRam") && message.contains("kubectl edit vm bad"), "{message}");
    assert_eq!(body["status"]["restarts"], restarts);

    // A new operator finds the condition there, and writes nothing.
    *server.vms.lock().unwrap() = vec![vm("bad", &json!(5), &body["status"]), vm("good", &json!("1Gi"), &json!({}))];
    server.patches.lock().unwrap().clear();
    let ctx = server.context();
    let mut stream = std::pin::pin!(streams::vms(&ctx).changed);
    stream.next().await.unwrap();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(*server.patches.lock().unwrap(), []);
}
