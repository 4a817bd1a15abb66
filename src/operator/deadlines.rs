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

use super::access::what;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::response::Parts;
use http::{Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use kube::client::Body;
use kube::core::Status;
use kube::core::response::StatusDetails;
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
        Self { answer: Duration::from_secs(30), list: Duration::from_secs(70) }
    }
}

/// There was no answer in time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no answer within {0:?}; the API server, or a load balancer before it, takes connections and says nothing")]
pub struct Unanswered(Duration);

impl<S> Layer<S> for Deadlines {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, deadlines: *self }
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
        let (verb, _) = what(request.method(), uri.path(), uri.query().unwrap_or_default());
        let limit = if verb == "list" { self.deadlines.list } else { self.deadlines.answer };
        let answer = self.inner.call(request);
        let whole = async move {
            let (parts, body) = answer.await.map_err(Into::into)?.into_parts();
            let body = if verb == "watch" && parts.status.is_success() {
                body.map_err(Into::into).boxed_unsync()
            } else {
                let bytes = body.collect().await.map_err(Into::into)?.to_bytes();
                Full::new(with_pause(&parts, bytes)).map_err(|never| match never {}).boxed_unsync()
            };
            Ok(Response::from_parts(parts, body))
        };
        async move { tokio::time::timeout(limit, whole).await.unwrap_or_else(|_| Err(Unanswered(limit).into())) }
            .boxed()
    }
}

/// The body of an answer. A server that is too busy often says in the header alone when to ask again; errors are made of
/// the body, so that it is put there.
fn with_pause(parts: &Parts, body: Bytes) -> Bytes {
    let is_busy = parts.status == StatusCode::TOO_MANY_REQUESTS || parts.status.is_server_error();
    let seconds = parts.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    if !is_busy {
        return body;
    }
    let mut status = serde_json::from_slice::<Status>(&body).unwrap_or_else(|_| {
        let (text, reason) = (String::from_utf8_lossy(&body), parts.status.canonical_reason().unwrap_or_default());
        Status::failure(text.trim(), reason).with_code(parts.status.as_u16())
    });
    // What a proxy answers may be JSON, but of another kind.
    if status.code == 0 {
        status.code = parts.status.as_u16();
    }
    if let Some(seconds) = seconds {
        let details = status.details.get_or_insert_with(no_details);
        if details.retry_after_seconds == 0 {
            details.retry_after_seconds = seconds;
        }
    }
    // Serializing plain data cannot fail.
    serde_json::to_vec(&status).map_or(body, Bytes::from)
}

fn no_details() -> StatusDetails {
    let (name, group, kind, uid) = Default::default();
    StatusDetails { name, group, kind, uid, causes: Vec::new(), retry_after_seconds: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(code: u16, retry_after: Option<&str>, body: &str) -> (u32, String) {
        let mut answer = Response::builder().status(code);
        if let Some(seconds) = retry_after {
            answer = answer.header(header::RETRY_AFTER, seconds);
        }
        let (parts, ()) = answer.body(()).unwrap().into_parts();
        let body = with_pause(&parts, Bytes::from(body.to_owned()));
        let status = serde_json::from_slice::<Status>(&body).unwrap_or_default();
        (status.details.map(|details| details.retry_after_seconds).unwrap_or_default(), status.message)
    }

    #[test]
    fn when_to_ask_again_is_read_from_the_header_where_the_body_does_not_say_it() {
        let plain = "Too many requests, please try again later.";
        assert_eq!(pause(429, Some("7"), &format!("{plain}\n")), (7, plain.to_owned()));
        let status = |details: &str| format!(r#"{{"code": 503, "message": "m", "reason": "r"{details}}}"#);
        assert_eq!(pause(503, Some("7"), &status("")), (7, "m".to_owned()));
        assert_eq!(pause(503, Some("7"), &status(r#", "details": {"retryAfterSeconds": 3}"#)), (3, "m".to_owned()));
        for retry_after in [None, Some("7")] {
            let answer = Response::builder().status(503).header("x", "y");
            let answer = retry_after.into_iter().fold(answer, |answer, s| answer.header(header::RETRY_AFTER, s));
            let (parts, ()) = answer.body(()).unwrap().into_parts();
            let body = with_pause(&parts, Bytes::from_static(br#"{"message": "a proxy's"}"#));
            let status: Status = serde_json::from_slice(&body).unwrap();
            let seconds = status.details.map(|details| details.retry_after_seconds);
            assert_eq!((status.code, status.message.as_str()), (503, "a proxy's"));
            assert_eq!(seconds, retry_after.map(|_| 7));
        }
        for (code, retry_after) in [(429, None), (429, Some("Wed, 21 Oct 2026 07:28:00 GMT")), (200, Some("7"))] {
            assert_eq!(pause(code, retry_after, &status("")).0, 0, "{code} {retry_after:?}");
        }
    }
}
