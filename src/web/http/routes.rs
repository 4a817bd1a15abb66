//! All routes of the API, each with the check that it needs. The router makes the check before it calls the handler, so there is no
//! route without one. A test finds routes that are not in this table.

use crate::api::runner::viewer::Function;
use crate::settings::web::CALLBACK;
use crate::web::Console;
use crate::web::http::actions::{self, failed};
use crate::web::http::{Problem, client, consoles, details, live, login_of, logins, overview};
use crate::web::logins::Login;
use crate::web::rights::Capability;
use crate::web::view::is_object_name;
use axum::Router;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{ConnectInfo, RawPathParams, Request, State};
use axum::handler::Handler;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodRouter};
use std::net::SocketAddr;
use std::sync::Arc;

/// Characters of a name in log lines.
const LOGGED_NAME_MAX: usize = 64;

/// The check of a route. Without a login, all but public routes give 401. Without the right, they give 404.
#[derive(Clone, Copy, Debug)]
pub(super) enum Check {
    /// Everybody, for this reason.
    Public(#[allow(dead_code, reason = "for readers of the table")] &'static str),
    /// Each user.
    Login,
    /// Users with a role that permits the page.
    Page(Capability),
    /// Users who see the VM in the path. The handler checks the right of the action on the present VM.
    Vm,
    /// Users who see the pool in the path. The handler checks requests for a VM on the present pool.
    Pool,
    /// Users with the right on this function of the VM in the path. Browsers hide the response to a WebSocket's handshake from pages. So
    /// the check is after it, by `runner::permitted`, and the page gets the reason as a message.
    Console(Function),
}

/// A route.
pub(super) struct Route {
    method: Method,
    path: &'static str,
    check: Check,
    handler: MethodRouter<Arc<Console>>,
}

/// A route with a handler.
fn route<T: 'static>(
    method: Method,
    path: &'static str,
    check: Check,
    handler: impl Handler<T, Arc<Console>>,
) -> Route {
    let handler = match method {
        Method::POST => routing::post(handler),
        Method::PUT => routing::put(handler),
        Method::DELETE => routing::delete(handler),
        _ => routing::get(handler),
    };
    Route {
        method,
        path,
        check,
        handler,
    }
}

const GET: Method = Method::GET;
const POST: Method = Method::POST;
const PUT: Method = Method::PUT;
const DELETE: Method = Method::DELETE;

/// All routes.
#[rustfmt::skip]
fn table() -> Vec<Route> {
    let to_log_in = Check::Public("needed to log in");
    vec![
        route(GET, "/api/v1/login", to_log_in, logins::ways_to_log_in),
        route(POST, "/api/v1/login", to_log_in, logins::login),
        route(GET, "/api/v1/oidc/{name}", to_log_in, logins::begin_by_provider),
        route(GET, CALLBACK, to_log_in, logins::complete_by_provider),
        route(POST, "/api/v1/logout", Check::Public("removes the cookie of a login that has ended"), logins::logout),
        route(GET, "/api/v1/session", Check::Login, logins::session),
        route(POST, "/api/v1/active", Check::Login, logins::active),
        // The list has the VMs and pools that the user sees.
        route(GET, "/api/v1/live", Check::Login, live),
        route(GET, "/api/v1/history", Check::Page(Capability::Overview), overview::history),
        route(GET, "/api/v1/vms/{name}", Check::Vm, details::details),
        route(POST, "/api/v1/vms/{name}/actions", Check::Vm, actions::act),
        route(PUT, "/api/v1/vms/{name}/size", Check::Vm, actions::resize),
        route(GET, "/api/v1/vms/{name}/screen", Check::Console(Function::Screen), consoles::console),
        route(GET, "/api/v1/vms/{name}/serial", Check::Console(Function::Serial), consoles::console),
        route(POST, "/api/v1/vms/{name}/viewer-file", Check::Vm, consoles::viewer_file),
        route(POST, "/api/v1/pools/{name}/assignment", Check::Pool, actions::request_vm),
        route(DELETE, "/api/v1/pools/{name}/assignment", Check::Pool, actions::return_vm),
    ]
}

/// The router of all routes.
pub(super) fn api(console: &Arc<Console>) -> Router<Arc<Console>> {
    checked(table(), console)
}

fn checked(routes: Vec<Route>, console: &Arc<Console>) -> Router<Arc<Console>> {
    let add = |router: Router<_>, route: Route| {
        let guarded = Guarded {
            console: console.clone(),
            method: route.method,
            path: route.path,
            check: route.check,
        };
        let handler = route
            .handler
            .route_layer(from_fn_with_state(guarded, guard));
        router.route(route.path, handler)
    };
    routes.into_iter().fold(Router::new(), add)
}

