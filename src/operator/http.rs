//! `/livez`, `/readyz` and `/metrics`.

use super::context::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Serves until the process ends.
///
/// # Errors
/// If the address cannot be listened on.
pub async fn serve(address: SocketAddr, ctx: Arc<Context>) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    axum::serve(listener, router(ctx)).await
}

fn router(ctx: Arc<Context>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(ctx)
}

async fn readyz(State(ctx): State<Arc<Context>>) -> impl IntoResponse {
    match ctx.caches.missing() {
        missing if missing.is_empty() => (StatusCode::OK, "ok".to_owned()),
        missing => (StatusCode::SERVICE_UNAVAILABLE, format!("not listed yet: {}", missing.join(", "))),
    }
}

async fn metrics(State(ctx): State<Arc<Context>>) -> impl IntoResponse {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], ctx.metrics.text())
}
