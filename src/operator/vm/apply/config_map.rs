//! (client) The ConfigMap: made where it is missing, written where it differs.

use super::{ensure_ours, is_ours};
use crate::api::names;
use crate::operator::cache::Given;
use crate::operator::context::Context;
use crate::operator::error::Error;
use crate::operator::views::{ConfigMapView, config_digest, logging_digest};
use crate::operator::vm::observe::Observed;
use crate::operator::whose::Whose;
use crate::operator::write::Writer;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
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
    let (writer, writing) = (Writer::new(ctx), ctx.caches.config_maps.writing());
    let present = match &observed.config_map {
        Some(present) => present.clone(),
        None => match writer.create_or_get::<_, ConfigMapView>(wanted).await? {
            Given::There(present) => Arc::new(present),
            Given::Made(made) => {
                writing.given(Given::Made(made.clone()));
                return Ok(Arc::new(made));
            }
        },
    };
    check(&present, observed).map_err(|error| of_the_operator(error, ctx))?;
    let newest = match difference(&present, wanted) {
        Difference::None => present,
        Difference::Some => Arc::new(writer.apply(wanted).await?),
        Difference::TooMuch => Arc::new(writer.merge_by_key(wanted, &too_much(wanted)).await?),
    };
    let known = observed.config_map.as_ref().is_some_and(|known| Arc::ptr_eq(known, &newest));
    if !known {
        writing.answered(newest.as_ref().clone());
    }
    Ok(newest)
}

/// The same; the operator's own settings are its own without a label, too.
fn of_the_operator(error: Error, ctx: &Context) -> Error {
    match error {
        Error::Foreign { kind, name, .. }
            if name == names::OPERATOR_CONFIG_MAP && ctx.home.as_ref() == Some(&ctx.namespace) =>
        {
            Error::Foreign { kind, name, whose: Whose::Operator }
        }
        error => error,
    }
}

/// Whether one that is there would be written.
pub(in crate::operator::vm) fn changes(wanted: &ConfigMap, observed: &Observed) -> bool {
    let present = observed.config_map.as_deref();
    let mut present = present.into_iter().filter(|present| check(present, observed).is_ok());
    present.any(|present| difference(present, wanted) != Difference::None)
}

/// Whether it can be written to.
fn check(present: &ConfigMapView, observed: &Observed) -> Result<(), Error> {
    ensure_ours("ConfigMap", present, is_ours(present, observed), observed)
}

/// How a ConfigMap differs from the one that is wanted.
#[derive(Debug, PartialEq, Eq)]
enum Difference {
    None,
    Some,
    /// It says how logging is configured, or that the guest keeps the name of an instance, and nothing says so any more. An
    /// apply removes only what an apply has written: not what was there when the ConfigMap was made, by us or by the
    /// reference, nor what was merged.
    TooMuch,
}

/// What takes away what is not wanted any more.
fn too_much(wanted: &ConfigMap) -> Value {
    let no_logging = wanted.data.as_ref().and_then(logging_digest).is_none();
    let no_instance = kept_instance(wanted.annotations()).is_none();
    let data = no_logging.then(|| ("data".to_owned(), json!({names::LOGGING_FILE: null})));
    let annotations = json!({"annotations": {names::ANNOTATION_INSTANCE_ID: null}});
    let metadata = no_instance.then(|| ("metadata".to_owned(), annotations));
    Value::Object(data.into_iter().chain(metadata).collect())
}

fn kept_instance(annotations: &BTreeMap<String, String>) -> Option<&String> {
    annotations.get(names::ANNOTATION_INSTANCE_ID)
}

fn difference(present: &ConfigMapView, wanted: &ConfigMap) -> Difference {
    let labels = wanted.metadata.labels.iter().flatten();
    let owners = wanted.metadata.owner_references.iter().flatten();
    let digest = wanted.data.as_ref().map(config_digest).unwrap_or_default();
    let logging = wanted.data.as_ref().and_then(logging_digest);
    let (kept, keeps) = (kept_instance(present.annotations()), kept_instance(wanted.annotations()));
    if logging.is_none() && present.config.logging.is_some() || keeps.is_none() && kept.is_some() {
        return Difference::TooMuch;
    }
    let same = present.config.digest == digest
        && present.config.logging == logging
        && kept == keeps
        && labels.into_iter().all(|(key, value)| present.labels().get(key) == Some(value))
        && owners.into_iter().all(|owner| present.owner_references().contains(owner));
    if same { Difference::None } else { Difference::Some }
}