#[derive(Clone)]
struct Guarded {
    console: Arc<Console>,
    method: Method,
    path: &'static str,
    check: Check,
}

/// Calls the handler with the login of the user, if the user passes the check.
async fn guard(
    State(Guarded {
        console,
        method,
        path,
        check,
    }): State<Guarded>,
    params: Result<RawPathParams, RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Check::Public(_) = check {
        return next.run(request).await;
    }
    let login = match login_of(&console, request.headers()) {
        Ok(login) => login,
        Err(problem) => return problem.into_response(),
    };
    let params = params.iter().flatten();
    let mut names = params.filter_map(|(key, value)| (key == "name").then_some(value));
    let name = names.next().unwrap_or_default();
    if let Err(problem) = permit(&console, &login, check, name).await {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let client = peer.map(|peer| client(&console.settings(), peer.0, request.headers()));
        let client = client.map(tracing::field::display);
        let name: String = name.chars().take(LOGGED_NAME_MAX).collect();
        let (user, method, reason) = (&*login.user, method.as_str(), problem.reason);
        tracing::warn!(user, client, method, path, name, reason, "request rejected");
        return problem.into_response();
    }
    if let Check::Console(function) = check {
        request.extensions_mut().insert(function);
    }
    request.extensions_mut().insert(login);
    next.run(request).await
}

