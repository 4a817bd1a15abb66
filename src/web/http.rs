//! Routes and headers.

use crate::api::pool::{VmAssignment, VmAssignmentSpec, names};
use crate::api::runner::viewer::{self, Function};
use crate::k8s::registry::Stored;
use crate::settings::web::{CALLBACK, WebSettings};
use crate::web::logins::{Login, Rejected, places};
use crate::web::oidc::{self, Pending, Returned};
use crate::web::rights::{Action, Capability};
use crate::web::runner::End;
use crate::web::view::is_object_name;
use crate::web::viewer_file::{self, ViewerFile};
use crate::web::{Console, MANAGER, live, relay, runner};
use axum::extract::rejection::JsonRejection;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use axum_extra::extract::CookieJar;
use axum_extra::extract::cookie::{Cookie, PrivateCookieJar, SameSite};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::Status;
use memory_serve::CacheControl;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tower_http::csrf::{CsrfLayer, ProtectionError};
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::TimeoutLayer;
use tracing::subscriber::{NoSubscriber, with_default};

/// Browsers accept this cookie by HTTPS or from localhost only, and send it to this host only.
const COOKIE: &str = "__Host-vmop";

/// The cookie of a login by a provider that has begun.
const BEGUN: &str = "__Host-vmop-login";

/// Maximum length of the address of a page after a login.
const PAGE_MAX: usize = 1 << 10;

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
}

impl Problem {
    fn new(status: StatusCode, reason: &'static str) -> Self {
        Self {
            status,
            reason,
            message: None,
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
    let require_login = from_fn_with_state(console.clone(), require_login);
    let pages = memory_serve::load!()
        .cache_control(CacheControl::NoCache)
        .html_cache_control(CacheControl::NoCache);
    // It would log a line for each file.
    let pages = with_default(NoSubscriber::default(), || pages.into_router());
    let no_store = HeaderValue::from_static("no-store");
    let other_origin =
        |_: ProtectionError| Problem::new(StatusCode::FORBIDDEN, "OtherOrigin").into_response();
    let mut router = Router::new()
        .route("/api/v1/session", get(session))
        .route("/api/v1/active", post(active))
        .route("/api/v1/live", get(live))
        .route("/api/v1/vms/{name}/actions", post(act))
        .route("/api/v1/vms/{name}/screen", get(screen))
        .route("/api/v1/vms/{name}/serial", get(serial))
        .route("/api/v1/vms/{name}/viewer-file", post(viewer_file))
        .route(
            "/api/v1/pools/{name}/assignment",
            post(request_vm).delete(return_vm),
        )
        // The routes above need a login, which the layer adds to the request.
        .route_layer(require_login)
        .route("/api/v1/login", post(login).get(ways_to_log_in))
        .route("/api/v1/oidc/{name}", get(begin_by_provider))
        .route(CALLBACK, get(complete_by_provider))
        .route("/api/v1/logout", post(logout))
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
        ));
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        router = router.layer(SetResponseHeaderLayer::overriding(name, value));
    }
    router.with_state(console)
}

/// The routes of the probes, which have a port of their own: clients that use all connections of the console do not end it.
pub fn probes(console: Arc<Console>) -> Router {
    Router::new()
        .route("/livez", get(async || "ok"))
        .route("/readyz", get(readyz))
        .with_state(console)
}

async fn readyz(State(console): Shared) -> impl IntoResponse {
    if console.vms.is_ready() {
        (StatusCode::OK, "ok")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the console is not ready, because it has not received the first list of VMs",
        )
    }
}

async fn require_login(
    State(console): Shared,
    jar: CookieJar,
    mut request: Request,
    next: Next,
) -> Response {
    let login = jar
        .get(COOKIE)
        .and_then(|cookie| console.logins.find(cookie.value(), &console.settings()));
    let Some(login) = login else {
        return Problem::new(StatusCode::UNAUTHORIZED, "LoginNeeded").into_response();
    };
    request.extensions_mut().insert(login);
    next.run(request).await
}

