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
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::client::Body;
use kube::{Client, Config};
use std::sync::Arc;
use std::task::{Context, Poll};
use tower::{BoxError, Layer, Service};

/// A write of an operator without leadership. It was not sent.
#[derive(Debug, thiserror::Error)]
#[error("this operator is not the leader, so it must not write to the API server")]
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

/// A layer that rejects writes of an operator without leadership, and counts requests by the code of their response.
pub fn layer(metrics: Arc<Metrics>, leadership: Leadership) -> Gate {
    Gate {
        metrics,
        leadership,
    }
}

/// The layer of [`layer`].
#[derive(Clone)]
pub struct Gate {
    metrics: Arc<Metrics>,
    leadership: Leadership,
}

impl<S> Layer<S> for Gate {
    type Service = GateService<S>;

    fn layer(&self, inner: S) -> GateService<S> {
        let gate = self.clone();
        GateService { inner, gate }
    }
}

/// A service behind the gate.
#[derive(Clone)]
pub struct GateService<S> {
    inner: S,
    gate: Gate,
}

impl<S, B> Service<Request<Body>> for GateService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if is_write(request.method()) && !self.gate.leadership.leads() {
            return async { Err(NotLeading.into()) }.boxed();
        }
        let (method, uri) = (request.method(), request.uri());
        let query = uri.query().unwrap_or_default();
        let (verb, resource) = request_info(method, uri.path(), query);
        let metrics = self.gate.metrics.clone();
        let answer = self.inner.call(request);
        answer
            .map(move |answer| {
                let code = answer.as_ref().map(|answer| answer.status());
                let code = code.as_ref().map_or("error", |code| code.as_str());
                metrics.requested(verb, &resource, code);
                answer.map_err(Into::into)
            })
            .boxed()
    }
}

fn is_write(method: &Method) -> bool {
    method != Method::GET && method != Method::HEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;
    use axum::response::IntoResponse;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    /// An overloaded server, its request count, and its client.
    async fn overloaded(
        leadership: Leadership,
        metrics: Arc<Metrics>,
    ) -> (Arc<AtomicUsize>, Client) {
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
        let client = client(Config::new(url), metrics, leadership, Deadlines::default());
        (requests, client.unwrap())
    }

    #[tokio::test]
    async fn a_write_that_was_put_off_is_not_sent_again_when_the_lead_has_ended() {
        let leadership = Leadership::leading_for(Duration::from_millis(800));
        let metrics = Arc::<Metrics>::default();
        let (requests, client) = overloaded(leadership.clone(), metrics.clone()).await;
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
        let text = metrics.text();
        let counted = |verb: &str| {
            let labels = format!(r#"{{verb="{verb}",resource="pods",code="429"}} 1"#);
            text.contains(&format!("vm_operator_api_requests_total{labels}"))
        };
        assert!(counted("patch") && counted("get"), "{text}");
    }

    #[tokio::test]
    async fn request_without_a_response_is_counted_as_an_error() {
        let metrics = Arc::<Metrics>::default();
        let closed = tower::service_fn(async |_: Request<Body>| {
            Err::<Response<Body>, _>(std::io::Error::other("closed"))
        });
        let mut service = layer(metrics.clone(), Leadership::alone()).layer(closed);
        let request = Request::get("/version").body(Body::empty()).unwrap();
        service.call(request).await.unwrap_err();
        let line = r#"vm_operator_api_requests_total{verb="get",resource="other",code="error"} 1"#;
        assert!(metrics.text().contains(line), "{}", metrics.text());
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
