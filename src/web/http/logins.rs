//! Sessions, logins and logouts.

use crate::web::http::{COOKIE, Cookies, Problem, Shared, client};
use crate::web::logins::{Claims, Login, Rejected};
use crate::web::metrics::DONE;
use crate::web::oidc::{self, Pending, Returned};
use crate::web::rights::Capability;
use crate::web::{Console, keys};
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::{Extension, Json};
use axum_extra::extract::cookie::{Cookie, SameSite};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// The cookie of a login by a provider that has begun.
const BEGUN: &str = "__Host-vmop-login";

/// The code of the page for a logout that is not stored.
const LOGOUT_FAILED: &str = "ApiServer";

/// Maximum length of the address of a page after a login.
const PAGE_MAX: usize = 1 << 10;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Session {
    user: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    full_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    namespace: String,
    capabilities: BTreeSet<Capability>,
    /// The first page.
    start: Capability,
}

impl Session {
    fn of(login: &Login, console: &Console) -> Json<Self> {
        let settings = console.settings();
        let user = settings.user(&login.user);
        let reported = login.full_name.as_deref().map(str::to_owned);
        let viewer = login.viewer(&settings);
        Json(Self {
            user: login.user.as_ref().to_owned(),
            full_name: reported.or_else(|| user.and_then(|user| user.full_name.clone())),
            cluster: settings.cluster_name.clone(),
            namespace: console.namespace.clone(),
            start: viewer.start(),
            capabilities: viewer.capabilities,
        })
    }
}

pub(super) async fn session(
    State(console): Shared,
    Extension(login): Extension<Login>,
) -> Json<Session> {
    Session::of(&login, &console)
}

