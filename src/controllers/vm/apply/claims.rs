//! (client) PVCs: created if they are missing; size, attributes class, labels and annotations follow the spec. Nothing else of a PVC is
//! written, and no PVC is deleted.

use crate::api::conditions::find;
use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition};
use crate::api::vm::names;
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::diagnose;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::plan::ClaimChange;
use crate::controllers::vm::views::other_owner_of;
use crate::k8s::error::Error;
use crate::k8s::events;
use crate::k8s::rejection::RETRY_TEXT;
use crate::k8s::views::ClaimView;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::Patch;
use kube::runtime::events::EventType;
use kube::{Resource, ResourceExt};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Creates the PVCs that are missing. All are tried; of several errors, the first in the order of the parameters is returned.
pub(super) async fn create_missing(
    runner_data: &PersistentVolumeClaim,
    disks: &[PersistentVolumeClaim],
    image_repository: Option<&PersistentVolumeClaim>,
    observed: &Observed,
    ctx: &VmController,
) -> Result<(), Error> {
    let claims = [runner_data]
        .into_iter()
        .chain(disks)
        .map(|claim| create(claim, observed, ctx));
    let repository = image_repository
        .into_iter()
        .map(|claim| create_image_repository(claim, observed, ctx));
    let (claims, repository) = futures::future::join(
        futures::future::join_all(claims),
        futures::future::join_all(repository),
    )
    .await;
    claims.into_iter().chain(repository).collect()
}

async fn create(
    claim: &PersistentVolumeClaim,
    observed: &Observed,
    ctx: &VmController,
) -> Result<(), Error> {
    let name = claim.name_any();
    if observed.claims.contains_key(&name) {
        return Ok(());
    }
    let present = ctx
        .scope
        .writer()
        .create_or_get(&ctx.caches.claims, claim)
        .await?;
    check_vm(&present, observed)
}

/// Checks that the labels of the PVC name no other VM. A user may have created a PVC without labels for this VM.
pub(super) fn check_vm(claim: &ClaimView, observed: &Observed) -> Result<(), Error> {
    match other_owner_of(claim, &observed.name()) {
        None => Ok(()),
        Some(vm) => Err(Error::OwnedByOther {
            kind: "PersistentVolumeClaim",
            name: claim.name_any(),
            owner: Some(format!("VM {vm:?}")),
        }),
    }
}

/// Creates the namespace's image repository, also for a VM without a CD drive. Such a VM starts without it: if the API
/// server rejects the repository, an event reports that, and one of these VMs retries after 1 s, 2 s, 4 s … 5 min.
async fn create_image_repository(
    claim: &PersistentVolumeClaim,
    observed: &Observed,
    ctx: &VmController,
) -> Result<(), Error> {
    if observed.has_cd_drive() {
        return create(claim, observed, ctx).await;
    }
    if image_repository_retry(ctx).is_some_and(|left| !left.is_zero()) {
        return Ok(());
    }
    let key = ctx.scope.key(&claim.name_any());
    match create(claim, observed, ctx).await {
        Err(error) if error.is_rejection() => {
            ctx.states
                .repository_rejected(&key, conditions::READY, (ctx.scope.cluster.instant)());
            report_missing_repository(&error, observed, ctx).await;
            Ok(())
        }
        result => {
            ctx.states.repository_accepted(&key, conditions::READY);
            result
        }
    }
}

async fn report_missing_repository(error: &Error, observed: &Observed, ctx: &VmController) {
    tracing::warn!(%error, "cannot create the PVC vmop-image-repository, which holds CD images; the operator retries. VMs \
        with a CD drive do not start without this PVC");
    let diagnosis = diagnose::rejected(error, None);
    let message = format!(
        "cannot create the PVC vmop-image-repository, which holds CD images; this VM can start without the PVC. Cause: {diagnosis}"
    );
    let vm = observed.vm.object_ref(&());
    let reason = diagnosis.reason.as_str();
    events::publish(
        &ctx.scope.cluster,
        &vm,
        EventType::Warning,
        reason,
        &message,
    )
    .await;
}

/// The time until a rejected image repository is created again. Only VMs with the repository in their plan try it.
pub fn image_repository_retry(ctx: &VmController) -> Option<Duration> {
    ctx.states.retry_after(
        &ctx.scope.key(names::IMAGE_REPOSITORY_CLAIM),
        conditions::READY,
        (ctx.scope.cluster.instant)(),
    )
}

