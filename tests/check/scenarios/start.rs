//! The start of the operator in an incomplete cluster: without the definition, or with objects that cannot be decoded.

use super::fake_api::{REPORTS, VMS};
use futures::StreamExt;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vm_operator::controllers::vm::context::VmController;
use vm_operator::controllers::vm::{self, watches};
use vm_operator::k8s::cluster::Cluster;
use vm_operator::k8s::registry::{Registry, Stored};
use vm_operator::k8s::tasks::Tasks;
use vm_operator::settings::Settings;

/// A server that lists VMs once it knows them, watches without events, and the created or patched objects.
#[derive(Clone, Default)]
struct Server {
    knows_vms: Arc<AtomicBool>,
    lacks_reports: Arc<AtomicBool>,
    vms: Arc<Mutex<Vec<Value>>>,
    written: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Server {
    fn context(&self) -> Arc<VmController> {
        let server = self.clone();
        let client = Client::new(
            tower::service_fn(move |request| server.clone().answer(request)),
            "ns",
        );
        let cluster = Cluster::new(client, vm::MANAGER);
        Arc::new(VmController::new(
            cluster,
            "ns".to_owned(),
            Settings::default(),
        ))
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let query = parts.uri.query().unwrap_or_default();
        let is_watch = query.contains("watch=true");
        let is_unknown = match path.as_str() {
            VMS => !self.knows_vms.load(Ordering::Relaxed),
            REPORTS => self.lacks_reports.load(Ordering::Relaxed),
            _ => false,
        };
        if is_unknown {
            let status = json!({"status": "Failure", "code": 404, "reason": "NotFound", "message": "page not found"});
            return Ok(Response::builder()
                .status(404)
                .body(Body::from(serde_json::to_vec(&status)?))?);
        }
        let answer = match (&parts.method, path.as_str()) {
            (&Method::GET, REPORTS) if is_watch => {
                return std::future::pending().await;
            }
            (&Method::GET, REPORTS) => json!({
                "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VmReportList",
                "metadata": {"resourceVersion": "7"}, "items": [],
            }),
            (&Method::GET, VMS) if is_watch => {
                return std::future::pending().await;
            }
            (&Method::GET, VMS) => json!({
                "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachineList",
                "metadata": {"resourceVersion": "7"}, "items": *self.vms.lock().unwrap(),
            }),
            (&Method::GET, path) if path.starts_with(VMS) => {
                let name = path.rsplit('/').next();
                let vms = self.vms.lock().unwrap();
                vms.iter()
                    .find(|vm| vm["metadata"]["name"].as_str() == name)
                    .cloned()
                    .unwrap_or_default()
            }
            (&Method::PATCH | &Method::POST, _) => {
                let body: Value = serde_json::from_slice(&body.collect().await?.to_bytes())?;
                self.written.lock().unwrap().push((path, body.clone()));
                body
            }
            _ => json!({"metadata": {}}),
        };
        Ok(Response::new(Body::from(serde_json::to_vec(&answer)?)))
    }
}

fn vm(name: &str, maximum_ram: &Value) -> Value {
    json!({
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "ns", "uid": "u", "generation": 2, "resourceVersion": "5"},
        "spec": {"vm": {"maximumRam": maximum_ram}}, "status": {},
    })
}

#[tokio::test(start_paused = true)]
async fn a_missing_definition_is_waited_for() {
    let server = Server::default();
    server.vms.lock().unwrap().push(vm("vm", &json!("1Gi")));
    let ctx = server.context();
    let vms = watches::vms(&ctx);
    let mut stream = std::pin::pin!(vms);
    assert!(
        tokio::time::timeout(Duration::from_mins(10), stream.next())
            .await
            .is_err()
    );
    assert!(ctx.vms.is_unknown());
    server.knows_vms.store(true, Ordering::Relaxed);
    // The backoff has not grown noticeably.
    let seen = tokio::time::timeout(Duration::from_secs(6), stream.next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(seen.name, "vm");
    assert!(!ctx.vms.is_unknown());
    // A reconcile for a VM finds the VM in the store.
    assert_eq!(ctx.vms.reader().state().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_operator_without_the_definition_of_reports_is_not_ready_and_names_it() {
    let server = Server::default();
    server.lacks_reports.store(true, Ordering::Relaxed);
    let ctx = server.context();
    let mut registry = Registry::default();
    ctx.register(&mut registry);
    let mut tasks = Tasks::default();
    let _changes = watches::children(&ctx, &mut tasks);
    let soon = || tokio::time::sleep(Duration::from_secs(60));
    soon().await;
    assert_eq!(registry.unknown(), ["vmreports"]);
    assert!(registry.missing().contains(&"vmreports"));
    // A process with incomplete stores is no candidate for the Lease.
    let ready = tokio::time::timeout(Duration::from_secs(60), registry.ready());
    assert!(ready.await.is_err());
    server.lacks_reports.store(false, Ordering::Relaxed);
    soon().await;
    assert_eq!(registry.unknown(), [""; 0]);
    assert!(!registry.missing().contains(&"vmreports"));
}

#[tokio::test(start_paused = true)]
async fn an_event_names_the_field_of_a_vm_that_cannot_be_decoded_and_the_other_vms_are_not_affected()
 {
    let server = Server::default();
    server.knows_vms.store(true, Ordering::Relaxed);
    *server.vms.lock().unwrap() = vec![vm("bad", &json!(5)), vm("good", &json!("1Gi"))];
    let ctx = server.context();
    let mut stream = std::pin::pin!(watches::vms(&ctx));
    assert_eq!(stream.next().await.unwrap().name, "good");
    // The loop calls this when the process becomes the leader.
    ctx.undecodable[0].report_all(&ctx.scope.cluster);
    let published = async {
        while server.written.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), published)
        .await
        .unwrap();
    let (path, event) = server.written.lock().unwrap()[0].clone();
    assert!(path.ends_with("/events"), "{path}");
    let regarding = (
        &event["regarding"]["kind"],
        &event["regarding"]["name"],
        &event["regarding"]["uid"],
    );
    assert_eq!(
        regarding,
        (&json!("VirtualMachine"), &json!("bad"), &json!("u"))
    );
    assert_eq!(
        (&event["type"], &event["reason"]),
        (&json!("Warning"), &json!("Unreadable"))
    );
    let note = event["note"].as_str().unwrap();
    assert!(
        note.contains("spec.vm.maximumRam") && note.contains("kubectl edit vms bad"),
        "{note}"
    );
    assert_eq!(ctx.undecodable[0].count(), 1);
    assert_eq!(ctx.vms.reader().state().len(), 1);
}