pub(super) async fn active(
    State(console): Shared,
    Extension(login): Extension<Login>,
    Cookies(jar): Cookies,
) -> impl IntoResponse {
    let claims = console.logins.used(&login.id, console.now());
    let jar = claims.map_or(jar.clone(), |claims| jar.add(cookie_of(&claims)));
    (jar, StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
pub(super) struct Credentials {
    user: String,
    password: String,
}

pub(super) async fn login(
    State(console): Shared,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    cookies: Cookies,
    credentials: Result<Json<Credentials>, JsonRejection>,
) -> Result<Response, Problem> {
    let Json(Credentials { user, password }) = credentials?;
    let client = client(&console.settings(), peer, &headers);
    let previous = cookies.login(&console).map(|login| login.id);
    // A client that closes its connection does not prevent the log line.
    let checked = console.clone();
    let begun = tokio::spawn(async move {
        let (logins, now) = (&checked.logins, checked.now());
        let settings = &checked.settings;
        let begun = logins.begin(settings, &user, password, client, now).await;
        let begun = match begun {
            Ok(claims) if has_ended(&checked, previous.as_deref()).await => Ok(claims),
            Ok(_) => {
                checked.metrics.login(LOGOUT_FAILED);
                return Err(Problem::new(StatusCode::BAD_GATEWAY, LOGOUT_FAILED).into_response());
            }
            Err(rejected) => Err(rejected),
        };
        checked
            .metrics
            .login(begun.as_ref().err().map_or(DONE, reason));
        match &begun {
            Ok(_) => tracing::info!(user, %client, "login"),
            Err(rejected) if logins.is_logged(*rejected, client) => {
                // The name of a long request would fill the log.
                let user: String = user.chars().take(64).collect();
                tracing::warn!(user, %client, reason = %rejected, "login rejected");
            }
            Err(_) => {}
        }
        begun.map_err(rejection)
    });
    let claims = match begun.await {
        Ok(Ok(claims)) => claims,
        Ok(Err(response)) => return Ok(response),
        Err(_) => return Ok(rejection(Rejected::Busy)),
    };
    let cookie = cookie_of(&claims);
    let login = console
        .logins
        .find(claims, &console.settings(), console.now());
    let Some(login) = login else {
        // The password has just changed.
        return Ok(rejection(Rejected::Wrong));
    };
    let session = Session::of(&login, &console);
    Ok((cookies.0.add(cookie), session).into_response())
}

/// Ends the previous login of a browser, if there is one. Returns whether it has ended at all replicas.
async fn has_ended(console: &Console, previous: Option<&str>) -> bool {
    let Some(id) = previous else { return true };
    let ended = keys::end_login(console, id).await;
    ended
        .inspect_err(|error| tracing::warn!("a login cannot be ended: {error}"))
        .is_ok()
}

fn cookie_of(claims: &Claims) -> Cookie<'static> {
    let cookie = Cookie::build((COOKIE, claims.to_json()));
    let cookie = cookie.path("/").secure(true).http_only(true);
    cookie.same_site(SameSite::Strict).build()
}

/// The ways to log in.
#[derive(Serialize)]
pub(super) struct WaysToLogIn {
    /// Whether there are users with a password.
    password: bool,
    providers: Vec<ProviderButton>,
}

#[derive(Serialize)]
pub(super) struct ProviderButton {
    name: String,
    title: String,
}

pub(super) async fn ways_to_log_in(State(console): Shared) -> Json<WaysToLogIn> {
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
pub(super) struct PageQuery {
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
pub(super) async fn begin_by_provider(
    State(console): Shared,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Path(name): Path<String>,
    Query(PageQuery { page }): Query<PageQuery>,
    headers: HeaderMap,
    cookies: Cookies,
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
    let previous = cookies.login(&console);
    let previous = previous.map(|login| login.id.as_ref().to_owned());
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
            (cookies.0.add(cookie), Redirect::to(&url)).into_response()
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
pub(super) async fn complete_by_provider(
    State(console): Shared,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Query(returned): Query<Returned>,
    headers: HeaderMap,
    Cookies(jar): Cookies,
) -> Response {
    let client = client(&console.settings(), peer, &headers);
    let pending = jar.get(BEGUN);
    let pending = pending.and_then(|it| serde_json::from_str::<Pending>(it.value()).ok());
    let jar = jar.remove(begun_cookie(String::new()));
    if console.logins.limit_provider(client).is_err() {
        return (jar, Redirect::to("/?login=TooManyAttempts")).into_response();
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
        let claims = Claims::by_provider(identity, provider, console.now());
        let claims = claims.ok_or(oidc::Error::TooManyRoles)?;
        let limited = console.logins.limit_user(claims.user());
        limited.map_err(|_| oidc::Error::TooManyLogins(claims.user().to_owned()))?;
        if !has_ended(&console, previous.as_deref()).await {
            return Err(oidc::Error::NotEnded);
        }
        let cookie = cookie_of(&claims);
        let login = console
            .logins
            .find(claims, &console.settings(), console.now());
        let login = login.ok_or(oidc::Error::NotBegun)?;
        Ok((login, cookie, page))
    };
    let completed = completed.await;
    let result = completed.as_ref().err();
    let result = result.map_or(DONE, oidc::Error::code);
    console.metrics.login(result);
    match completed {
        Ok((login, cookie, page)) => {
            let settings = console.settings();
            let viewer = login.viewer(&settings);
            let roles: Vec<&str> = viewer.roles().iter().copied().collect();
            tracing::info!(user = viewer.user(), %client, roles = roles.join(", "), "login by a provider");
            (jar.add(cookie), Redirect::to(&page)).into_response()
        }
        Err(error) => {
            tracing::warn!(%client, %error, "login by a provider rejected");
            let to = format!("/?login={}", error.code());
            (jar, Redirect::to(&to)).into_response()
        }
    }
}

/// The reason as the page gets it.
fn reason(rejected: &Rejected) -> &'static str {
    match rejected {
        Rejected::Wrong => "LoginRejected",
        Rejected::Busy => "Busy",
        Rejected::Limited(_) => "TooManyAttempts",
    }
}

fn rejection(rejected: Rejected) -> Response {
    let problem = |status| Problem::new(status, reason(&rejected));
    match rejected {
        Rejected::Wrong => problem(StatusCode::UNAUTHORIZED).into_response(),
        Rejected::Busy => problem(StatusCode::SERVICE_UNAVAILABLE).into_response(),
        Rejected::Limited(wait) => {
            let seconds = wait.as_secs() + 1;
            let problem = problem(StatusCode::TOO_MANY_REQUESTS);
            ([(header::RETRY_AFTER, seconds)], problem).into_response()
        }
    }
}

/// Ends the login of the cookie at all replicas. This replica may reject the cookie, because it does not know a new password yet.
pub(super) async fn logout(
    State(console): Shared,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    cookies: Cookies,
) -> Result<impl IntoResponse, Problem> {
    let client = client(&console.settings(), peer, &headers);
    let claims = cookies.claims().filter(|claims| {
        claims.is_open(console.now()) && !console.logins.is_logged_out(&claims.id)
    });
    if let Some(claims) = claims {
        // A client that closes its connection does not prevent the logout.
        let ended = tokio::spawn(async move {
            let has_ended = has_ended(&console, Some(&claims.id)).await;
            if has_ended {
                tracing::info!(user = claims.user(), %client, "logout");
            }
            has_ended
        });
        if !ended.await.unwrap_or(false) {
            return Err(Problem::new(StatusCode::BAD_GATEWAY, LOGOUT_FAILED));
        }
    }
    let cookie = Cookie::build(COOKIE).path("/").secure(true);
    Ok((cookies.0.remove(cookie), StatusCode::NO_CONTENT))
}
