//! (client) The operator's API client. It counts each request, sets a time-out for it, and sends no write while the
//! operator does not lead.
//!
//! ```text
//!  Client ──► leads? counted ──► Deadlines ──► connections
//! ```
//!
//! The layers below the gate do not repeat requests, so that each retry passes the gate again.

use crate::k8s::client::connect;
use crate::k8s::client::request_info::request_info;
use crate::k8s::client::timeout::Deadlines;
use crate::k8s::leader::Leadership;
use crate::telemetry::metrics::Metrics;
use http::{Method, Request};
use kube::client::Body;
use kube::{Client, Config};
use std::sync::Arc;
use tower::filter::FilterLayer;

/// A write of an operator without leadership. It was not sent.
#[derive(Debug, thiserror::Error)]
#[error("this operator is not the leader, so it must not write")]
pub struct NotLeading;

/// A client that counts requests and sends writes only while `leadership` says that this operator leads. The check is
/// the last step before a request is sent, so that a process that was suspended sends no write when it resumes.
///
/// # Errors
/// The configuration is invalid.
pub fn client(
    mut config: Config,
    metrics: Arc<Metrics>,
    leadership: Leadership,
    deadlines: Deadlines,
) -> kube::Result<Client> {
    // kube's retries would bypass the gate: up to 15 of them, with delays that the server chooses.
    config.default_retry = false;
    let layer = layer(metrics, leadership);
    Ok(connect::builder(config)?
        .with_layer(&deadlines)
        .with_layer(&layer)
        .build())
}

/// A client that counts requests and has the default time-outs, for programs without leader election.
///
/// # Errors
/// The configuration is invalid.
pub fn client_without_gate(config: Config, metrics: Arc<Metrics>) -> kube::Result<Client> {
    client(config, metrics, Leadership::alone(), Deadlines::default())
}

/// Counts requests, and rejects writes of an operator without leadership.
pub fn layer(
    metrics: Arc<Metrics>,
    leadership: Leadership,
) -> FilterLayer<impl Fn(Request<Body>) -> Result<Request<Body>, NotLeading> + Clone> {
    FilterLayer::new(move |request: Request<Body>| {
        if is_write(request.method()) && !leadership.leads() {
            return Err(NotLeading);
        }
        count(&request, &metrics);
        Ok(request)
    })
}

fn is_write(method: &Method) -> bool {
    method != Method::GET && method != Method::HEAD
}

fn count(request: &Request<Body>, metrics: &Metrics) {
    let (verb, resource) = request_info(
        request.method(),
        request.uri().path(),
        request.uri().query().unwrap_or_default(),
    );
    metrics.requested(verb, &resource);
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;
    use axum::response::IntoResponse;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    /// An overloaded server, its request count, and a client of it.
    async fn overloaded(leadership: Leadership) -> (Arc<AtomicUsize>, Client) {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = requests.clone();
        let answer = async move || {
            count.fetch_add(1, Ordering::Relaxed);
            (
                StatusCode::TOO_MANY_REQUESTS,
                [("Retry-After", "1")],
                "too many requests",
            )
                .into_response()
        };
        let listener = tokio::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))
            .await
            .unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        tokio::spawn(
            async move { axum::serve(listener, axum::Router::new().fallback(answer)).await },
        );
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = client(
            Config::new(url),
            Arc::default(),
            leadership,
            Deadlines::default(),
        );
        (requests, client.unwrap())
    }

    #[tokio::test]
    async fn a_write_that_was_put_off_is_not_sent_again_when_the_lead_has_ended() {
        let leadership = Leadership::leading_for(Duration::from_millis(800));
        let (requests, client) = overloaded(leadership.clone()).await;
        let write = || {
            Request::patch("/api/v1/namespaces/a/pods/b")
                .body(Vec::new())
                .unwrap()
        };
        let refused = client
            .request::<serde_json::Value>(write())
            .await
            .unwrap_err();
        assert!(
            matches!(&refused, kube::Error::Api(status) if status.code == 429),
            "{refused}"
        );
        while leadership.leads() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let refused = client
            .request::<serde_json::Value>(write())
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("not the leader"), "{refused}");
        assert_eq!(requests.load(Ordering::Relaxed), 1);
        let read = Request::get("/api/v1/namespaces/a/pods/b")
            .body(Vec::new())
            .unwrap();
        client.request::<serde_json::Value>(read).await.unwrap_err();
        assert_eq!(requests.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn requests_have_the_verbs_and_resources_of_rbac() {
        let ns = "/api/v1/namespaces/a/pods";
        let widgets = "/apis/example.org/v1/namespaces/a/widgets";
        for (method, path, query, verb, resource) in [
            (Method::GET, ns.to_owned(), "limit=50", "list", "pods"),
            (
                Method::GET,
                ns.to_owned(),
                "watch=true&resourceVersion=7",
                "watch",
                "pods",
            ),
            (Method::GET, format!("{ns}/b"), "", "get", "pods"),
            (
                Method::POST,
                ns.to_owned(),
                "fieldManager=a",
                "create",
                "pods",
            ),
            (
                Method::PATCH,
                format!("{ns}/b/resize"),
                "",
                "patch",
                "pods/resize",
            ),
            (Method::DELETE, format!("{ns}/b"), "", "delete", "pods"),
            (
                Method::PATCH,
                format!("{widgets}/b/status"),
                "",
                "patch",
                "widgets/status",
            ),
            (
                Method::PUT,
                "/apis/coordination.k8s.io/v1/namespaces/a/leases/b".to_owned(),
                "",
                "update",
                "leases",
            ),
            (
                Method::GET,
                "/api/v1/namespaces/a".to_owned(),
                "",
                "get",
                "namespaces",
            ),
            (Method::GET, "/version".to_owned(), "", "get", "other"),
        ] {
            assert_eq!(
                request_info(&method, &path, query),
                (verb, resource.to_owned()),
                "{method} {path}"
            );
        }
    }
}
