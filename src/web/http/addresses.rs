//! The address of the console in a request: `Host`, and `Origin` of WebSockets.

use crate::settings::web::WebSettings;
use crate::web::http::{Problem, Shared};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

const OTHER_HOST: &str =
    "the web console has other addresses; an administrator can add this one to publicAddresses";

/// Rejects requests to other hosts than those of `publicAddresses`.
pub(super) async fn require_host(State(console): Shared, request: Request, next: Next) -> Response {
    let host = text(request.headers(), header::HOST).unwrap_or_default();
    if console.settings().accepts_host(host) {
        return next.run(request).await;
    }
    let problem = Problem {
        message: Some(OTHER_HOST.to_owned()),
        ..Problem::new(StatusCode::MISDIRECTED_REQUEST, "OtherHost")
    };
    problem.into_response()
}

/// Whether the page of this console requests the WebSocket. Browsers send `Origin` with each, and no page can change it.
pub(super) fn is_same_origin(headers: &HeaderMap, settings: &WebSettings) -> bool {
    let site = text(headers, HeaderName::from_static("sec-fetch-site"));
    let origin = text(headers, header::ORIGIN).zip(text(headers, header::HOST));
    site.is_none_or(|site| site == "same-origin")
        && origin.is_some_and(|(origin, host)| settings.accepts_origin(origin, host))
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
