//! (client) Writes the differences between the desired and the observed objects.
//!
//! | kind | writes | reason |
//! |---|---|---|
//! | PVCs | created once; size and attributes class are patched | Kubernetes rejects changes of the other fields; PVCs are never deleted |
//! | Secret | created once | the user may change the password |
//! | Service | created; patched if it differs; deleted if it is not desired | it follows spec and configuration |
//! | ConfigMap | created; patched if it differs | it follows the spec |
//! | download pods | created for each attempt; deleted by UID | each pod is one attempt; the image repository's annotation records the success |
//! | Pod | created once; deleted by UID; annotations patched, resources resized | all other changes need a restart |
//!
//! The deletion of a pod comes first, so that no other failed write prevents a VM from stopping. The objects that a pod
//! refers to come next, all at once, then the pod: a pod is created only from `Objects<Applied>`. Objects of other
//! owners are never changed. [`crate::controllers::vm::gates::orphans`] removes objects of a previous VM with the same
//! name.

pub mod claims;
pub(super) mod dependencies;
mod mounted;
mod pod_resize;
mod service;

use crate::api::VirtualMachine;
use crate::api::vm::conditions::DesiredCondition;
use crate::controllers::vm::apply::dependencies::Applied;
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::decide::{Decision, DeleteReason};
use crate::controllers::vm::fetch;
use crate::controllers::vm::objects::{self, Objects};
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::pod::{refresh_volume, restart};
use crate::controllers::vm::report;
use crate::controllers::vm::views::VmView;
use crate::k8s::error::Error;
use crate::k8s::views::PodView;
use crate::k8s::writer::only_uid;
use crate::settings::GuestShutdownRecord;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, Preconditions};
use serde_json::json;
use std::collections::BTreeMap;

/// Carries out the decision and applies the objects. Returns additional conditions; none if the VM has no valid plan. Before it
/// creates a pod, it updates `observed` to the VM whose status records the PVCs of the pod.
///
/// # Errors
/// If a write fails. Objects that were written are retained; the next reconcile continues from there.
pub async fn apply(
    objects: Option<Objects>,
    observed: &mut Observed,
    decision: &Decision,
    ctx: &VmController,
) -> Result<Vec<DesiredCondition>, Error> {
    end_pod(observed, decision, ctx).await?;
    match objects {
        // On the heap: objects take kilobytes, and a build without optimizations would need too much stack for their moves.
        Some(objects) => Box::pin(apply_objects(objects, observed, decision, ctx)).await,
        None => Ok(Vec::new()),
    }
}

async fn apply_objects(
    objects: Objects,
    observed: &mut Observed,
    decision: &Decision,
    ctx: &VmController,
) -> Result<Vec<DesiredCondition>, Error> {
    let objects = dependencies::apply(objects, observed, ctx).await?;
    let images = fetch::apply::apply(&objects.fetches, ctx).await?;
    let pod = match decision {
        Decision::Create => {
            create_pod(&objects, observed, ctx).await?;
            Vec::new()
        }
        Decision::Keep => update_pod(&objects, observed, ctx).await?,
        _ => Vec::new(),
    };
    let disks = claims::apply_changes(&objects.claim_changes, observed, ctx).await?;
    let service = service::apply(objects.service.as_ref(), observed, ctx).await?;
    let conditions = pod.into_iter().chain(disks).chain(service).chain(images);
    Ok(conditions.collect())
}

