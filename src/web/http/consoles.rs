//! Screens, serial consoles and files for SPICE viewers.

use crate::api::runner::viewer::{self, Function};
use crate::web::events::Reason;
use crate::web::http::{ObjectRequest, Problem, Upgrade, socket};
use crate::web::logins::Login;
use crate::web::runner::End;
use crate::web::viewer_file::{self, ViewerFile};
use crate::web::{Console, relay, runner};
use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kube::Resource;
use serde::Deserialize;
use std::net::IpAddr;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ScreenQuery {
    #[serde(default)]
    take_over: bool,
}

/// The function is that of the route's check.
pub(super) async fn console(
    Extension(function): Extension<Function>,
    Query(ScreenQuery { take_over }): Query<ScreenQuery>,
    request: ObjectRequest,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let ObjectRequest {
        console,
        login,
        name,
        client,
        headers,
    } = request;
    let limits = (runner::MESSAGE_MAX, runner::UNSENT_MAX);
    let upgrade = socket(&console, &headers, upgrade, limits)?;
    let requested = relay::Requested {
        vm: name,
        function,
        take_over: take_over && function == Function::Screen,
        client,
    };
    Ok(upgrade.on_upgrade(move |socket| relay::run(socket, console, login, requested)))
}

/// A password of the display, and the file for a SPICE viewer. Nothing of it is stored.
pub(super) async fn viewer_file(request: ObjectRequest) -> Response {
    let ObjectRequest {
        console,
        login,
        name,
        client,
        ..
    } = request;
    let user = login.user.clone();
    // A client that closes its connection does not prevent the log line.
    let created = tokio::spawn(async move {
        let created = create_viewer_file(&console, &login, &name, client).await;
        let reason = created.as_ref().err().map(<&'static str>::from);
        tracing::info!(user = &*user, %client, vm = name, reason, "file for a SPICE viewer");
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
        assignment: vm.assignment(),
        ..viewer::Request::new(pod_uid, Function::Display, &login.user, client)
    };
    let answer = runner::open(console, &vm, &pod, &request).await?.1;
    let viewer::Answer::Display(display) = answer else {
        return Err(End::by_runner(answer, may_take));
    };
    let addresses: Vec<_> = runner::addresses_of(&pod).collect();
    let port = runner::port_of(&pod, "spice").ok_or(End::NoDisplay)?;
    let options = settings.viewer_files();
    let of_vm = vm.object_ref(&());
    let spice = vm.spec.vm.display.spice.unwrap_or_default();
    let file = viewer_file::create(&spice, (&addresses, port), display, options);
    let file = file.ok_or(End::NoDisplay)?;
    let (reason, what) = (Reason::ViewerFileCreated, "gets a file for virt-viewer");
    console.report(&login.user, &of_vm, reason, what).await;
    Ok(file)
}