/// The address of the client, for log lines and limits.
fn client(settings: &WebSettings, peer: SocketAddr, headers: &HeaderMap) -> IpAddr {
    let forwarded = headers.get_all("x-forwarded-for").iter();
    let forwarded: Vec<_> = forwarded.filter_map(|value| value.to_str().ok()).collect();
    settings.client(peer.ip(), &forwarded.join(","))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Session {
    user: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    full_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    namespace: String,
    capabilities: BTreeSet<Capability>,
}

impl Session {
    fn of(login: &Login, console: &Console) -> Json<Self> {
        let settings = console.settings();
        let user = settings.user(&login.user);
        let reported = login.full_name.as_deref().map(str::to_owned);
        Json(Self {
            user: login.user.as_ref().to_owned(),
            full_name: reported.or_else(|| user.and_then(|user| user.full_name.clone())),
            cluster: settings.cluster_name.clone(),
            namespace: console.namespace.clone(),
            capabilities: login.viewer(&settings).capabilities,
        })
    }
}

async fn session(State(console): Shared, Extension(login): Extension<Login>) -> Json<Session> {
    Session::of(&login, &console)
}

async fn active(State(console): Shared, Extension(login): Extension<Login>) -> StatusCode {
    console.logins.used(&login.id);
    StatusCode::NO_CONTENT
}

#[derive(Deserialize)]
struct Credentials {
    user: String,
    password: String,
}

async fn login(
    State(console): Shared,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    jar: CookieJar,
    credentials: Result<Json<Credentials>, JsonRejection>,
) -> Result<Response, Problem> {
    let Json(Credentials { user, password }) = credentials?;
    let settings = console.settings();
    let client = client(&settings, peer, &headers);
    let previous = jar.get(COOKIE).map(|cookie| cookie.value().to_owned());
    // A client that closes its connection does not prevent the log line.
    let checked = console.clone();
    let begun = tokio::spawn(async move {
        let (logins, settings) = (&checked.logins, &checked.settings);
        let previous = previous.as_deref();
        let begun = logins
            .begin(settings, &user, password, client, previous)
            .await;
        match &begun {
            Ok(login) => tracing::info!(user = &*login.user, %client, "login"),
            Err(rejected) if logins.is_logged(*rejected, client) => {
                // The name of a long request would fill the log.
                let user: String = user.chars().take(64).collect();
                tracing::warn!(user, %client, reason = ?rejected, "login rejected");
            }
            Err(_) => {}
        }
        begun
    });
    let login = match begun.await {
        Ok(Ok(login)) => login,
        Ok(Err(rejected)) => return Ok(rejection(rejected)),
        Err(_) => return Ok(rejection(Rejected::Busy)),
    };
    let session = Session::of(&login, &console);
    Ok((jar.add(cookie_of(&login)), session).into_response())
}

fn cookie_of(login: &Login) -> Cookie<'static> {
    let cookie = Cookie::build((COOKIE, login.id.as_ref().to_owned()));
    let cookie = cookie.path("/").secure(true).http_only(true);
    cookie.same_site(SameSite::Strict).build()
}

/// The ways to log in.
#[derive(Serialize)]
struct WaysToLogIn {
    /// Whether there are users with a password.
    password: bool,
    providers: Vec<ProviderButton>,
}

#[derive(Serialize)]
struct ProviderButton {
    name: String,
    title: String,
}

async fn ways_to_log_in(State(console): Shared) -> Json<WaysToLogIn> {
    let settings = console.settings();
    let providers = settings.providers().iter().map(|provider| ProviderButton {
        name: provider.name.clone(),
        title: provider.title().to_owned(),
    });
    Json(WaysToLogIn {
        password: !settings.users().is_empty(),
        providers: providers.collect(),
    })
}

#[derive(Deserialize)]
struct PageQuery {
    #[serde(default)]
    page: String,
}

/// Whether the browser may be sent to this page of the console.
fn is_own_page(page: &str) -> bool {
    let mut letters = page.chars();
    letters.next() == Some('/')
        && !matches!(letters.next(), Some('/' | '\\'))
        && page.len() <= PAGE_MAX
        && page.chars().all(|letter| letter.is_ascii_graphic())
}