/// Deletes the pod, or sets `spec.vm.state` to `Stopped`, if that is the decision. Neither needs another object.
///
/// # Errors
/// If a request fails.
pub(super) async fn end_pod(
    observed: &Observed,
    decision: &Decision,
    ctx: &VmController,
) -> Result<(), Error> {
    let writer = ctx.scope.writer();
    match decision {
        Decision::Delete { uid, why } => {
            let reason: &'static str = why.into();
            tracing::info!(
                vm = observed.name(),
                "the operator deletes the VM's pod: {reason}"
            );
            ctx.states.deletes_pod(&observed.key(), uid);
            // The precondition protects a pod that has started since the observation, or that the deletion of the VM has orphaned.
            let is_conditional = observed.is_being_deleted()
                || matches!(why, DeleteReason::Outdated | DeleteReason::OtherClaim);
            let pod = observed.own_pod().filter(|_| is_conditional);
            let resource_version = pod.and_then(|pod| pod.resource_version());
            let unchanged = Preconditions {
                resource_version,
                ..only_uid(uid)
            };
            // An import pod has no guest, and its own short period.
            let has_guest = observed
                .own_pod()
                .is_some_and(|pod| pod.import_claim().is_none());
            let grace = has_guest.then(|| observed.vm.spec.grace_period());
            writer
                .delete::<Pod, _>(&ctx.caches.pods, &observed.name(), unchanged, grace)
                .await?;
            report::publish_shutdown(&observed.vm, ctx).await;
            Ok(())
        }
        Decision::StopAfterShutdown
            if ctx.settings.reconciler.guest_shutdown_record == GuestShutdownRecord::Spec =>
        {
            tracing::info!(
                vm = observed.name(),
                "the guest has shut down; the operator sets spec.vm.state to Stopped, as spec.guestShutdownStops requests"
            );
            // With the version that the decision is based on: a change of the VM since then has priority.
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

/// Creates the pod. If a pod of this name exists already, the next reconcile decides about it.
async fn create_pod(
    objects: &Objects<Applied>,
    observed: &mut Observed,
    ctx: &VmController,
) -> Result<(), Error> {
    let mounted = mounted::mounted(objects, observed, ctx).await?;
    // Before the pod: without the record, a PVC that is deleted under the pod would be replaced by an empty one.
    report::record_volumes(observed, mounted, ctx).await?;
    let mut pod = objects.pod.clone();
    pod.annotations_mut().extend(objects.stage.annotations());
    let pod = objects::with_short_hashes(objects::with_template_hash(pod));
    let pod = objects::with_identity(pod, &objects.identity);
    ctx.scope
        .writer()
        .create_or_get(&ctx.caches.pods, &pod)
        .await?;
    ctx.states.pod_created(&observed.key(), observed.now);
    Ok(())
}

/// Updates the resources and annotations of the present pod.
async fn update_pod(
    objects: &Objects<Applied>,
    observed: &Observed,
    ctx: &VmController,
) -> Result<Vec<DesiredCondition>, Error> {
    let pod = observed.own_pod();
    // The resources of an import pod do not change, and it has no configuration.
    let Some(pod) = pod.filter(|pod| pod.import_claim().is_none()) else {
        return Ok(Vec::new());
    };
    let (requested, resources) = pod_resize::apply(&objects.pod, pod, observed, ctx).await?;
    let versions = objects.stage.annotations();
    let is_new = versions
        .iter()
        .any(|(name, version)| pod.annotations().get(name) != Some(version));
    let refresh = refresh_volume::annotation(observed, is_new);
    let annotations = versions.into_iter().chain(requested).chain(refresh);
    annotate_pod(annotations.collect(), pod, ctx).await?;
    let shutdown_period = observed.vm.spec.shutdown_period();
    let restart = restart::required(&objects.pod, shutdown_period, pod);
    Ok(resources.into_iter().chain(restart).collect())
}

/// Patches annotations that differ. A change of the pod makes the kubelet refresh the pod's volumes at once, not at its
/// next sync up to a minute later.
async fn annotate_pod(
    mut annotations: BTreeMap<String, String>,
    pod: &PodView,
    ctx: &VmController,
) -> Result<(), Error> {
    annotations.retain(|name, version| pod.annotations().get(name) != Some(version));
    if annotations.is_empty() {
        return Ok(());
    }
    let patch = Patch::Merge(json!({"metadata": {"uid": pod.uid(), "annotations": annotations}}));
    ctx.scope
        .writer()
        .patch::<Pod, _>(&ctx.caches.pods, &pod.name_any(), &patch)
        .await
        .map(drop)
}
