//! (client) Writes what differs, and nothing else.
//!
//! | kind | mode | why |
//! |---|---|---|
//! | claims | created once | they are never changed behind the user's back, and never deleted |
//! | Secret | created once | whoever changes the password owns it |
//! | ConfigMap | server-side apply when it differs | it follows the spec |
//! | Pod | created once; deleted by UID; one annotation patched | a pod's spec cannot change |
//!
//! What a pod refers to is written first, all at once, then the pod.

use super::build::{Applied, Objects, Prepared};
use super::lifecycle::Decision;
use super::observe::Observed;
use crate::api::names;
use crate::operator::context::Context;
use crate::operator::error::Error;
use crate::operator::views::{ConfigMapView, data_digest};
use crate::operator::write::Writer;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use kube::ResourceExt;
use serde_json::json;
use std::marker::PhantomData;
use std::sync::Arc;

/// Applies the objects.
///
/// # Errors
/// If a write fails. What was written stays; the next reconcile goes on from there.
pub async fn apply(
    objects: Objects<Prepared>,
    observed: &Observed,
    decision: &Decision,
    ctx: &Context,
) -> Result<Objects<Applied>, Error> {
    let Objects { image_repository, config_map, runner_data, disks, display_secret, mut pod, stage: _ } = objects;
    let claims = disks.iter().chain([&runner_data]).chain(&image_repository);
    let claims = futures::future::try_join_all(claims.map(|claim| ensure_claim(claim, observed, ctx)));
    let (config_map_view, (), _) = futures::future::try_join3(
        ensure_config_map(&config_map, observed, ctx),
        ensure_secret(display_secret.as_ref(), ctx),
        claims,
    )
    .await?;
    let config_version = config_map_view.resource_version().unwrap_or_default();
    pod.annotations_mut().insert(names::ANNOTATION_CONFIG_VERSION.to_owned(), config_version.clone());
    match decision {
        Decision::Create => create_pod(&pod, ctx).await?,
        Decision::Keep => announce_config(observed, &config_version, ctx).await?,
        _ => end_pod(observed, decision, ctx).await?,
    }
    Ok(Objects { image_repository, config_map, runner_data, disks, display_secret, pod, stage: PhantomData })
}

/// Does what a decision asks for that needs no other object: ends the pod, or stops the VM.
///
/// # Errors
/// If the write fails.
pub async fn end_pod(observed: &Observed, decision: &Decision, ctx: &Context) -> Result<(), Error> {
    let writer = Writer::new(ctx);
    match decision {
        Decision::Delete { uid, why } => {
            tracing::info!(vm = observed.name(), ?why, "deleting the pod");
            if let Some(pod) = writer.delete::<Pod, _>(&observed.name(), uid).await? {
                ctx.caches.pods.wrote(pod);
            }
            Ok(())
        }
        Decision::StopBySpec => {
            tracing::info!(vm = observed.name(), "the guest has shut down; stopping the VM");
            // With the version that the decision was made on: whoever changed the VM since then is not overruled.
            let version = observed.vm.resource_version();
            let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"vm": {"state": "Stopped"}}});
            let vm = writer.merge_vm(&observed.name(), &patch).await?;
            ctx.wrote_vm(vm);
            Ok(())
        }
        _ => Ok(()),
    }
}

async fn ensure_claim(claim: &PersistentVolumeClaim, observed: &Observed, ctx: &Context) -> Result<(), Error> {
    let name = claim.name_any();
    let repository = observed.image_repository.as_ref().filter(|_| name == names::IMAGE_REPOSITORY_CLAIM);
    if observed.claims.contains_key(&name) || repository.is_some() {
        return Ok(());
    }
    let view = Writer::new(ctx).create_or_get(claim).await?;
    ctx.caches.claims.wrote(view);
    Ok(())
}

async fn ensure_secret(secret: Option<&Secret>, ctx: &Context) -> Result<(), Error> {
    let Some(secret) = secret else { return Ok(()) };
    let mut secret = secret.clone();
    let values = [
        (names::SECRET_PASSWORD.to_owned(), (ctx.random_password)()),
        // Nobody gets in before somebody has asked for it.
        (names::SECRET_EXPIRY.to_owned(), "now".to_owned()),
    ];
    secret.string_data = Some(values.into());
    let view = Writer::new(ctx).create_or_get(&secret).await?;
    ctx.caches.secrets.wrote(view);
    Ok(())
}

async fn ensure_config_map(
    wanted: &ConfigMap,
    observed: &Observed,
    ctx: &Context,
) -> Result<Arc<ConfigMapView>, Error> {
    if let Some(present) = observed.config_map.as_ref().filter(|present| is_as_wanted(present, wanted)) {
        return Ok(present.clone());
    }
    let view: ConfigMapView = Writer::new(ctx).apply(wanted).await?;
    ctx.caches.config_maps.wrote(view.clone());
    Ok(Arc::new(view))
}

fn is_as_wanted(present: &ConfigMapView, wanted: &ConfigMap) -> bool {
    let labels = wanted.metadata.labels.iter().flatten();
    let owners = wanted.metadata.owner_references.iter().flatten();
    let digest = wanted.data.as_ref().map(data_digest).unwrap_or_default();
    present.digest == digest
        && labels.into_iter().all(|(key, value)| present.labels().get(key) == Some(value))
        && owners.into_iter().all(|owner| present.owner_references().contains(owner))
}

async fn create_pod(pod: &Pod, ctx: &Context) -> Result<(), Error> {
    // By POST, which fails if there is a pod of that name: then that one is looked at, and the next reconcile decides.
    let view = Writer::new(ctx).create_or_get(pod).await?;
    ctx.caches.pods.wrote(view);
    Ok(())
}

/// Tells the kubelet, by the pod's annotation, that the configuration has changed, so that it looks at the volume now
/// and not at its next turn, a minute later.
async fn announce_config(observed: &Observed, version: &str, ctx: &Context) -> Result<(), Error> {
    let Some(pod) = observed.own_pod() else { return Ok(()) };
    if pod.annotations().get(names::ANNOTATION_CONFIG_VERSION).is_some_and(|present| present == version) {
        return Ok(());
    }
    let metadata = json!({"uid": pod.uid(), "annotations": {names::ANNOTATION_CONFIG_VERSION: version}});
    let view = Writer::new(ctx).merge::<Pod, _>(&observed.name(), &json!({"metadata": metadata})).await?;
    ctx.caches.pods.wrote(view);
    Ok(())
}
