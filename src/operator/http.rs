//! HTTP server for `/livez`, `/readyz` and `/metrics`.

use crate::k8s::client::connect::listen;
use crate::k8s::cluster::Cluster;
use crate::k8s::registry::Registry;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;
use tower::ServiceExt;

/// Starts the HTTP server, which runs until the process exits. It serves the router that was last sent to the returned channel.
///
/// # Errors
/// The server cannot listen on the address.
pub async fn serve(address: SocketAddr) -> std::io::Result<watch::Sender<Router>> {
    let listener = listen(address).await?;
    // With port 0, the kernel chooses the port.
    tracing::info!(address = %listener.local_addr()?, "serving /livez, /readyz and /metrics over HTTP");
    let (sender, receiver) = watch::channel(Router::new());
    let newest = tower::service_fn(move |request| receiver.borrow().clone().oneshot(request));
    tokio::spawn(axum::serve(listener, Router::new().fallback_service(newest)).into_future());
    Ok(sender)
}

/// The data of the pages.
#[derive(Clone)]
pub struct Pages {
    /// The state that all controllers share.
    pub cluster: Cluster,
    /// The stores of all controllers.
    pub registry: Registry,
    /// Functions that update the metrics of controllers before each scrape.
    pub update_metrics: Vec<Arc<dyn Fn() + Send + Sync>>,
}