/// Patches present PVCs as far as PVCs can change. Returns a condition about changes that are not possible, or that the
/// API server has rejected. A rejected change is retried when the VM changes, and after a delay.
///
/// # Errors
/// If a request fails for another reason than a rejection.
pub(super) async fn apply_changes(
    changes: &[(String, ClaimChange)],
    observed: &Observed,
    ctx: &VmController,
) -> Result<Option<DesiredCondition>, Error> {
    // Read once for all PVCs, so that each of several is retried.
    let reported = rejections_to_keep(observed, ctx);
    let (mut problems, mut is_rejected) = (Vec::new(), false);
    for (name, change) in changes {
        let problem = match change {
            ClaimChange::Never { field, to, from } => Some((
                ConditionReason::ClaimImmutable,
                format!(
                    "PVC {name:?} has the {field} {from:?}, which cannot be changed to {to:?}; set {field} of the disk to \
                     {from:?}. Or rename the disk: the operator then creates a new PVC. The old PVC retains the data"
                ),
            )),
            ClaimChange::Recreate(outdated) => {
                let (problem, next_step) = outdated.message(&ctx.scope.namespace);
                Some((
                    ConditionReason::ClaimImmutable,
                    format!("{problem}; {next_step}"),
                ))
            }
            ClaimChange::Shrink { to, from } => Some((
                ConditionReason::ShrinkRefused,
                format!(
                    "PVC {name:?} has a size of {from} and cannot shrink to {to}; set the size of the disk to {from} or more"
                ),
            )),
            ClaimChange::To {
                size,
                attributes_class,
            } => {
                let (to, spec) = resize(size.as_deref(), attributes_class.as_deref());
                let body = json!({"spec": spec});
                let rejection = patch(name, &to, body, reported, observed, ctx).await?;
                is_rejected |= rejection.is_some();
                rejection.map(|message| (ConditionReason::ExpansionRefused, message))
            }
            ClaimChange::Metadata {
                labels,
                annotations,
            } => {
                let names: Vec<&str> = labels
                    .keys()
                    .chain(annotations.keys())
                    .map(|it| &**it)
                    .collect();
                let body = json!({"metadata": {"labels": labels, "annotations": annotations}});
                let rejection =
                    patch(name, &names.join(", "), body, reported, observed, ctx).await?;
                is_rejected |= rejection.is_some();
                rejection.map(|message| (ConditionReason::Rejected, message))
            }
        };
        problems.extend(problem);
    }
    if !is_rejected {
        ctx.states
            .accepted(&observed.key(), conditions::DISKS_IN_SYNC);
    }
    Ok(condition(problems))
}

/// One condition for all problems, with the reason of the first.
fn condition(problems: Vec<(ConditionReason, String)>) -> Option<DesiredCondition> {
    let reason = problems.first()?.0;
    let messages: Vec<String> = problems.into_iter().map(|(_, message)| message).collect();
    Some(DesiredCondition {
        type_: conditions::DISKS_IN_SYNC,
        status: false,
        reason,
        message: messages.join("\n"),
    })
}

/// The message of the present condition, until its rejected changes are due again. It is for the present generation of the VM.
fn rejections_to_keep<'a>(observed: &'a Observed, ctx: &VmController) -> &'a str {
    let (vm, now) = (observed.key(), (ctx.scope.cluster.instant)());
    find(observed.conditions(), conditions::DISKS_IN_SYNC)
        .filter(|present| present.observed_generation == observed.vm.metadata.generation)
        .filter(|_| {
            ctx.states
                .is_retry_delayed(&vm, conditions::DISKS_IN_SYNC, now)
        })
        .map_or("", |present| present.message.as_str())
}

/// Another size or attributes class, in the words of messages and as fields of the spec.
fn resize(size: Option<&str>, attributes_class: Option<&str>) -> (String, Map<String, Value>) {
    let desired: Vec<&str> = size.into_iter().chain(attributes_class).collect();
    let size = size.map(|size| ("resources", json!({"requests": {"storage": size}})));
    let class = attributes_class.map(|class| ("volumeAttributesClassName", json!(class)));
    let spec = size.into_iter().chain(class);
    let spec = spec.map(|(field, value)| (field.to_owned(), value));
    (desired.join(", "), spec.collect())
}

/// Patches a PVC, unless `reported` contains a rejection of the same change, which has the words `to`. Returns the message of the
/// rejection.
async fn patch(
    name: &str,
    to: &str,
    body: Value,
    reported: &str,
    observed: &Observed,
    ctx: &VmController,
) -> Result<Option<String>, Error> {
    let start = format!("the API server rejects the change of PVC {name:?} to {to}: ");
    if let Some(message) = reported.lines().find(|line| line.starts_with(&start)) {
        return Ok(Some(message.to_owned()));
    }
    let answer = ctx
        .scope
        .writer()
        .patch::<PersistentVolumeClaim, _>(&ctx.caches.claims, name, &Patch::Merge(body))
        .await;
    match answer {
        Ok(_) => Ok(None),
        Err(error) if error.is_rejection() => {
            // Recorded at once: if the request for another PVC fails, this one is not sent again earlier.
            let now = (ctx.scope.cluster.instant)();
            ctx.states
                .rejected(&observed.key(), conditions::DISKS_IN_SYNC, now);
            let error = error.to_string().replace('\n', " ");
            Ok(Some(format!(
                "{start}{error}; the operator retries the change of the PVC {RETRY_TEXT}, and when the VM's spec changes"
            )))
        }
        Err(error) => Err(error),
    }
}
