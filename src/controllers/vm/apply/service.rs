//! (client) The load balancer service: made, followed, and taken away where it is not wanted. One of somebody else's is
//! left alone. No trouble with it is in the way of the VM.

use crate::api::conditions::{self, ConditionReason, Wanted};
use crate::api::vm::names;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::ownership::{check_owner, is_labelled_for, next_step};
use crate::controllers::vm::views::ServiceView;
use crate::k8s::error::Error;
use crate::k8s::writer::only;
use k8s_openapi::api::core::v1::{Service, ServicePort};
use kube::ResourceExt;
use kube::api::Patch;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Brings the service in line. Gives what there is to tell.
///
/// # Errors
/// If the API server could not be asked; its refusal is something to tell.
pub(super) async fn apply(
    wanted: Option<&Service>,
    observed: &Observed,
    ctx: &Context,
) -> Result<Option<Wanted>, Error> {
    let told = match (wanted, &observed.service) {
        (Some(wanted), present) => ensure(wanted, present.as_ref(), observed, ctx).await,
        (None, Some(present)) if is_ours(present, observed) => remove(present, ctx).await,
        (None, _) => return Ok(None),
    };
    let Err(error) = told else { return Ok(None) };
    if !error.is_rejection() {
        return Err(error);
    }
    let (reason, next) = match &error {
        Error::OfEarlier { .. } => (
            ConditionReason::NameTaken,
            "it is made once that one has gone".to_owned(),
        ),
        Error::Foreign { kind, name, owner } => {
            let next = next_step(owner.as_deref(), kind, name);
            (
                ConditionReason::NameTaken,
                format!("{next}, or give the VM spec.loadBalancerService: {{}}"),
            )
        }
        _ => (
            ConditionReason::Rejected,
            "correct spec.loadBalancerService, or the policy or quota that the message names"
                .to_owned(),
        ),
    };
    let message = format!("{error}; {next}");
    Ok(Some(Wanted {
        type_: conditions::SERVICE_IN_SYNC,
        status: false,
        reason,
        message,
    }))
}

async fn ensure(
    wanted: &Service,
    present: Option<&Arc<ServiceView>>,
    observed: &Observed,
    ctx: &Context,
) -> Result<(), Error> {
    let (writer, cache) = (ctx.writer(), &ctx.caches.services);
    let there = match present {
        Some(present) => present.clone(),
        None => writer.create_or_get(cache, wanted).await?,
    };
    check_owner("Service", &*there, is_ours(&there, observed), &observed.vm)?;
    if !is_as_wanted(&there, wanted) {
        let patch = Patch::Merge(patch(&there, wanted));
        writer
            .patch::<Service, _>(cache, &wanted.name_any(), &patch)
            .await?;
    }
    Ok(())
}

async fn remove(present: &ServiceView, ctx: &Context) -> Result<(), Error> {
    if present.metadata.deletion_timestamp.is_some() {
        // A load balancer that is being given back.
        return Ok(());
    }
    let uid = present.uid().unwrap_or_default();
    ctx.writer()
        .delete::<Service, _>(
            &ctx.caches.services,
            &present.name_any(),
            only(&uid),
            Some(0),
        )
        .await
}

/// Whether the operator has made the service for this VM, or the reference's has.
fn is_ours(view: &ServiceView, observed: &Observed) -> bool {
    let made_by_us = view
        .labels()
        .get(names::LABEL_MANAGED_BY)
        .is_some_and(|by| by == names::MANAGED_BY)
        && is_labelled_for(view, &observed.vm);
    let owned = view
        .owner_references()
        .iter()
        .any(|owner| Some(&owner.uid) == observed.vm.metadata.uid.as_ref());
    made_by_us || owned
}

fn is_as_wanted(present: &ServiceView, wanted: &Service) -> bool {
    let has = |present: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>| {
        wanted
            .iter()
            .all(|(name, value)| present.get(name) == Some(value))
    };
    let Some(spec) = &wanted.spec else {
        return true;
    };
    let port = |p: &ServicePort| {
        (
            p.name.clone(),
            p.port,
            p.protocol.clone(),
            p.target_port.clone(),
        )
    };
    let ports = spec.ports.iter().flatten().map(port);
    has(present.labels(), wanted.labels())
        && has(present.annotations(), wanted.annotations())
        && wanted
            .owner_references()
            .iter()
            .all(|owner| present.owner_references().contains(owner))
        && present.spec.type_ == spec.type_
        && present.spec.selector == spec.selector
        && present.spec.ports.iter().map(port).eq(ports)
}

/// The merge patch to what is wanted. What others have added to labels, annotations and owners stays.
fn patch(present: &ServiceView, wanted: &Service) -> Value {
    let before = present.annotations().get(names::ANNOTATION_APPLIED);
    let before: Value = before
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let merged = |kind: &str, wanted: &BTreeMap<String, String>| -> Map<String, Value> {
        let names = before
            .get(kind)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let gone = names.map(|name| (name.to_owned(), Value::Null));
        gone.chain(
            wanted
                .iter()
                .map(|(name, value)| (name.clone(), json!(value))),
        )
        .collect()
    };
    let spec = wanted.spec.clone().unwrap_or_default();
    let foreign = present
        .spec
        .selector
        .iter()
        .flatten()
        .map(|(name, _)| (name.clone(), Value::Null));
    let selector = spec
        .selector
        .iter()
        .flatten()
        .map(|(name, value)| (name.clone(), json!(value)));
    let owners = present.owner_references().iter().filter(|owner| {
        wanted
            .owner_references()
            .iter()
            .all(|ours| ours.uid != owner.uid)
    });
    let owners: Vec<_> = owners.chain(wanted.owner_references()).collect();
    json!({
        "metadata": {
            "uid": present.uid(),
            "labels": merged("labels", wanted.labels()),
            "annotations": merged("annotations", wanted.annotations()),
            "ownerReferences": owners,
        },
        "spec": {
            "type": spec.type_,
            "selector": foreign.chain(selector).collect::<Map<_, _>>(),
            "ports": spec.ports,
        },
    })
}
