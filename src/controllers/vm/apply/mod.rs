//! (client) Writes what differs, and nothing else.
//!
//! | kind | mode | why |
//! |---|---|---|
//! | claims | created once; enlarged by a patch | nothing else of a claim can change; they are never deleted |
//! | Secret | created once | whoever changes the password owns it |
//! | Service | created, then patched where it differs; deleted where it is not wanted | it follows spec and settings |
//! | ConfigMap | created, then patched where it differs | it follows the spec |
//! | fetch pods | created by try; deleted by UID; the repository's claim annotated | each is one try |
//! | Pod | created once; deleted by UID; annotations patched, resources resized | nothing else of a pod can change |
//!
//! What ends a pod comes first, so that no other write keeps a VM from being stopped; then what a pod refers to, all
//! at once; then the pod. An object that is another's is never taken over, whatever its name; what an earlier VM of this name
//! has left is removed by [`crate::controllers::vm::gates::orphans`].

mod claims;
pub(super) mod config_map;
pub mod repository;
mod resize;
mod service;

use crate::api::VirtualMachine;
use crate::api::conditions::Wanted;
use crate::api::vm::names;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::decide::{Decision, DeleteReason};
use crate::controllers::vm::fetch;
use crate::controllers::vm::objects::{self, Objects};
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::ownership::{is_of_earlier, orphan_next_step, owner};
use crate::controllers::vm::pod::{refresh_volume, restart};
use crate::controllers::vm::views::{PodView, SecretView, VmView, vm_of};
use crate::k8s::error::Error;
use crate::k8s::writer::only;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, Preconditions};
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Applies the objects. Gives what there is to tell of them besides: conditions that are only there while there is
/// something.
///
/// # Errors
/// If a write fails. What was written stays; the next reconcile goes on from there.
pub async fn apply(
    objects: Objects,
    observed: &Observed,
    decision: &Decision,
    ctx: &Context,
) -> Result<Vec<Wanted>, Error> {
    end_pod(observed, decision, ctx).await?;
    let Objects {
        image_repository,
        fetches,
        config_map,
        runner_data,
        disks,
        claim_changes,
        display_secret,
        service,
        mut pod,
    } = objects;
    let claims = [&runner_data]
        .into_iter()
        .chain(&disks)
        .map(|claim| claims::ensure(claim, observed, ctx));
    let repository = image_repository
        .iter()
        .map(|claim| repository::ensure(claim, observed, ctx));
    let claims = futures::future::join(
        futures::future::join_all(claims),
        futures::future::join_all(repository),
    );
    let secret = ensure_secret(display_secret.as_ref(), observed, ctx);
    let config_map = config_map::ensure(&config_map, observed, ctx);
    // All are tried, and of several errors the first in this order is told: not whichever answer came first.
    let (config_map, secret, (claims, repository)) =
        futures::future::join3(config_map, secret, claims).await;
    let versions = Versions {
        config_map: config_map?.resource_version(),
        secret: secret?.and_then(|s| s.resource_version()),
    };
    claims
        .into_iter()
        .chain(repository)
        .collect::<Result<(), Error>>()?;
    let media = fetch::apply::follow(fetches, ctx).await?;
    let of_pod = match decision {
        Decision::Create => {
            pod.annotations_mut().extend(versions.annotations());
            create_pod(&objects::with_template_hash(pod), observed, ctx).await?;
            Vec::new()
        }
        Decision::Keep => follow(&pod, &versions, observed, ctx).await?,
        _ => Vec::new(),
    };
    let disks = claims::follow(&claim_changes, observed, ctx).await?;
    let service = service::follow(service.as_ref(), observed, ctx).await?;
    Ok(of_pod
        .into_iter()
        .chain(disks)
        .chain(service)
        .chain(media)
        .collect())
}

/// Lets a pod that stays follow what can change of it.
async fn follow(
    wanted: &Pod,
    versions: &Versions,
    observed: &Observed,
    ctx: &Context,
) -> Result<Vec<Wanted>, Error> {
    let Some(pod) = observed.own_pod() else {
        return Ok(Vec::new());
    };
    let (asked, resources) = resize::follow(wanted, pod, observed, ctx).await?;
    let versions = versions.annotations();
    let is_new = versions
        .iter()
        .any(|(name, version)| pod.annotations().get(name) != Some(version));
    let refresh = refresh_volume::annotation(observed, is_new);
    announce(
        versions.into_iter().chain(asked).chain(refresh).collect(),
        pod,
        ctx,
    )
    .await?;
    Ok(resources
        .into_iter()
        .chain(restart::required(
            wanted,
            observed.vm.spec.shutdown_period(),
            pod,
        ))
        .collect())
}

/// Versions of what the pod's configuration volume is made of.
struct Versions {
    config_map: Option<String>,
    secret: Option<String>,
}

impl Versions {
    /// The pod's annotations that tell them.
    fn annotations(&self) -> BTreeMap<String, String> {
        let versions = [
            (names::ANNOTATION_CONFIG_VERSION, &self.config_map),
            (names::ANNOTATION_SECRET_VERSION, &self.secret),
        ];
        versions
            .into_iter()
            .filter_map(|(name, version)| Some((name.to_owned(), version.clone()?)))
            .collect()
    }
}