/// Sends the browser to the provider. The cookie comes back with it.
async fn begin_by_provider(
    State(console): Shared,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Path(name): Path<String>,
    Query(PageQuery { page }): Query<PageQuery>,
    headers: HeaderMap,
    jar: CookieJar,
) -> Response {
    let settings = console.settings();
    let client = client(&settings, peer, &headers);
    let site = headers.get("sec-fetch-site");
    if site.is_some_and(|site| site != "same-origin" && site != "none") {
        return Problem::new(StatusCode::FORBIDDEN, "OtherOrigin").into_response();
    }
    // The browser shows the page of the console, and not an answer in JSON.
    let Some(provider) = settings.provider(&name) else {
        return Redirect::to("/?login=ProviderFailed").into_response();
    };
    if console.logins.limit_provider(client).is_err() {
        return Redirect::to("/?login=TooManyAttempts").into_response();
    }
    let page = if is_own_page(&page) {
        page
    } else {
        "/".to_owned()
    };
    let language = headers.get(header::ACCEPT_LANGUAGE);
    let language = language.and_then(|value| value.to_str().ok()?.split([',', ';']).next());
    let previous = jar.get(COOKIE).map(|cookie| cookie.value().to_owned());
    let begun = async {
        let _permit = console.provider_permit()?;
        let authorities = console.authorities.clone();
        oidc::begin(&settings, provider, authorities, language, (previous, page)).await
    };
    match begun.await {
        Ok((url, pending)) => {
            // Plain data can always be serialized.
            let content = serde_json::to_string(&pending).unwrap_or_default();
            let cookie = begun_cookie(content);
            let jar = PrivateCookieJar::from_headers(&headers, console.cookie_key.clone());
            (jar.add(cookie), Redirect::to(&url)).into_response()
        }
        Err(error) => {
            tracing::warn!(provider = name, %client, %error, "cannot begin a login");
            Redirect::to(&format!("/?login={}", error.code())).into_response()
        }
    }
}

/// The cookie of a login that has begun. Browsers send it with the navigation from the page of the provider.
fn begun_cookie(content: String) -> Cookie<'static> {
    let cookie = Cookie::build((BEGUN, content));
    let cookie = cookie.path("/").secure(true).http_only(true);
    cookie.same_site(SameSite::Lax).build()
}

/// Logs the user in that the provider has identified.
async fn complete_by_provider(
    State(console): Shared,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Query(returned): Query<Returned>,
    headers: HeaderMap,
    jar: CookieJar,
) -> Response {
    let client = client(&console.settings(), peer, &headers);
    let begun = PrivateCookieJar::from_headers(&headers, console.cookie_key.clone());
    let pending = begun.get(BEGUN);
    let pending = pending.and_then(|it| serde_json::from_str::<Pending>(it.value()).ok());
    let begun = begun.remove(begun_cookie(String::new()));
    if console.logins.limit_provider(client).is_err() {
        return (begun, Redirect::to("/?login=TooManyAttempts")).into_response();
    }
    let completed = async {
        let pending = pending.ok_or(oidc::Error::NotBegun)?;
        let (previous, page) = (pending.previous.clone(), pending.page.clone());
        let settings = console.settings();
        let provider = settings.provider(&pending.provider);
        let provider = provider.ok_or(oidc::Error::NotBegun)?;
        let _permit = console.provider_permit()?;
        let authorities = console.authorities.clone();
        let identity = oidc::complete(&settings, provider, authorities, pending, returned).await?;
        let logins = &console.logins;
        let login = logins.begin_by_provider(
            &console.settings(),
            identity,
            provider.clone(),
            previous.as_deref(),
        );
        Ok::<_, oidc::Error>((login, page))
    };
    match completed.await {
        Ok((login, page)) => {
            let settings = console.settings();
            let viewer = login.viewer(&settings);
            tracing::info!(user = viewer.user(), %client, roles = ?viewer.roles(), "login by a provider");
            (begun, jar.add(cookie_of(&login)), Redirect::to(&page)).into_response()
        }
        Err(error) => {
            tracing::warn!(%client, %error, "login by a provider rejected");
            let to = format!("/?login={}", error.code());
            (begun, Redirect::to(&to)).into_response()
        }
    }
}

fn rejection(rejected: Rejected) -> Response {
    match rejected {
        Rejected::Wrong => Problem::new(StatusCode::UNAUTHORIZED, "LoginRejected").into_response(),
        Rejected::Busy => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Busy").into_response(),
        Rejected::Limited(wait) => {
            let seconds = wait.as_secs() + 1;
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "TooManyAttempts");
            ([(header::RETRY_AFTER, seconds)], problem).into_response()
        }
    }
}

