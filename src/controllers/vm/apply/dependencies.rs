//! (client) The objects that a pod refers to: PVCs, ConfigMap and Secret. They are applied before the pod.

use crate::api::logging;
use crate::api::runner::identity::PodIdentity;
use crate::api::vm::names;
use crate::controllers::vm::apply::claims;
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::objects::{Objects, Prepared};
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::ownership::{OPERATOR, check_owner, is_labelled_for};
use crate::controllers::vm::views::{ConfigMapView, config_digest, logging_digest};
use crate::k8s::error::Error;
use crate::k8s::store::packed_map::Texts;
use crate::k8s::store::trim::Labelled;
use crate::k8s::views::SecretView;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use kube::api::Patch;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Stage of [`Objects`] after their PVCs, ConfigMap and Secret exist. Only [`apply`] creates it, because the fields are
/// private. The pod is created from `Objects<Applied>`, so code that creates a pod before these objects does not
/// compile.
#[derive(Debug)]
pub struct Applied {
    config_map_version: Option<String>,
    secret_version: Option<String>,
}

impl Applied {
    /// The pod's annotations with the resource versions of ConfigMap and Secret.
    pub(super) fn annotations(&self) -> BTreeMap<String, String> {
        let versions = [
            (names::ANNOTATION_CONFIG_VERSION, &self.config_map_version),
            (names::ANNOTATION_SECRET_VERSION, &self.secret_version),
        ];
        versions
            .into_iter()
            .filter_map(|(name, version)| Some((name.to_owned(), version.clone()?)))
            .collect()
    }
}

/// Applies the objects that the pod refers to, all at once.
///
/// # Errors
/// If a write fails, after all were tried. Of several errors, it returns the first in the order ConfigMap, Secret,
/// PVCs, so that the reported error does not depend on the order of the responses.
pub(super) async fn apply(
    objects: Objects,
    observed: &Observed,
    ctx: &VmController,
) -> Result<Objects<Applied>, Error> {
    let Objects {
        image_repository,
        fetches,
        config_map,
        runner_data,
        disks,
        claim_changes,
        display_secret,
        service,
        pod,
        identity,
        stage: Prepared,
    } = objects;
    let (present_config_map, secret, claims) = futures::future::join3(
        apply_config_map(&config_map, observed, ctx),
        apply_secret(display_secret.as_ref(), observed, ctx),
        claims::create_missing(
            &runner_data,
            &disks,
            image_repository.as_ref(),
            observed,
            ctx,
        ),
    )
    .await;
    let stage = Applied {
        config_map_version: present_config_map?.resource_version(),
        secret_version: secret?.and_then(|secret| secret.resource_version()),
    };
    claims?;
    Ok(Objects {
        image_repository,
        fetches,
        config_map,
        runner_data,
        disks,
        claim_changes,
        display_secret,
        service,
        pod,
        identity: with_claims(identity, ctx),
        stage,
    })
}

/// The identity with the UIDs of the PVCs, which exist now.
fn with_claims(mut identity: PodIdentity, ctx: &VmController) -> PodIdentity {
    identity.claims.retain(|_, claim| {
        let Some(present) = ctx.caches.claims.get(&ctx.scope.key(&claim.name)) else {
            return false;
        };
        claim.uid = present.uid().unwrap_or_default();
        let overwrite = present.annotations().get(names::ANNOTATION_OVERWRITE);
        claim.may_overwrite = overwrite == Some(&claim.uid);
        !claim.uid.is_empty()
    });
    identity
}

/// Creates the ConfigMap, or patches it if it differs. Returns the present one.
///
/// # Errors
/// If the ConfigMap has another owner, or a write fails.
async fn apply_config_map(
    desired: &ConfigMap,
    observed: &Observed,
    ctx: &VmController,
) -> Result<Arc<ConfigMapView>, Error> {
    let (writer, cache) = (ctx.scope.writer(), &ctx.caches.config_maps);
    let present = match &observed.config_map {
        Some(present) => present.clone(),
        None => writer.create_or_get(cache, desired).await?,
    };
    check_config_map(&present, observed).map_err(name_operator)?;
    if is_up_to_date(&present, desired) {
        return Ok(present);
    }
    writer
        .patch::<ConfigMap, _>(cache, &desired.name_any(), &patch(&present, desired))
        .await
}