impl Pages {
    /// The routes of the pages.
    pub fn router(self) -> Router {
        Router::new()
            .route("/livez", get(|| async { "ok" }))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

async fn readyz(State(pages): State<Pages>) -> impl IntoResponse {
    let missing = pages.registry.missing();
    if missing.is_empty() {
        return (StatusCode::OK, "ok".to_owned());
    }
    let mut text = format!(
        "the operator is not ready, because it has not received the first list of these kinds of objects: {}",
        missing.join(", ")
    );
    let mut unknown = BTreeMap::<&str, Vec<&str>>::new();
    for kind in pages.registry.unknown() {
        let install = pages.cluster.install_command(kind);
        unknown.entry(install).or_default().push(kind);
    }
    for (install, kinds) in unknown {
        let kinds = kinds.join(", ");
        text += &format!("; the API server does not know {kinds}; install the CRDs: {install}");
    }
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

async fn metrics(State(pages): State<Pages>) -> impl IntoResponse {
    let metrics = &pages.cluster.metrics;
    for (resource, count) in pages.registry.counts() {
        metrics.set_stored(resource, count);
    }
    let leads = pages.cluster.leadership.leads();
    metrics.leader.set(i64::from(leads));
    let forbidden = pages.cluster.forbidden.namespaces();
    let forbidden = i64::try_from(forbidden).unwrap_or(i64::MAX);
    metrics.forbidden_namespaces.set(forbidden);
    for update in &pages.update_metrics {
        update();
    }
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], metrics.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::vm;
    use crate::controllers::vm::context::VmController;
    use crate::k8s::controller::Reconciler;
    use crate::settings::Settings;
    use http_body_util::BodyExt;
    use kube::runtime::watcher;
    use serde_json::json;

    async fn get(ctx: &Arc<VmController>, path: &str) -> (StatusCode, String) {
        let counted = ctx.clone();
        let mut pages = Pages {
            cluster: ctx.scope.cluster.clone(),
            registry: Registry::default(),
            update_metrics: vec![Arc::new(move || counted.update_metrics())],
        };
        ctx.register(&mut pages.registry);
        let request = axum::http::Request::get(path)
            .body(axum::body::Body::empty())
            .unwrap();
        let answer = pages.router().oneshot(request).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn note_definition(ctx: &VmController, code: u16) {
        let status = kube::core::Status::failure("", "").with_code(code).boxed();
        let error = watcher::Error::InitialListFailed(kube::Error::Api(status));
        ctx.vms
            .note_definition::<()>(&Err(error), &ctx.scope.cluster);
    }

    #[tokio::test]
    async fn an_operator_without_lists_is_alive_and_names_the_missing_lists() {
        let nothing = tower::service_fn(async |_| {
            Ok::<_, std::convert::Infallible>(
                axum::http::Response::new(kube::client::Body::empty()),
            )
        });
        let cluster = Cluster::new(kube::Client::new(nothing, "ns"), vm::MANAGER);
        let ctx = VmController::new(cluster, "ns".to_owned(), Settings::default());
        let ctx = Arc::new(ctx);
        assert_eq!(get(&ctx, "/livez").await.0, StatusCode::OK);
        note_definition(&ctx, 404);
        let (_, text) = get(&ctx, "/readyz").await;
        assert!(text.contains("kubectl apply -f crds/"), "{text}");
        note_definition(&ctx, 503);
        let (_, text) = get(&ctx, "/readyz").await;
        assert!(text.contains("kubectl apply -f crds/"), "{text}");
        let listed = Ok(watcher::Event::InitDone);
        ctx.vms.note_definition::<()>(&listed, &ctx.scope.cluster);
        let (status, text) = get(&ctx, "/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(
            text.contains("vms") && text.contains("persistentvolumeclaims"),
            "{text}"
        );

        ctx.vms.watched(&watcher::Event::Init);
        ctx.vms.watched(&watcher::Event::InitDone);
        ctx.caches.pods.watched(watcher::Event::InitDone);
        ctx.caches.claims.watched(watcher::Event::InitDone);
        ctx.caches.config_maps.watched(watcher::Event::InitDone);
        ctx.caches.services.watched(watcher::Event::InitDone);
        ctx.caches.reports.watched(watcher::Event::InitDone);
        let (_, text) = get(&ctx, "/readyz").await;
        assert_eq!(
            text,
            "the operator is not ready, because it has not received the first list of these kinds of objects: secrets"
        );
        ctx.caches.secrets.watched(watcher::Event::InitDone);
        assert_eq!(get(&ctx, "/readyz").await.0, StatusCode::OK);
        assert!(
            get(&ctx, "/metrics")
                .await
                .1
                .contains("vm_operator_watch_restarts_total 0")
        );

        let ready = json!({"type": "Ready", "status": "True", "reason": "Running", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let accelerated = |reason: &str| json!({"type": "Accelerated", "status": "False", "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let restarts = |name: &str| {
            let time = "2026-01-01T00:00:00Z";
            (name == "a").then(|| json!({"attempts": 3, "podUid": "1", "reason": "", "time": time}))
        };
        for (name, conditions) in [
            ("a", json!([ready, accelerated("KvmNotAvailable")])),
            ("b", json!([ready, accelerated("TcgRequested")])),
            ("c", json!([])),
        ] {
            let (version, kind) = ("vmoperator.jdrupes.org/v1", "VirtualMachine");
            let (metadata, status) = (
                json!({"name": name, "namespace": "ns"}),
                json!({"conditions": conditions, "nodeName": "n1", "runnerVersion": "1", "restarts": restarts(name)}),
            );
            let vm = json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {"vm": {}}, "status": status});
            ctx.vms
                .watched(&watcher::Event::Apply(serde_json::from_value(vm).unwrap()));
        }
        ctx.scope
            .cluster
            .metrics
            .requested("patch", "vms/status", "200");
        let text = get(&ctx, "/metrics").await.1;
        for line in [
            r#"vm_operator_vms{state="Running"} 2"#,
            r#"vm_operator_vms{state="Unknown"} 1"#,
            r#"vm_operator_stored_objects{resource="vms"} 3"#,
            r#"vm_operator_stored_objects{resource="pods"} 0"#,
            r#"vm_operator_api_requests_total{verb="patch",resource="vms/status",code="200"} 1"#,
            r#"vm_operator_vm_info{namespace="ns",name="a",node="n1",state="Stopped",reason="Running",runner_version="1"} 1"#,
            r#"vm_operator_vm_restarts{namespace="ns",name="a"} 3"#,
            r#"vm_operator_vm_restarts{namespace="ns",name="c"} 0"#,
            concat!(
                r#"vm_operator_build_info{version=""#,
                env!("CARGO_PKG_VERSION")
            ),
            "process_resident_memory_bytes ",
            "process_cpu_seconds_total ",
            "vm_operator_leader 1",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let conditions = text
            .lines()
            .filter(|line| line.starts_with("vm_operator_vm_condition{"));
        let mut conditions: Vec<&str> = conditions.collect();
        conditions.sort_unstable();
        assert_eq!(
            conditions,
            [
                r#"vm_operator_vm_condition{namespace="ns",name="a",type="Accelerated",status="False"} 1"#,
                r#"vm_operator_vm_condition{namespace="ns",name="a",type="Ready",status="True"} 1"#,
                r#"vm_operator_vm_condition{namespace="ns",name="b",type="Ready",status="True"} 1"#,
            ],
            "an emulation that is configured is no problem"
        );
        // A changed configuration file leads to a new controller in the same process.
        let next = VmController::new(
            ctx.scope.cluster.clone(),
            "ns".to_owned(),
            Settings::default(),
        );
        let text = get(&Arc::new(next), "/metrics").await.1;
        assert!(!text.contains("vm_operator_vm_condition{"), "{text}");
    }
}