async fn logout(
    State(console): Shared,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    jar: CookieJar,
) -> impl IntoResponse {
    let login = jar
        .get(COOKIE)
        .and_then(|cookie| console.logins.end(cookie.value()));
    if let Some(login) = login {
        let client = client(&console.settings(), peer, &headers);
        tracing::info!(user = &*login.user, %client, "logout");
    }
    let cookie = Cookie::build(COOKIE).path("/").secure(true);
    (jar.remove(cookie), StatusCode::NO_CONTENT)
}

/// Whether the page of this console sends the request. Browsers send one of these headers with each WebSocket, and no page can
/// change them. A proxy may change `Host`, so `Sec-Fetch-Site` comes first.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(site) = text(HeaderName::from_static("sec-fetch-site")) {
        return site == "same-origin";
    }
    let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("://"));
    origin.is_some_and(|(_, authority)| Some(authority) == text(header::HOST))
}

/// The WebSocket of a page.
fn socket(
    headers: &HeaderMap,
    upgrade: Upgrade,
    (message_max, unsent_max): (usize, usize),
) -> Result<WebSocketUpgrade, Problem> {
    if !is_same_origin(headers) {
        return Err(Problem::new(StatusCode::FORBIDDEN, "OtherOrigin"));
    }
    let upgrade = upgrade?
        .read_buffer_size(READ_BUFFER)
        .max_write_buffer_size(unsent_max);
    Ok(upgrade
        .max_message_size(message_max)
        .max_frame_size(message_max))
}

async fn live(
    State(console): Shared,
    Extension(login): Extension<Login>,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let upgrade = socket(&headers, upgrade, (MESSAGE_MAX, UNSENT_MAX))?;
    let busy = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Busy");
    let places = places(&console.live, &login.live).ok_or_else(busy)?;
    Ok(upgrade.on_upgrade(move |socket| live::run(socket, console, login, places)))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScreenQuery {
    #[serde(default)]
    take_over: bool,
}

/// A request for a console of a VM.
struct ConsoleRequest {
    console: Arc<Console>,
    login: Login,
    vm: String,
    client: IpAddr,
    headers: HeaderMap,
}

impl FromRequestParts<Arc<Console>> for ConsoleRequest {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        console: &Arc<Console>,
    ) -> Result<Self, Problem> {
        let missing = || Problem::new(StatusCode::NOT_FOUND, "NotFound");
        let login = parts.extensions.get::<Login>().cloned();
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().copied();
        let (login, ConnectInfo(peer)) = login.zip(peer).ok_or_else(missing)?;
        let Path(vm) = Path::from_request_parts(parts, console)
            .await
            .map_err(|_| missing())?;
        Ok(Self {
            console: console.clone(),
            login,
            vm,
            client: client(&console.settings(), peer, &parts.headers),
            headers: parts.headers.clone(),
        })
    }
}

type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

async fn screen(
    Query(ScreenQuery { take_over }): Query<ScreenQuery>,
    request: ConsoleRequest,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    relayed(request, Function::Screen, take_over, upgrade)
}

async fn serial(request: ConsoleRequest, upgrade: Upgrade) -> Result<Response, Problem> {
    relayed(request, Function::Serial, false, upgrade)
}

fn relayed(
    request: ConsoleRequest,
    function: Function,
    take_over: bool,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let ConsoleRequest {
        console,
        login,
        vm,
        client,
        headers,
    } = request;
    let limits = (runner::MESSAGE_MAX, runner::UNSENT_MAX);
    let upgrade = socket(&headers, upgrade, limits)?;
    let requested = relay::Requested {
        vm,
        function,
        take_over,
        client,
    };
    Ok(upgrade.on_upgrade(move |socket| relay::run(socket, console, login, requested)))
}

