//! Probes and metrics, which have a port of their own: clients that use all connections of the console do not end it.

use crate::k8s::registry::Stored;
use crate::web::http::Shared;
use crate::web::{Console, LIVE_MAX};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use std::sync::Arc;

/// The routes of the probes and of the metrics.
pub fn probes(console: Arc<Console>) -> Router {
    Router::new()
        .route("/livez", get(async || "ok"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(console)
}

async fn readyz(State(console): Shared) -> impl IntoResponse {
    let missing = if !console.vms.is_ready() {
        "the console is not ready, because it has not received the first list of VMs"
    } else if console.keys().is_none() {
        "the console is not ready, because it has no keys; its log has the reason"
    } else {
        return (StatusCode::OK, "ok");
    };
    (StatusCode::SERVICE_UNAVAILABLE, missing)
}

async fn metrics(State(console): Shared) -> impl IntoResponse {
    let open = LIVE_MAX.saturating_sub(console.live.available_permits());
    let last_news = (console.cluster.now)() - console.news.age();
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    (
        [(header::CONTENT_TYPE, content_type)],
        console.metrics.text(open, last_news),
    )
}
