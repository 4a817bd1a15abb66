//! Writes of the pool controller that the API server rejects.

use super::{NAMESPACE, create};
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::memory::Server;
use support::{components, timings};
use vm_operator::api::VmPool;
use vm_operator::api::pool::names;
use vm_operator::controllers::pool::context::PoolController;
use vm_operator::controllers::pool::{MANAGER, reconcile, watch};
use vm_operator::k8s::cluster::Cluster;
use vm_operator::k8s::tasks::Tasks;

/// A context on a server that rejects each change of the VM `rejected`, each time with another message.
async fn context(server: &Server) -> (Arc<PoolController>, Tasks) {
    let (inner, count) = (server.client(NAMESPACE), Arc::new(AtomicUsize::new(0)));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (inner, count) = (inner.clone(), count.clone());
        async move {
            if request.method() == Method::PATCH && request.uri().path().ends_with("/vms/rejected")
            {
                let n = count.fetch_add(1, Ordering::Relaxed);
                let message = format!("denied by request {n}");
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422, "reason": "Invalid", "message": message});
                let response = Response::builder()
                    .status(422)
                    .body(Body::from(status.to_string().into_bytes()));
                return Ok(response.unwrap());
            }
            inner.send(request).await
        }
    });
    let mut cluster = Cluster::new(Client::new(service, NAMESPACE), MANAGER);
    (cluster.now, cluster.instant) = (timings::now, timings::instant);
    let ctx = Arc::new(PoolController::new(cluster, NAMESPACE.to_owned()));
    let mut tasks = Tasks::default();
    let watched = watch(&ctx, &mut tasks);
    let drain = futures::future::join(
        futures::StreamExt::for_each(watched.pools, |_| std::future::ready(())),
        futures::StreamExt::for_each(watched.vms, |_| std::future::ready(())),
    );
    tokio::spawn(drain);
    (ctx, tasks)
}

/// Creates the pool `p` with the member `accepted`, and an assignment for the user anna.
async fn create_pool(server: &Server, spec: Value) {
    let vm = json!({"pools": ["p"], "vm": {"state": "Stopped"}});
    create(server, "VirtualMachine", "accepted", vm).await;
    create(server, "VmPool", "p", spec).await;
    let (name, spec) = (
        names::assignment("p", "anna"),
        json!({"pool": "p", "user": "anna"}),
    );
    create(server, "VmAssignment", &name, spec).await;
}

async fn pool(server: &Server) -> Arc<VmPool> {
    let pools: kube::Api<VmPool> = kube::Api::namespaced(server.client(NAMESPACE), NAMESPACE);
    Arc::new(pools.get("p").await.unwrap())
}

async fn assignment(server: &Server) -> Value {
    let api = components::api(&server.client(NAMESPACE), "VmAssignment", Some(NAMESPACE));
    let assignment = api.get(&names::assignment("p", "anna")).await.unwrap();
    serde_json::to_value(assignment).unwrap()
}

async fn reconcile_once(server: &Server, ctx: &PoolController) -> String {
    // The watches deliver all changes.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let error = reconcile(pool(server).await, ctx).await.unwrap_err();
    error.to_string()
}

#[tokio::test(start_paused = true)]
async fn rejected_write_does_not_delay_other_users_and_its_message_changes_once_a_minute() {
    let server = super::server();
    let (ctx, _tasks) = context(&server).await;
    let vm = json!({"pools": ["p"], "vm": {"state": "Stopped"}});
    create(&server, "VirtualMachine", "rejected", vm).await;
    create_pool(&server, json!({"permissions": [], "prewarm": 2})).await;
    ctx.stores_ready().await;

    // One reconcile is enough for the assignment, although each of its rounds has a rejected write.
    let error = reconcile_once(&server, &ctx).await;
    assert!(
        error.contains("VirtualMachine rejected: denied by request"),
        "{error}"
    );
    let assignment = assignment(&server).await;
    assert_eq!(
        assignment["status"]["conditions"][0]["reason"], "Assigned",
        "{assignment:#}"
    );
    assert_eq!(assignment["status"]["vm"]["name"], "accepted");

    let message = async || {
        let status = pool(&server).await.status.clone().unwrap();
        assert_eq!(status.conditions[0].reason, "WriteRejected");
        status.conditions[0].message.clone()
    };
    let first = message().await;
    assert!(
        first.ends_with(
            "; correct the object that this message names, or the webhook that rejects the request"
        ),
        "{first}"
    );
    reconcile_once(&server, &ctx).await;
    assert_eq!(message().await, first);
    tokio::time::sleep(Duration::from_secs(60)).await;
    reconcile_once(&server, &ctx).await;
    assert_ne!(message().await, first);
}

#[tokio::test(start_paused = true)]
async fn assignment_with_another_controller_as_its_owner_gets_a_vm() {
    let server = super::server();
    let (ctx, _tasks) = context(&server).await;
    create_pool(&server, json!({"permissions": []})).await;
    let owner = json!({"apiVersion": "example.org/v1", "kind": "Portal", "name": "portal", "uid": "1", "controller": true});
    let api = components::api(&server.client(NAMESPACE), "VmAssignment", Some(NAMESPACE));
    let patch = kube::api::Patch::Merge(json!({"metadata": {"ownerReferences": [owner]}}));
    let name = names::assignment("p", "anna");
    api.patch(&name, &Default::default(), &patch).await.unwrap();
    ctx.stores_ready().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    reconcile(pool(&server).await, &ctx).await.unwrap();
    let assignment = assignment(&server).await;
    assert_eq!(
        assignment["status"]["conditions"][0]["reason"], "Assigned",
        "{assignment:#}"
    );
    let owners = assignment["metadata"]["ownerReferences"]
        .as_array()
        .unwrap();
    let controllers = owners.iter().filter(|owner| owner["controller"] == true);
    assert_eq!((owners.len(), controllers.count()), (2, 1), "{owners:#?}");
}

/// An object of a later version of the operator, which this version cannot decode.
#[tokio::test(start_paused = true)]
async fn pool_that_cannot_be_decoded_affects_no_other_pool() {
    let server = super::server();
    let (ctx, _tasks) = context(&server).await;
    create(
        &server,
        "VmPool",
        "other",
        json!({"permissions": [], "onRelease": "Archive"}),
    )
    .await;
    create_pool(&server, json!({"permissions": []})).await;
    tokio::time::timeout(Duration::from_secs(60), ctx.stores_ready())
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    reconcile(pool(&server).await, &ctx).await.unwrap();
    assert_eq!(
        assignment(&server).await["status"]["conditions"][0]["reason"],
        "Assigned"
    );
}
