//! An unavailable API server: no data is lost, nothing is destroyed, and missed changes are processed later.

use super::fake_api::{CONFIG_MAPS, FakeApi, PODS, VMS};
use super::world::{one_disk, request};
use futures::FutureExt;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use support::vms::operate;
use tokio::sync::watch;
use vm_operator::controllers::vm;
use vm_operator::controllers::vm::context::VmController;
use vm_operator::k8s::cluster::Cluster;
use vm_operator::settings::Settings;

/// A server with a connection that can be broken. Then no request gets a response, and each watch ends.
#[derive(Clone)]
struct Server {
    api: FakeApi,
    cut: watch::Sender<bool>,
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        Client::new(
            tower::service_fn(move |request| server.clone().answer(request)),
            "ns",
        )
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        if *self.cut.borrow() {
            return Err("the connection was cut".into());
        }
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let is_collection =
            path.contains("/namespaces/") && path.split('/').nth_back(1) == Some("ns");
        if request.method() != Method::GET || !is_collection {
            return Ok(self.api.client().send(request).await?);
        }
        // A watch reports only that it has expired, so that a new list always follows.
        let answer = if query.contains("watch=true") {
            let mut cut = self.cut.subscribe();
            tokio::select! {
                _ = cut.wait_for(|cut| *cut) => return Err("the connection was cut".into()),
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
            let gone =
                json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
            json!({"type": "ERROR", "object": gone})
        } else {
            json!({
                "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": self.api.list(&path),
            })
        };
        Ok(Response::new(Body::from(serde_json::to_vec(&answer)?)))
    }

    async fn within(&self, seconds: u64, what: &str, holds: impl Fn(&FakeApi) -> bool) {
        let wait = async {
            while !holds(&self.api) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        assert!(
            tokio::time::timeout(Duration::from_secs(seconds), wait)
                .await
                .is_ok(),
            "{what}: not within {seconds} s"
        );
    }
}

fn reason(api: &FakeApi) -> Value {
    let vm = api.get(VMS, "vm").unwrap();
    let conditions = vm["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    conditions
        .iter()
        .find(|c| c["type"] == "Ready")
        .map(|c| c["reason"].clone())
        .unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn minutes_without_the_api_server_change_nothing_and_are_caught_up_on() {
    let server = Server {
        api: FakeApi::default(),
        cut: watch::Sender::new(false),
    };
    let mut machine = one_disk();
    machine["maximumCpus"] = 4.into();
    server.api.put(
        VMS,
        json!({
            "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "spec": {"vm": machine}, "status": {},
            "metadata": {"name": "vm", "namespace": "ns", "uid": "vm-uid", "generation": 1},
        }),
    );
    let cluster = Cluster::new(server.client(), vm::MANAGER);
    let ctx = Arc::new(VmController::new(
        cluster,
        "ns".to_owned(),
        Settings::default(),
    ));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let operator = tokio::spawn(operate(ctx.clone(), stopped.map(drop)));
    server
        .within(10, "there is a pod", |api| api.get(PODS, "vm").is_some())
        .await;
    server.api.change(PODS, "vm", |pod| {
        pod["status"] = json!({"phase": "Running"})
    });
    server.api.change(VMS, "vm", |vm| {
        let conditions = vm["status"]["conditions"].as_array_mut().unwrap();
        conditions.retain(|condition| condition["type"] != "Running");
        conditions.push(json!({
            "type": "Running", "status": "True", "reason": "VmStarted", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }));
    });
    server
        .within(10, "the VM runs", |api| reason(api) == "Running")
        .await;
    let pod = server.api.get(PODS, "vm").unwrap();

    server.api.requests();
    server.cut.send_replace(true);
    tokio::time::sleep(Duration::from_secs(5)).await;
    server.api.change(VMS, "vm", |vm| {
        vm["spec"]["vm"]["currentCpus"] = 2.into();
        vm["metadata"]["generation"] = 2.into();
    });
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(server.api.requests(), [""; 0]);
    assert!(!operator.is_finished());
    server.cut.send_replace(false);
    let text =
        |api: &FakeApi| api.get(CONFIG_MAPS, "vm").unwrap()["data"]["config.yaml"].to_string();
    server
        .within(15, "the change is made", |api| {
            text(api)
                .replace(['\\', '"', ' '], "")
                .contains("currentCpus:2")
        })
        .await;
    server
        .within(8, "it is reported", |api| {
            api.get(VMS, "vm").unwrap()["status"]["observedGeneration"] == 2
        })
        .await;
    let after = server.api.get(PODS, "vm").unwrap();
    assert_eq!(
        (&after["metadata"]["uid"], reason(&server.api)),
        (&pod["metadata"]["uid"], json!("Running"))
    );
    let requests = server.api.requests();
    assert!(
        !requests.iter().any(|request| request.starts_with("DELETE")),
        "{requests:?}"
    );
    assert!(
        requests.contains(&request("PATCH", CONFIG_MAPS, "vm")),
        "{requests:?}"
    );
    drop(stop);
    operator.await.unwrap();
}
