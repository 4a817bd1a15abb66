//! `/livez`, `/readyz` and `/metrics`.

use crate::api::{VirtualMachine, conditions};
use crate::controllers::vm::context::Context;
use crate::k8s::client::connect::listen;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use futures::FutureExt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::watch;
use tower::ServiceExt;

/// Serves the pages that were sent last, until the process ends.
///
/// # Errors
/// If the address cannot be listened on.
pub async fn serve(address: SocketAddr) -> std::io::Result<watch::Sender<Router>> {
    let listener = listen(address).await?;
    // The port may have been chosen by the kernel.
    tracing::info!(address = %listener.local_addr()?, "serving /livez, /readyz and /metrics");
    let (sender, receiver) = watch::channel(Router::new());
    let newest = tower::service_fn(move |request| receiver.borrow().clone().oneshot(request));
    tokio::spawn(axum::serve(listener, Router::new().fallback_service(newest)).into_future());
    Ok(sender)
}

/// The pages about that operator.
pub fn pages(ctx: Arc<Context>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(ctx)
}

async fn readyz(State(ctx): State<Arc<Context>>) -> impl IntoResponse {
    let vms_listed = ctx
        .vms
        .reader()
        .wait_until_ready()
        .now_or_never()
        .is_some_and(|ready| ready.is_ok());
    let missing: Vec<_> = (!vms_listed)
        .then_some("vms")
        .into_iter()
        .chain(ctx.caches.missing())
        .collect();
    if missing.is_empty() {
        (StatusCode::OK, "ok".to_owned())
    } else {
        let next_step = match ctx.definition_missing.load(Ordering::Relaxed) {
            true => "; the API server does not know VirtualMachines: kubectl apply -f crds/",
            false => "",
        };
        (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not listed yet: {}{next_step}", missing.join(", ")),
        )
    }
}

/// The reason of a VM's condition `Ready`, as `kubectl get vms` shows it.
fn state_of(vm: &VirtualMachine) -> &str {
    let conditions = vm
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    conditions::find(conditions, conditions::READY).map_or("Unknown", |ready| ready.reason.as_str())
}

async fn metrics(State(ctx): State<Arc<Context>>) -> impl IntoResponse {
    let vms = ctx.vms.reader().state();
    ctx.metrics.set_vms(vms.iter().map(|vm| state_of(vm)));
    ctx.metrics.set_stored("vms", vms.len());
    for (resource, count) in ctx.caches.sizes() {
        ctx.metrics.set_stored(resource, count);
    }
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ctx.metrics
        .backoff
        .set(i64::try_from(ctx.states.failing()).unwrap_or(i64::MAX));
    ctx.metrics
        .undecodable
        .set(i64::try_from(ctx.undecodable().len()).unwrap_or(i64::MAX));
    ctx.metrics.leader.set(i64::from(ctx.leadership.leads()));
    ([(header::CONTENT_TYPE, content_type)], ctx.metrics.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use http_body_util::BodyExt;
    use kube::runtime::watcher;
    use serde_json::json;

    async fn get(ctx: &Arc<Context>, path: &str) -> (StatusCode, String) {
        let request = axum::http::Request::get(path)
            .body(axum::body::Body::empty())
            .unwrap();
        let answer = pages(ctx.clone()).oneshot(request).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn an_operator_without_lists_is_alive_and_says_what_it_waits_for() {
        let nothing = tower::service_fn(async |_| {
            Ok::<_, std::convert::Infallible>(
                axum::http::Response::new(kube::client::Body::empty()),
            )
        });
        let client = kube::Client::new(nothing, "ns");
        let ctx = Arc::new(Context::new(client, "ns".to_owned(), Settings::default()));
        assert_eq!(get(&ctx, "/livez").await.0, StatusCode::OK);
        ctx.definition_missing.store(true, Ordering::Relaxed);
        let (_, text) = get(&ctx, "/readyz").await;
        assert!(text.contains("kubectl apply -f crds/"), "{text}");
        ctx.definition_missing.store(false, Ordering::Relaxed);
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
        let (_, text) = get(&ctx, "/readyz").await;
        assert_eq!(text, "not listed yet: secrets");
        ctx.caches.secrets.watched(watcher::Event::InitDone);
        assert_eq!(get(&ctx, "/readyz").await.0, StatusCode::OK);
        assert!(
            get(&ctx, "/metrics")
                .await
                .1
                .contains("vm_operator_watch_restarts_total 0")
        );

        let ready = json!({"type": "Ready", "status": "True", "reason": "Running", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        for (name, conditions) in [
            ("a", json!([ready])),
            ("b", json!([ready])),
            ("c", json!([])),
        ] {
            let (version, kind) = ("vmoperator.jdrupes.org/v1", "VirtualMachine");
            let (metadata, status) = (
                json!({"name": name, "namespace": "ns"}),
                json!({"conditions": conditions}),
            );
            let vm = json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {"vm": {}}, "status": status});
            ctx.vms
                .watched(&watcher::Event::Apply(serde_json::from_value(vm).unwrap()));
        }
        ctx.metrics.requested("patch", "vms/status");
        let text = get(&ctx, "/metrics").await.1;
        for line in [
            r#"vm_operator_vms{state="Running"} 2"#,
            r#"vm_operator_vms{state="Unknown"} 1"#,
            r#"vm_operator_stored_objects{resource="vms"} 3"#,
            r#"vm_operator_stored_objects{resource="pods"} 0"#,
            r#"vm_operator_api_requests_total{verb="patch",resource="vms/status"} 1"#,
            "vm_operator_leader 1",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
