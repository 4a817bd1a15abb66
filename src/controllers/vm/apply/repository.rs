//! (client) The namespace's image repository: made with the first VM, whether or not that one has a CD drive.

use crate::api::conditions;
use crate::api::vm::names;
use crate::controllers::vm::apply::claims;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::diagnose;
use crate::controllers::vm::observe::Observed;
use crate::k8s::error::Error;
use crate::k8s::events;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::events::EventType;
use kube::{Resource, ResourceExt};
use std::time::Duration;

/// Makes it, if there is none. Where the API server refuses that, VMs without a CD drive do without: an event says so. For
/// them it is tried again after 1 s, 2 s, 4 s … 5 min, by whichever is looked at first.
pub(super) async fn ensure(
    claim: &PersistentVolumeClaim,
    observed: &Observed,
    ctx: &Context,
) -> Result<(), Error> {
    let key = ctx.key(&claim.name_any());
    if observed.has_cd_drive() {
        return claims::ensure(claim, observed, ctx).await;
    }
    if recheck(ctx).is_some_and(|left| !left.is_zero()) {
        return Ok(());
    }
    match claims::ensure(claim, observed, ctx).await {
        Err(error) if error.is_rejection() => {
            ctx.states
                .repository_rejected(&key, conditions::READY, (ctx.cluster.instant)());
            let diagnosis = diagnose::rejected(&error);
            tracing::warn!(%error, "no image repository; VMs without a CD drive do without");
            let note = format!("the image repository, which this VM does without: {diagnosis}");
            let vm = observed.vm.object_ref(&());
            events::publish(
                &ctx.cluster,
                &vm,
                EventType::Warning,
                diagnosis.reason.as_str(),
                &note,
            )
            .await;
            Ok(())
        }
        done => {
            ctx.states.accepted(&key, conditions::READY);
            done
        }
    }
}

/// When it is tried again, where it was refused. Only for a VM that wants it made: any other's next look would not try it.
pub fn recheck(ctx: &Context) -> Option<Duration> {
    ctx.states.retry_after(
        &ctx.key(names::IMAGE_REPOSITORY_CLAIM),
        conditions::READY,
        (ctx.cluster.instant)(),
    )
}