/// Does what a decision asks for that needs no other object: ends the pod, or stops the VM.
///
/// # Errors
/// If the write fails.
pub async fn end_pod(observed: &Observed, decision: &Decision, ctx: &Context) -> Result<(), Error> {
    let writer = ctx.writer();
    match decision {
        Decision::Delete { uid, why } => {
            tracing::info!(vm = observed.name(), ?why, "deleting the pod");
            ctx.states.deletes_pod(&observed.key(), uid);
            // One that has begun since it was looked at is no outdated one.
            let resource_version = match why {
                DeleteReason::Outdated => observed.own_pod().and_then(|pod| pod.resource_version()),
                _ => None,
            };
            let unchanged = Preconditions {
                resource_version,
                ..only(uid)
            };
            let grace = Some(observed.vm.spec.grace_period());
            writer
                .delete::<Pod, _>(&ctx.caches.pods, &observed.name(), unchanged, grace)
                .await
        }
        Decision::StopBySpec => {
            tracing::info!(
                vm = observed.name(),
                "the guest has shut down; stopping the VM"
            );
            // With the version that the decision was made on: whoever changed the VM since then is not overruled.
            let version = observed.vm.resource_version();
            let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"vm": {"state": "Stopped"}}});
            writer
                .merge::<VirtualMachine, VmView>(&ctx.vms, &observed.name(), &patch)
                .await
                .map(drop)
        }
        _ => Ok(()),
    }
}

/// The display secret that there is, or is made now.
async fn ensure_secret(
    secret: Option<&Secret>,
    observed: &Observed,
    ctx: &Context,
) -> Result<Option<Arc<SecretView>>, Error> {
    let Some(secret) = secret else {
        return Ok(observed.display_secret.clone());
    };
    if let Some(there) = ctx.caches.secrets.get(&ctx.key(&secret.name_any())) {
        ensure_ours("Secret", &*there, is_ours(&*there, observed), observed)?;
    }
    let mut secret = secret.clone();
    let values = [
        (names::SECRET_PASSWORD.to_owned(), (ctx.random_password)()),
        // Nobody gets in before somebody has asked for it.
        (names::SECRET_EXPIRY.to_owned(), "now".to_owned()),
    ];
    secret.string_data = Some(values.into());
    let secret = ctx
        .writer()
        .create_or_get(&ctx.caches.secrets, &secret)
        .await?;
    ensure_ours("Secret", &*secret, is_ours(&*secret, observed), observed)?;
    Ok(Some(secret))
}

/// Whether the object is this VM's, or was one's of its name.
fn is_ours<K: Resource>(view: &K, observed: &Observed) -> bool {
    let labels = view.meta().labels.as_ref();
    let is_a_vms = labels.is_some_and(|labels| {
        labels
            .get(names::LABEL_NAME)
            .is_some_and(|app| app == names::APP_NAME)
    });
    is_a_vms && vm_of(view).is_some_and(|vm| vm == observed.name())
}

/// Whether the object can be written to and stood on: it is this VM's, and nothing else controls it, as an object has one
/// controller.
fn ensure_ours<K: Resource>(
    kind: &'static str,
    view: &K,
    is_ours: bool,
    observed: &Observed,
) -> Result<(), Error> {
    let (name, vm) = (view.name_any(), &observed.vm);
    let controls = |owner: &OwnerReference| {
        owner.controller == Some(true) && Some(&owner.uid) != vm.metadata.uid.as_ref()
    };
    if is_ours && !view.owner_references().iter().any(controls) {
        return Ok(());
    }
    let next = orphan_next_step(view, vm).filter(|_| is_ours && is_of_earlier(view, vm));
    match next {
        Some(next) => Err(Error::OfEarlier { kind, name, next }),
        None => Err(Error::Foreign {
            kind,
            owner: owner(view, &observed.name()),
            name,
        }),
    }
}

async fn create_pod(pod: &Pod, observed: &Observed, ctx: &Context) -> Result<(), Error> {
    // By POST, which fails if there is a pod of that name: then that one is looked at, and the next reconcile decides.
    ctx.writer().create_or_get(&ctx.caches.pods, pod).await?;
    ctx.states.pod_created(&observed.key(), observed.now);
    Ok(())
}

/// Brings the pod's annotations in line. Those that tell versions make the kubelet look at the configuration's volume
/// now and not at its next turn, a minute later.
async fn announce(
    mut annotations: BTreeMap<String, String>,
    pod: &PodView,
    ctx: &Context,
) -> Result<(), Error> {
    annotations.retain(|name, version| pod.annotations().get(name) != Some(version));
    if annotations.is_empty() {
        return Ok(());
    }
    let patch = Patch::Merge(json!({"metadata": {"uid": pod.uid(), "annotations": annotations}}));
    ctx.writer()
        .patch::<Pod, _>(&ctx.caches.pods, &pod.name_any(), &patch)
        .await
        .map(drop)
}