async fn permit(console: &Console, login: &Login, check: Check, name: &str) -> Result<(), Problem> {
    let settings = console.settings();
    let viewer = login.viewer(&settings);
    let is_permitted = match check {
        Check::Public(_) | Check::Login | Check::Console(_) => true,
        Check::Page(page) => viewer.capabilities.contains(&page),
        // The name becomes a part of a path.
        Check::Vm | Check::Pool if !is_object_name(name) => false,
        // A new right can be at the API server, and not in the stored object yet.
        Check::Vm => {
            let stored = console.vms.get(&console.pools.key(name));
            let is_visible = stored.is_some_and(|vm| {
                let pool = console.pools.held(&vm, viewer.user());
                vm.rights(&viewer, pool.as_deref()).is_some()
            });
            is_visible || {
                let vm = console.api().get_opt(name).await;
                let vm = vm.map_err(|error| failed(&error).problem)?;
                match vm {
                    Some(vm) => {
                        let pool = console.held_now(&vm, viewer.user()).await;
                        vm.rights(&viewer, pool.as_ref()).is_some()
                    }
                    None => false,
                }
            }
        }
        Check::Pool => {
            console.pools.is_visible(name, &viewer) || {
                let pool = console.pool_now(name).await;
                let pool = pool.map_err(|error| failed(&error).problem)?;
                pool.is_some_and(|pool| pool.may_request(&viewer))
            }
        }
    };
    let not_found = || Problem::new(StatusCode::NOT_FOUND, "NotFound");
    is_permitted.then_some(()).ok_or_else(not_found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::cluster::Cluster;
    use crate::pinned_tls::KeyPair;
    use crate::web::MANAGER;
    use crate::web::keys::Keys;
    use crate::web::pools::PoolView;
    use crate::web::view::VmView;
    use axum::body::Body;
    use axum::http::header;
    use axum_extra::extract::cookie::Key;
    use futures::StreamExt;
    use hyper_util::rt::TokioIo;
    use hyper_util::service::TowerToHyperService;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};
    use std::fs;
    use std::path::{Path, PathBuf};
    use tokio::sync::watch;
    use tokio_tungstenite::client_async;
    use tokio_tungstenite::tungstenite::client::IntoClientRequest;
    use tower::ServiceExt;

    /// The hash of `secret`.
    const HASH: &str = "$2y$04$H3Klq0Jrf5swL7aAgAqSeOnsRcbsAepJMs8AWLGkpBMF5Zjr9KEFG";

    const PEER: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    /// A VM or a pool with a permission of one user.
    fn object(name: &str, user: &str) -> Value {
        let permissions = json!([{"user": user, "may": ["accessConsole"]}]);
        json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {"permissions": permissions}})
    }

    /// A console with `stored` and `new`, both a VM and a pool of bob. Only the API server has `new`. Carol sees all VMs.
    fn console(public_addresses: &Value) -> Arc<Console> {
        let answer = async |request: http::Request<kube::client::Body>| {
            let name = request.uri().path().rsplit('/').next().unwrap_or_default();
            let (code, body) = match name {
                "stored" | "new" => (200, object(name, "bob")),
                _ => (
                    404,
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "message": "", "code": 404}),
                ),
            };
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let answer = http::Response::builder().status(code).body(body);
            Ok::<_, std::convert::Infallible>(answer.unwrap())
        };
        let client = kube::Client::new(tower::service_fn(answer), "ns");
        let users = ["alice", "bob", "carol"].map(|name| json!({"name": name, "password": HASH}));
        let roles = json!({"*": ["user"], "carol": ["all"]});
        let pages = json!({"user": ["org.jdrupes.vmoperator.vmaccess.VmAccess"], "all": ["org.jdrupes.vmoperator.vmmgmt.VmMgmt"]});
        let settings = json!({"/LoginConlet": {"users": users}, "/RoleConfigurator": {"rolesByUser": roles}, "/RoleConletFilter": {"conletTypesByRole": pages}});
        let settings = json!({"/GuiHttpServer": {"publicAddresses": public_addresses, "/ConsoleWeblet": {"/WebConsole": settings}}});
        let settings = watch::channel(Arc::new(serde_json::from_value(settings).unwrap())).1;
        let cluster = Cluster::new(client, MANAGER);
        let console = Console::new(cluster, "ns".to_owned(), settings, Path::new("ca.crt"));
        let stored = object("stored", "bob");
        let vm: VmView = serde_json::from_value(stored.clone()).unwrap();
        let pool: PoolView = serde_json::from_value(stored).unwrap();
        let (runners, cookies) = (KeyPair::generate().unwrap(), Key::generate());
        console.keys.send_replace(Some(Keys { runners, cookies }));
        console.vms.watched(Event::Apply(vm));
        console.pools.pools.watched(Event::Apply(pool));
        console
    }

    fn request(method: &Method, path: &str, cookie: &str) -> Request {
        let request = Request::builder().method(method).uri(path);
        let request = request
            .header(header::HOST, "vms.example")
            .header(header::COOKIE, cookie)
            .header(header::CONTENT_TYPE, "application/json")
            .header("sec-fetch-site", "same-origin")
            .extension(ConnectInfo(PEER));
        request.body(Body::from("{}")).unwrap()
    }

    /// The cookie of a login.
    async fn login(console: &Arc<Console>, user: &str) -> String {
        let mut request = request(&POST, "/api/v1/login", "");
        let body = json!({"user": user, "password": "secret"}).to_string();
        *request.body_mut() = Body::from(body);
        let router = crate::web::router(console.clone());
        let answer = router.oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{user}");
        let cookie = answer.headers()[header::SET_COOKIE].to_str().unwrap();
        cookie.split(';').next().unwrap().to_owned()
    }

    /// The first message of a WebSocket.
    async fn first_message(console: &Arc<Console>, path: &str, cookie: &str) -> Value {
        let (client, server) = tokio::io::duplex(1 << 16);
        let router = crate::web::router(console.clone());
        let router = router.map_request(|mut request: hyper::Request<_>| {
            request.extensions_mut().insert(ConnectInfo(PEER));
            request
        });
        let http = hyper::server::conn::http1::Builder::new();
        let serving = http.serve_connection(TokioIo::new(server), TowerToHyperService::new(router));
        tokio::spawn(serving.with_upgrades());
        let address = format!("ws://vms.example{path}");
        let mut request = address.into_client_request().unwrap();
        let headers = request.headers_mut();
        headers.insert(header::COOKIE, cookie.parse().unwrap());
        headers.insert(header::ORIGIN, "https://vms.example".parse().unwrap());
        let (mut socket, _) = client_async(request, client).await.unwrap();
        let message = socket.next().await.unwrap().unwrap();
        serde_json::from_str(message.to_text().unwrap()).unwrap()
    }

    #[tokio::test]
    async fn each_route_needs_a_login_and_a_right_unless_it_is_public() {
        let console = console(&json!([]));
        let alice = login(&console, "alice").await;
        let mut public = Vec::new();
        for Route {
            method,
            path,
            check,
            ..
        } in table()
        {
            let path = path.replace("{name}", "stored");
            let status = async |cookie: &str| {
                let router = crate::web::router(console.clone());
                let answer = router.oneshot(request(&method, &path, cookie)).await;
                answer.unwrap().status()
            };
            if let Check::Public(reason) = check {
                assert!(!reason.is_empty(), "{path}");
                public.push(format!("{method} {path}"));
                continue;
            }
            assert_eq!(
                status("").await,
                StatusCode::UNAUTHORIZED,
                "{method} {path}"
            );
            match check {
                Check::Page(_) | Check::Vm | Check::Pool => {
                    assert_eq!(
                        status(&alice).await,
                        StatusCode::NOT_FOUND,
                        "{method} {path}"
                    );
                }
                Check::Console(_) => {
                    let message = first_message(&console, &path, &alice).await;
                    assert_eq!(message, json!({"reason": "NotFound"}), "{path}");
                }
                Check::Login | Check::Public(_) => {}
            }
        }
        // A new public route needs a change of this list.
        let expected = [
            "GET /api/v1/login",
            "POST /api/v1/login",
            "GET /api/v1/oidc/stored",
            "GET /oauth/callback",
            "POST /api/v1/logout",
        ];
        assert_eq!(public, expected);
    }

    #[tokio::test]
    async fn check_of_a_route_decides_before_its_handler() {
        let console = console(&json!([]));
        let mut cookies = vec![String::new()];
        for user in ["alice", "bob", "carol"] {
            cookies.push(login(&console, user).await);
        }
        // Without a login, and as alice, bob and carol.
        for (check, name, expected) in [
            (Check::Public("test"), "stored", [200, 200, 200, 200]),
            (Check::Login, "stored", [401, 200, 200, 200]),
            (
                Check::Page(Capability::Overview),
                "stored",
                [401, 404, 404, 200],
            ),
            (Check::Vm, "stored", [401, 404, 200, 200]),
            (Check::Vm, "new", [401, 404, 200, 200]),
            (Check::Vm, "missing", [401, 404, 404, 404]),
            (Check::Vm, "..%2Fnew", [401, 404, 404, 404]),
            (Check::Vm, "%ff", [401, 404, 404, 404]),
            (Check::Pool, "stored", [401, 404, 200, 404]),
            (Check::Pool, "new", [401, 404, 200, 404]),
            (Check::Pool, "missing", [401, 404, 404, 404]),
        ] {
            for (cookie, code) in cookies.iter().zip(expected) {
                let route = route(GET, "/test/{name}", check, async || "done");
                let router = checked(vec![route], &console).with_state(console.clone());
                let request = request(&GET, &format!("/test/{name}"), cookie);
                let answer = router.oneshot(request).await.unwrap();
                assert_eq!(answer.status(), code, "{check:?} {name} {cookie}");
            }
        }
    }

    #[tokio::test]
    async fn request_to_another_host_is_misdirected() {
        for (public, code) in [
            (json!([]), 401),
            (json!(["vms.example"]), 401),
            (json!(["https://other.example"]), 421),
        ] {
            let router = crate::web::router(console(&public));
            let answer = router.oneshot(request(&GET, "/api/v1/session", "")).await;
            assert_eq!(answer.unwrap().status(), code, "{public}");
            let probes = crate::web::probes(console(&public));
            let answer = probes.oneshot(request(&GET, "/metrics", "")).await;
            assert_eq!(answer.unwrap().status(), 200, "{public}");
        }
    }

    /// Lines that register a route without the table.
    fn unchecked(text: &str) -> Vec<&str> {
        let calls = [".route(", ".route_service(", ".nest", ".fallback"];
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let is_route = |line: &&str| calls.iter().any(|call| line.contains(call));
        code.lines().filter(is_route).map(str::trim).collect()
    }

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let below = |path: PathBuf| {
            if path.is_dir() {
                sources(&path)
            } else {
                vec![path]
            }
        };
        let files = paths.flat_map(below);
        files
            .filter(|path| path.extension().is_some_and(|it| it == "rs"))
            .collect()
    }

    #[test]
    fn route_outside_the_table_is_found() {
        let planted =
            "let router = routes::api(&console)\n    .route(\"/api/v1/planted\", get(planted))\n";
        assert_eq!(
            unchecked(planted),
            [".route(\"/api/v1/planted\", get(planted))"]
        );
        let mut files = 0;
        for path in sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/web"))) {
            files += 1;
            let text = fs::read_to_string(&path).unwrap();
            // The table's only call, and the pages of the other port.
            let expected = match path.file_name().and_then(|name| name.to_str()) {
                Some("routes.rs") => 1,
                Some("probes.rs") => 3,
                _ => 0,
            };
            let found = unchecked(&text);
            assert_eq!(found.len(), expected, "{}: {found:?}", path.display());
        }
        assert!(files > 20, "{files}");
    }
}