/// A password of the display, and the file for a SPICE viewer. Nothing of it is stored.
async fn viewer_file(request: ConsoleRequest) -> Response {
    let ConsoleRequest {
        console,
        login,
        vm,
        client,
        ..
    } = request;
    let user = login.user.clone();
    // A client that closes its connection does not prevent the log line.
    let created = tokio::spawn(async move {
        let created = create_viewer_file(&console, &login, &vm, client).await;
        let end = created.as_ref().err();
        tracing::info!(user = &*user, %client, vm, ?end, "file for a SPICE viewer");
        created
    });
    match created.await {
        Ok(Ok(file)) => Json(file).into_response(),
        Ok(Err(end)) => (end.status(), Json(end)).into_response(),
        Err(_) => Problem::new(StatusCode::BAD_GATEWAY, "ApiServer").into_response(),
    }
}

async fn create_viewer_file(
    console: &Console,
    login: &Login,
    name: &str,
    client: IpAddr,
) -> Result<ViewerFile, End> {
    let settings = console.settings();
    let (vm, may_take) = runner::permitted(console, login, name, Function::Display).await?;
    let pod = runner::pod_of(console, &vm).await?;
    let pod_uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let request = viewer::Request {
        valid_seconds: settings.password_validity(),
        ..viewer::Request::new(pod_uid, Function::Display, &login.user, client)
    };
    let answer = runner::open(console, &vm, &pod, &request).await?.1;
    let viewer::Answer::Display(display) = answer else {
        return Err(End::by_runner(answer, may_take));
    };
    let addresses: Vec<_> = runner::addresses_of(&pod).collect();
    let port = runner::port_of(&pod, "spice").ok_or(End::NoDisplay)?;
    let options = settings.viewer_files();
    let spice = vm.spec.vm.display.spice.unwrap_or_default();
    viewer_file::create(&spice, (&addresses, port), display, options).ok_or(End::NoDisplay)
}

/// A request about a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PoolAction {
    /// Requests a VM. A second request changes nothing.
    Request,
    /// Gives the VM back, or withdraws the request for one.
    Return,
}

async fn request_vm(
    state: Shared,
    login: Extension<Login>,
    peer: ConnectInfo<SocketAddr>,
    pool: Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    act_on_pool(PoolAction::Request, state, login, peer, pool, headers).await
}

async fn return_vm(
    state: Shared,
    login: Extension<Login>,
    peer: ConnectInfo<SocketAddr>,
    pool: Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    act_on_pool(PoolAction::Return, state, login, peer, pool, headers).await
}

async fn act_on_pool(
    action: PoolAction,
    State(console): Shared,
    Extension(login): Extension<Login>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Path(pool): Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let client = client(&console.settings(), peer, &headers);
    // A client that closes its connection does not prevent the log line.
    let done = tokio::spawn(async move {
        let user = &*login.user;
        let done = change_assignment(&console, &login, &pool, action).await;
        match &done {
            Ok(()) => tracing::info!(user, %client, ?action, pool, "action"),
            Err(Failed { problem, error }) => {
                tracing::warn!(user, %client, ?action, pool, reason = problem.reason, error, "action rejected");
            }
        }
        done
    });
    match done.await {
        Ok(Ok(())) => Ok(StatusCode::NO_CONTENT),
        Ok(Err(failed)) => Err(failed.problem),
        Err(_) => Err(Problem::new(StatusCode::BAD_GATEWAY, "ApiServer")),
    }
}

/// Creates or deletes the assignment of the user. Its name is that of user and pool, so it is no other user's.
async fn change_assignment(
    console: &Console,
    login: &Login,
    pool: &str,
    action: PoolAction,
) -> Result<(), Failed> {
    let not_found = || Problem::new(StatusCode::NOT_FOUND, "NotFound");
    if !is_object_name(pool) {
        return Err(not_found().into());
    }
    let (settings, user) = (console.settings(), login.user.as_ref().to_owned());
    let client = console.cluster.client.clone();
    let assignments: Api<VmAssignment> = Api::namespaced(client, &console.namespace);
    let name = names::assignment(pool, &user);
    if action == PoolAction::Return {
        return match assignments.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            deleted => deleted.map(drop).map_err(|error| failed(&error)),
        };
    }
    let present = console
        .pool_now(pool)
        .await
        .map_err(|error| failed(&error))?;
    let present = present.ok_or_else(not_found)?;
    if !present.may_request(&login.viewer(&settings)) {
        return Err(not_found().into());
    }
    let pool = pool.to_owned();
    let assignment = VmAssignment::new(&name, VmAssignmentSpec { pool, user });
    match assignments
        .create(&PostParams::default(), &assignment)
        .await
    {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let present = assignments.get_opt(&name).await;
            let present = present.map_err(|error| failed(&error))?;
            let is_ending = present.is_none_or(|it| it.metadata.deletion_timestamp.is_some());
            let ending = || Problem::new(StatusCode::CONFLICT, "Conflict").into();
            (!is_ending).then_some(()).ok_or_else(ending)
        }
        created => created.map(drop).map_err(|error| failed(&error)),
    }
}

