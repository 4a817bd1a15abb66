//! (client) No request is waited for without an end: the API server, or what stands before it, may take a connection and
//! never answer.
//!
//! | request | has to be answered within |
//! |---|---|
//! | a page of a list | [`Deadlines::list`], to its last byte |
//! | the beginning of a watch | [`Deadlines::answer`]; its events have kube's own time-out |
//! | any other | [`Deadlines::answer`], to its last byte |
//!
//! What was not answered may have been carried out.

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

/// How long an answer may take. A layer around the way to the API server.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// An answer that is no list. Default 30 s.
    pub answer: Duration,
    /// A page of a list. Default 70 s: the API server itself gives up after 60 s, and says so.
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

/// There was no answer in time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "no answer within {0:?}; the API server, or a load balancer before it, takes connections and says nothing"
)]
pub struct Unanswered(Duration);

impl<S> Layer<S> for Deadlines {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited {
            inner,
            deadlines: *self,
        }
    }
}

/// A way to the API server on which each answer has its deadline.
#[derive(Clone, Debug)]
pub struct Limited<S> {
    inner: S,
    deadlines: Deadlines,
}

/// What comes back.
pub type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

impl<S, B> Service<Request<Body>> for Limited<S>
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
                .unwrap_or_else(|_| Err(Unanswered(limit).into()))
        }
        .boxed()
    }
}
