//! The details of one VM.

use crate::web::details::{DetailedVm, Details};
use crate::web::http::actions::failed;
use crate::web::http::{ObjectRequest, Problem, busy};
use axum::Json;
use axum::http::StatusCode;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;

/// Events of a VM that a request reads.
const EVENTS_READ_MAX: u32 = 500;

pub(super) async fn details(request: ObjectRequest) -> Result<Json<Details>, Problem> {
    let (console, login, name) = (request.console, request.login, request.name);
    let not_found = || Problem::new(StatusCode::NOT_FOUND, "NotFound");
    let vm = console.vms.get(&console.pools.key(&name));
    let vm = vm.ok_or_else(not_found)?;
    let settings = console.settings();
    let viewer = login.viewer(&settings);
    let pool = console.pools.held(&vm, viewer.user());
    vm.rights(&viewer, pool.as_deref()).ok_or_else(not_found)?;
    let _permit = console.details.try_acquire().map_err(|_| busy())?;
    let uid = vm.metadata.uid.as_deref().ok_or_else(not_found)?;

    let client = &console.cluster.client;
    let vms = Api::<DetailedVm>::namespaced(client.clone(), &console.namespace);
    let events = Api::<Event>::namespaced(client.clone(), &console.namespace);
    let of_vm = ListParams::default()
        .fields(&format!("regarding.uid={uid}"))
        .limit(EVENTS_READ_MAX);
    let read = async { tokio::try_join!(vms.get_opt(&name), events.list(&of_vm)) };
    let (detailed, events) = read.await.map_err(|error| {
        tracing::warn!(vm = name, %error, "the console cannot read the details of a VM");
        failed(&error).problem
    })?;
    let detailed = detailed.filter(|present| present.metadata.uid == vm.metadata.uid);
    let detailed = detailed.ok_or_else(not_found)?;
    Ok(Json(Details::of(&vm, &viewer, &detailed, events.items)))
}