/// Adds the operator as the owner of its own ConfigMap, which may lack the label.
fn name_operator(error: Error) -> Error {
    match error {
        Error::OwnedByOther { kind, name, .. } if name == names::OPERATOR_CONFIG_MAP => {
            Error::OwnedByOther {
                kind,
                name,
                owner: Some(OPERATOR.to_owned()),
            }
        }
        error => error,
    }
}

/// Whether the present ConfigMap would be patched.
pub(in crate::controllers::vm) fn is_config_map_outdated(
    desired: &ConfigMap,
    observed: &Observed,
) -> bool {
    let present = observed.config_map.as_deref();
    present.is_some_and(|present| {
        check_config_map(present, observed).is_ok() && !is_up_to_date(present, desired)
    })
}

fn check_config_map(present: &ConfigMapView, observed: &Observed) -> Result<(), Error> {
    let is_own = is_labelled_for(present, &observed.vm);
    check_owner("ConfigMap", present, is_own, &observed.vm)
}

/// Merges the desired values, and removes values that only an earlier spec needed. A server-side apply would keep those
/// that the Java VM-Operator has written, as it owns them.
fn patch(present: &ConfigMapView, desired: &ConfigMap) -> Patch<Value> {
    let logging = desired
        .data
        .as_ref()
        .and_then(|data| data.get(logging::FILE));
    let config = desired
        .data
        .as_ref()
        .and_then(|data| data.get(names::CONFIG_FILE));
    Patch::Strategic(json!({
        "metadata": {
            "uid": present.uid(),
            "labels": desired.metadata.labels,
            "annotations": {names::ANNOTATION_INSTANCE_ID: instance_id(desired.annotations())},
            "ownerReferences": desired.metadata.owner_references,
        },
        "data": {names::CONFIG_FILE: config, logging::FILE: logging},
    }))
}

fn instance_id(annotations: &impl Texts) -> Option<&str> {
    annotations.text(names::ANNOTATION_INSTANCE_ID)
}

fn is_up_to_date(present: &ConfigMapView, desired: &ConfigMap) -> bool {
    let labels = desired.metadata.labels.iter().flatten();
    let owners = desired.metadata.owner_references.iter().flatten();
    present.config.digest == desired.data.as_ref().map(config_digest).unwrap_or_default()
        && present.config.logging == desired.data.as_ref().and_then(logging_digest)
        && instance_id(present.annotations()) == instance_id(desired.annotations())
        && labels
            .into_iter()
            .all(|(name, value)| present.label(name) == Some(value))
        && owners
            .into_iter()
            .all(|owner| present.owner_references().contains(owner))
}

/// Creates the display Secret if the VM needs one. Returns the present one.
async fn apply_secret(
    secret: Option<&Secret>,
    observed: &Observed,
    ctx: &VmController,
) -> Result<Option<Arc<SecretView>>, Error> {
    let Some(secret) = secret else {
        return Ok(observed.display_secret.clone());
    };
    let check = |present: &SecretView| {
        let is_own = is_labelled_for(present, &observed.vm);
        check_owner("Secret", present, is_own, &observed.vm)
    };
    if let Some(present) = ctx.caches.secrets.get(&ctx.scope.key(&secret.name_any())) {
        check(&present)?;
    }
    let mut secret = secret.clone();
    let values = [
        (names::SECRET_PASSWORD.to_owned(), (ctx.random_password)()),
        // The password is expired until a user requests access.
        (names::SECRET_EXPIRY.to_owned(), "now".to_owned()),
    ];
    secret.string_data = Some(values.into());
    let secret = ctx
        .scope
        .writer()
        .create_or_get(&ctx.caches.secrets, &secret)
        .await?;
    check(&secret)?;
    Ok(Some(secret))
}
