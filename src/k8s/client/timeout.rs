//! (client) Time-outs of requests: the API server or a load balancer in front of it may accept a connection and never
//! respond.
//!
//! | request | time-out |
//! |---|---|
//! | a page of a list | [`Deadlines::list`], up to its last byte |
//! | the start of a watch | [`Deadlines::answer`]; its events have kube's own time-out |
//! | any other | [`Deadlines::answer`], up to its last byte |
//!
//! The API server may have carried out a request without a response.

use crate::k8s::client::request_info::request_info;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use kube::client::Body;
use std::task::{Context, Poll};
use std::time::Duration;
use tower::{BoxError, Layer, Service};

/// The time-outs of responses, as a layer of an API client.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// All requests except lists. Default 30 s.
    pub answer: Duration,
    /// A page of a list. Default 70 s, because the API server itself stops after 60 s and returns an error.
    pub list: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(30),
            list: Duration::from_secs(70),
        }
    }
}

/// The response did not arrive in time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "no answer within {0:?}; the API server, or a load balancer in front of it, accepts connections but does not answer"
)]
pub struct ResponseTimeout(Duration);

impl<S> Layer<S> for Deadlines {
    type Service = TimeoutService<S>;

    fn layer(&self, inner: S) -> TimeoutService<S> {
        TimeoutService {
            inner,
            deadlines: *self,
        }
    }
}

/// The service with a time-out for each response.
#[derive(Clone, Debug)]
pub struct TimeoutService<S> {
    inner: S,
    deadlines: Deadlines,
}

/// A response.
pub type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

impl<S, B> Service<Request<Body>> for TimeoutService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Answer;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Answer, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let uri = request.uri();
        let (verb, _) = request_info(
            request.method(),
            uri.path(),
            uri.query().unwrap_or_default(),
        );
        let limit = if verb == "list" {
            self.deadlines.list
        } else {
            self.deadlines.answer
        };
        let answer = self.inner.call(request);
        let whole = async move {
            let (parts, body) = answer.await.map_err(Into::into)?.into_parts();
            let body = if verb == "watch" && parts.status.is_success() {
                body.map_err(Into::into).boxed_unsync()
            } else {
                let bytes = body.collect().await.map_err(Into::into)?.to_bytes();
                Full::new(bytes)
                    .map_err(|never| match never {})
                    .boxed_unsync()
            };
            Ok(Response::from_parts(parts, body))
        };
        async move {
            tokio::time::timeout(limit, whole)
                .await
                .unwrap_or_else(|_| Err(ResponseTimeout(limit).into()))
        }
        .boxed()
    }
}