#[derive(Deserialize)]
struct Requested {
    #[serde(rename = "do")]
    action: Action,
}

async fn act(
    State(console): Shared,
    Extension(login): Extension<Login>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Path(name): Path<String>,
    headers: HeaderMap,
    requested: Result<Json<Requested>, JsonRejection>,
) -> Result<StatusCode, Problem> {
    let Json(Requested { action }) = requested?;
    let client = client(&console.settings(), peer, &headers);
    // A client that closes its connection does not prevent the log line.
    let done = tokio::spawn(async move {
        let (user, verb) = (&*login.user, action.verb());
        let done = request_change(&console, &login, &name, action).await;
        match &done {
            Ok(()) => tracing::info!(user, %client, action = verb, vm = name, "action"),
            Err(Failed { problem, error }) => {
                tracing::warn!(user, %client, action = verb, vm = name, reason = problem.reason, error, "action rejected");
            }
        }
        done
    });
    match done.await {
        Ok(Ok(())) => Ok(StatusCode::NO_CONTENT),
        Ok(Err(failed)) => Err(failed.problem),
        Err(_) => Err(Problem::new(StatusCode::BAD_GATEWAY, "ApiServer")),
    }
}

/// A request to the API server that has failed.
struct Failed {
    problem: Problem,
    /// The error, for the log only: it may name addresses, or fields of a VM on which the user has no right.
    error: Option<String>,
}

impl From<Problem> for Failed {
    fn from(problem: Problem) -> Self {
        Self {
            problem,
            error: None,
        }
    }
}

/// Writes the change of the VM. The rights are those of the present object.
async fn request_change(
    console: &Console,
    login: &Login,
    name: &str,
    action: Action,
) -> Result<(), Failed> {
    let not_found = || Problem::new(StatusCode::NOT_FOUND, "NotFound");
    let vms = console.api();
    // The name becomes a part of a path.
    if !is_object_name(name) {
        return Err(not_found().into());
    }
    let vm = vms.get_opt(name).await.map_err(|error| failed(&error))?;
    let vm = vm.ok_or_else(not_found)?;
    let settings = console.settings();
    let pool = console.held_now(&vm, &login.user).await;
    let rights = vm.rights(&login.viewer(&settings), pool.as_ref());
    let rights = rights.ok_or_else(not_found)?;
    if !rights.include(action.needs()) {
        return Err(Problem::new(StatusCode::FORBIDDEN, "NotPermitted").into());
    }
    // With another UID, the API server rejects the patch: the rights are not those of a new VM of the same name.
    let change = action.change(vm.spec.vm.reset_request);
    let patch = json!({"metadata": {"uid": vm.metadata.uid}, "spec": {"vm": change}});
    let params = PatchParams::apply(MANAGER.field_manager);
    let written = vms
        .patch_metadata(name, &params, &Patch::Merge(patch))
        .await;
    written.map(drop).map_err(|error| {
        let mut failed = failed(&error);
        if let kube::Error::Api(status) = &error {
            failed.problem.message = Some(status.message.clone());
        }
        failed
    })
}

fn failed(error: &kube::Error) -> Failed {
    let problem = match error {
        kube::Error::Api(status) if status.code == 404 => {
            Problem::new(StatusCode::NOT_FOUND, "NotFound")
        }
        kube::Error::Api(status) if status.code == 409 || has_other_uid(status) => {
            Problem::new(StatusCode::CONFLICT, "Conflict")
        }
        _ => Problem::new(StatusCode::BAD_GATEWAY, "ApiServer"),
    };
    Failed {
        problem,
        error: Some(error.to_string()),
    }
}

/// Whether the VM was created again.
fn has_other_uid(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes
        .into_iter()
        .any(|cause| cause.field == "metadata.uid")
}
