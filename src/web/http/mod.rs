//! Routes and headers.
//!
//! | module | content |
//! |---|---|
//! | `routes` | all routes, with their checks |
//! | `addresses` | the address of the console in requests |
//! | `probes` | probes and metrics |
//! | `logins` | sessions, logins and logouts |
//! | `actions` | changes of VMs and assignments |
//! | `details` | one VM |
//! | `overview` | totals of all VMs |
//! | `consoles` | screens, serial consoles and files for SPICE viewers |

mod actions;
mod addresses;
mod consoles;
mod details;
mod logins;
mod overview;
mod probes;
mod routes;

pub use probes::probes;

use crate::settings::web::WebSettings;
use crate::web::http::addresses::{is_same_origin, require_host};
use crate::web::logins::{Claims, Login, places};
use crate::web::size::Wrong;
use crate::web::{Console, live};
use axum::extract::rejection::JsonRejection;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, Router};
use axum_extra::extract::cookie::PrivateCookieJar;
use memory_serve::CacheControl;
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tower_http::csrf::{CsrfLayer, ProtectionError};
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::TimeoutLayer;
use tracing::subscriber::{NoSubscriber, with_default};

/// The cookie of a login. Browsers accept it by HTTPS or from localhost only, and send it to this host only.
const COOKIE: &str = "__Host-vmop";

/// Maximum size of a request's body.
const BODY_MAX: usize = 8 << 10;

/// Maximum size of a message from a page.
const MESSAGE_MAX: usize = 1 << 10;

/// Buffer of a connection for messages from a page, which sends almost none.
const READ_BUFFER: usize = 4 << 10;

/// Maximum size of a list that a page has not read yet, with answers to its pings.
const UNSENT_MAX: usize = 64 << 20;

/// Maximum time of a request, its body included. Requests to the API server have shorter time-outs of their own.
const REQUEST_MAX: Duration = Duration::from_secs(40);

const CONTENT_SECURITY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                                font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// An error as the page gets it: a code, which the page has words for.
#[derive(Serialize)]
struct Problem {
    #[serde(skip)]
    status: StatusCode,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// The field of the page with a wrong value, and its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<String>,
}

impl Problem {
    fn new(status: StatusCode, reason: &'static str) -> Self {
        Self {
            status,
            reason,
            message: None,
            field: None,
            limit: None,
        }
    }

    fn invalid(status: StatusCode, message: String) -> Self {
        Self {
            message: Some(message),
            ..Self::new(status, "InvalidRequest")
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, Json(self)).into_response()
    }
}

impl From<Wrong> for Problem {
    fn from(wrong: Wrong) -> Self {
        Self {
            field: Some(wrong.field),
            limit: wrong.limit,
            ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, wrong.reason)
        }
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        Self::invalid(rejection.status(), rejection.body_text())
    }
}

impl From<WebSocketUpgradeRejection> for Problem {
    fn from(rejection: WebSocketUpgradeRejection) -> Self {
        Self::invalid(rejection.status(), rejection.body_text())
    }
}

type Shared = State<Arc<Console>>;

/// All routes of the console.
pub fn router(console: Arc<Console>) -> Router {
    let pages = memory_serve::load!()
        .cache_control(CacheControl::NoCache)
        .html_cache_control(CacheControl::NoCache);
    // It would log a line for each file.
    let pages = with_default(NoSubscriber::default(), || pages.into_router());
    let no_store = HeaderValue::from_static("no-store");
    let other_origin =
        |_: ProtectionError| Problem::new(StatusCode::FORBIDDEN, "OtherOrigin").into_response();
    let mut router = routes::api(&console)
        .layer(SetResponseHeaderLayer::if_not_present(
            header::CACHE_CONTROL,
            no_store,
        ))
        .merge(pages)
        .layer(CsrfLayer::new().with_rejection_response(other_origin))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(TimeoutLayer::with_status_code(
            StatusCode::REQUEST_TIMEOUT,
            REQUEST_MAX,
        ))
        .layer(from_fn_with_state(console.clone(), require_host));
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        router = router.layer(SetResponseHeaderLayer::overriding(name, value));
    }
    router.with_state(console)
}

/// The encrypted cookies of a request.
struct Cookies(PrivateCookieJar);

impl Cookies {
    fn of(console: &Console, headers: &HeaderMap) -> Result<Self, Problem> {
        let keys = console.keys().ok_or_else(busy)?;
        Ok(Self(PrivateCookieJar::from_headers(headers, keys.cookies)))
    }

    /// The content of the cookie of a login, which may have ended.
    fn claims(&self) -> Option<Claims> {
        serde_json::from_str(self.0.get(COOKIE)?.value()).ok()
    }

    fn login(&self, console: &Console) -> Option<Login> {
        let settings = console.settings();
        console
            .logins
            .find(self.claims()?, &settings, console.now())
    }
}

impl FromRequestParts<Arc<Console>> for Cookies {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        console: &Arc<Console>,
    ) -> Result<Self, Problem> {
        Self::of(console, &parts.headers)
    }
}

/// The login of the request's cookie.
fn login_of(console: &Console, headers: &HeaderMap) -> Result<Login, Problem> {
    let login = Cookies::of(console, headers)?.login(console);
    login.ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, "LoginNeeded"))
}

/// The address of the client, for log lines and limits.
fn client(settings: &WebSettings, peer: SocketAddr, headers: &HeaderMap) -> IpAddr {
    let forwarded = headers.get_all("x-forwarded-for").iter();
    let forwarded: Vec<_> = forwarded.filter_map(|value| value.to_str().ok()).collect();
    settings.client(peer.ip(), &forwarded.join(","))
}

/// A request about the object whose name is in the path.
struct ObjectRequest {
    console: Arc<Console>,
    login: Login,
    name: String,
    client: IpAddr,
    headers: HeaderMap,
}

impl FromRequestParts<Arc<Console>> for ObjectRequest {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        console: &Arc<Console>,
    ) -> Result<Self, Problem> {
        let missing = || Problem::new(StatusCode::NOT_FOUND, "NotFound");
        let login = parts.extensions.get::<Login>().cloned();
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().copied();
        let (login, ConnectInfo(peer)) = login.zip(peer).ok_or_else(missing)?;
        let Path(name) = Path::from_request_parts(parts, console)
            .await
            .map_err(|_| missing())?;
        Ok(Self {
            console: console.clone(),
            login,
            name,
            client: client(&console.settings(), peer, &parts.headers),
            headers: parts.headers.clone(),
        })
    }
}

/// The WebSocket of a page.
fn socket(
    console: &Console,
    headers: &HeaderMap,
    upgrade: Upgrade,
    (message_max, unsent_max): (usize, usize),
) -> Result<WebSocketUpgrade, Problem> {
    if !is_same_origin(headers, &console.settings()) {
        return Err(Problem::new(StatusCode::FORBIDDEN, "OtherOrigin"));
    }
    let upgrade = upgrade?
        .read_buffer_size(READ_BUFFER)
        .max_write_buffer_size(unsent_max);
    Ok(upgrade
        .max_message_size(message_max)
        .max_frame_size(message_max))
}

fn busy() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Busy")
}

async fn live(
    State(console): Shared,
    Extension(login): Extension<Login>,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let upgrade = socket(&console, &headers, upgrade, (MESSAGE_MAX, UNSENT_MAX))?;
    let places = places(&console.live, &login.live).ok_or_else(busy)?;
    Ok(upgrade.on_upgrade(move |socket| live::run(socket, console, login, places)))
}

type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;
