//! The watch of VMs.

use crate::api::VirtualMachine;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::views::VmView;
use crate::k8s::events as published;
use crate::k8s::follow;
use crate::k8s::watch::listed_in;
use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::events::EventType;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use std::sync::Arc;

/// A VM, or the error and the metadata of one that cannot be decoded.
type Guarded = DeserializeGuard<VmView>;

/// Watches VMs into [`Context::vms`]. Returns the VMs that were added, changed or deleted. A VM that cannot be decoded is treated like
/// one that does not exist, and reported by an event.
pub fn vms(
    ctx: &Arc<Context>,
) -> impl Stream<Item = ObjectRef<VirtualMachine>> + Send + 'static + use<> {
    let config = watcher::Config::default();
    let events = listed_in::<Guarded>(&ctx.cluster, &ctx.watched_namespace(), &config);
    let (cluster, vms, ctx) = (ctx.cluster.clone(), ctx.vms.clone(), ctx.clone());
    let events = events.filter_map(move |event| {
        let decoded = match event {
            Ok(event) => decoded(event, &ctx).map(Ok),
            Err(error) => Some(Err(error)),
        };
        futures::future::ready(decoded)
    });
    follow::primaries(&cluster, "vms", events, vms)
}

fn decoded(event: Event<Guarded>, ctx: &Arc<Context>) -> Option<Event<VirtualMachine>> {
    Some(match event {
        Event::Init => {
            ctx.undecodable().clear();
            Event::Init
        }
        Event::InitDone => Event::InitDone,
        Event::InitApply(guarded) => Event::InitApply(noted(guarded, ctx).ok()?),
        // It may have been decodable before.
        Event::Apply(guarded) => match noted(guarded, ctx) {
            Ok(vm) => Event::Apply(vm),
            Err(invalid) => Event::Delete(stand_in(&invalid.metadata)?),
        },
        Event::Delete(DeserializeGuard(result)) => {
            let vm =
                result.map_or_else(|invalid| stand_in(&invalid.metadata), |vm| Some(vm.into()))?;
            ctx.undecodable().remove(&vm.name_any());
            Event::Delete(vm)
        }
    })
}

/// The VM, or the error of one that cannot be decoded. A leader reports that at once, another operator once it leads.
fn noted(
    DeserializeGuard(result): Guarded,
    ctx: &Arc<Context>,
) -> Result<VirtualMachine, Box<InvalidObject>> {
    let mut undecodable = ctx.undecodable();
    match &result {
        Ok(vm) => drop(undecodable.remove(&vm.name_any())),
        Err(invalid) => {
            undecodable.insert(
                invalid.metadata.name.clone().unwrap_or_default(),
                invalid.clone(),
            );
            if ctx.cluster.leadership.leads() {
                tokio::spawn(report_undecodable(invalid.clone(), ctx.clone()));
            }
        }
    }
    result.map(VirtualMachine::from).map_err(Box::new)
}

/// A VM of that name, of which only the metadata is used.
fn stand_in(metadata: &ObjectMeta) -> Option<VirtualMachine> {
    let vm: Option<VmView> =
        serde_json::from_value(json!({"metadata": metadata, "spec": {"vm": {}}})).ok();
    vm.map(VirtualMachine::from)
}

/// Logs and publishes which field of a VM cannot be decoded. Objects that were stored under another
/// definition can be undecodable, those that the API server has checked cannot.
async fn report_undecodable(invalid: InvalidObject, ctx: Arc<Context>) {
    let InvalidObject { error, metadata } = invalid;
    let name = metadata.name.as_deref().unwrap_or_default();
    // The watch gives the error without the field's path.
    let now = ctx
        .writer()
        .find::<VirtualMachine, Value>(name)
        .await
        .ok()
        .flatten();
    let located = now.and_then(|vm| serde_path_to_error::deserialize::<_, VmView>(&vm).err());
    let why = located.map_or(error, |error| {
        format!("{}: {}", error.path(), error.inner())
    });
    let message = format!(
        "the VM cannot be read: {why}; correct it (kubectl edit vm {name}), or apply the definitions of this version (kubectl apply -f crds/); until then its pod stays as it is"
    );
    tracing::warn!(vm = name, "{message}");
    let Some(regarding) = stand_in(&metadata).map(|vm| vm.object_ref(&())) else {
        return;
    };
    published::publish(
        &ctx.cluster,
        &regarding,
        EventType::Warning,
        "Unreadable",
        &message,
    )
    .await;
}

/// Reports all VMs that cannot be decoded.
pub fn report_all_undecodable(ctx: &Arc<Context>) {
    for invalid in ctx.undecodable().values() {
        tokio::spawn(report_undecodable(invalid.clone(), ctx.clone()));
    }
}
