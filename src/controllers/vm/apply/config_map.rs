//! (client) The ConfigMap: made where it is missing, written where it differs.

use crate::api::vm::names;
use crate::controllers::vm::apply::{ensure_ours, is_ours};
use crate::controllers::vm::context::Context;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::ownership::OPERATOR;
use crate::controllers::vm::views::{ConfigMapView, config_digest, logging_digest};
use crate::k8s::error::Error;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::Patch;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Makes the ConfigMap, or brings it in line; gives it as it is then.
///
/// # Errors
/// If it is another's, or a write fails.
pub(super) async fn ensure(
    wanted: &ConfigMap,
    observed: &Observed,
    ctx: &Context,
) -> Result<Arc<ConfigMapView>, Error> {
    let (writer, cache) = (ctx.writer(), &ctx.caches.config_maps);
    let present = match &observed.config_map {
        Some(present) => present.clone(),
        None => writer.create_or_get(cache, wanted).await?,
    };
    check(&present, observed).map_err(of_the_operator)?;
    if is_as_wanted(&present, wanted) {
        return Ok(present);
    }
    writer
        .patch::<ConfigMap, _>(cache, &wanted.name_any(), &patch(&present, wanted))
        .await
}

/// The same; the operator's own configuration is its own without a label, too.
fn of_the_operator(error: Error) -> Error {
    match error {
        Error::Foreign { kind, name, .. } if name == names::OPERATOR_CONFIG_MAP => Error::Foreign {
            kind,
            name,
            owner: Some(OPERATOR.to_owned()),
        },
        error => error,
    }
}

/// Whether one that is there would be written.
pub(in crate::controllers::vm) fn changes(wanted: &ConfigMap, observed: &Observed) -> bool {
    let present = observed.config_map.as_deref();
    let mut present = present
        .into_iter()
        .filter(|present| check(present, observed).is_ok());
    present.any(|present| !is_as_wanted(present, wanted))
}

/// Whether it can be written to.
fn check(present: &ConfigMapView, observed: &Observed) -> Result<(), Error> {
    ensure_ours("ConfigMap", present, is_ours(present, observed), observed)
}

/// Merges what is wanted, and removes what the operator or the Java VM-Operator has written and nothing asks for any more. A
/// server-side apply would remove only what an apply has written.
fn patch(present: &ConfigMapView, wanted: &ConfigMap) -> Patch<Value> {
    let logging = wanted
        .data
        .as_ref()
        .and_then(|data| data.get(names::LOGGING_FILE));
    let config = wanted
        .data
        .as_ref()
        .and_then(|data| data.get(names::CONFIG_FILE));
    Patch::Strategic(json!({
        "metadata": {
            "uid": present.uid(),
            "labels": wanted.metadata.labels,
            "annotations": {names::ANNOTATION_INSTANCE_ID: kept_instance(wanted.annotations())},
            "ownerReferences": wanted.metadata.owner_references,
        },
        "data": {names::CONFIG_FILE: config, names::LOGGING_FILE: logging},
    }))
}

fn kept_instance(annotations: &BTreeMap<String, String>) -> Option<&String> {
    annotations.get(names::ANNOTATION_INSTANCE_ID)
}

fn is_as_wanted(present: &ConfigMapView, wanted: &ConfigMap) -> bool {
    let labels = wanted.metadata.labels.iter().flatten();
    let owners = wanted.metadata.owner_references.iter().flatten();
    present.config.digest == wanted.data.as_ref().map(config_digest).unwrap_or_default()
        && present.config.logging == wanted.data.as_ref().and_then(logging_digest)
        && kept_instance(present.annotations()) == kept_instance(wanted.annotations())
        && labels
            .into_iter()
            .all(|(key, value)| present.labels().get(key) == Some(value))
        && owners
            .into_iter()
            .all(|owner| present.owner_references().contains(owner))
}
