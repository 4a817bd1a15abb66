//! When a VM is reconciled again without a change. Stores and the remembered state are read, and no request is made.

use crate::api::conditions::{self, Wanted};
use crate::controllers::vm::context::Context;
use crate::controllers::vm::decide::Decision;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::plan::Plan;
use crate::controllers::vm::{apply, diagnose, pod};
use crate::k8s::controller::Outcome;
use std::time::Duration;

/// When a Service that could not be created is tried again: nothing reports that a name or a quota is free.
const SERVICE_RETRY: Duration = Duration::from_secs(300);

/// The shortest time until a rejected request is sent again.
const REJECTION_RETRY_MIN: Duration = Duration::from_secs(1);

/// When a VM is reconciled again after the creation of its pod, if the watch has not reported the pod before.
const RECHECK_AFTER_CREATION: Duration = Duration::from_secs(1);

/// The outcome of a reconcile that has succeeded. `notes` are the additional conditions; `orphans` is when orphans are removed again.
pub fn outcome(
    mut observed: Observed,
    plan: Option<Plan>,
    decision: &Decision,
    notes: &[Wanted],
    orphans: Option<Duration>,
    ctx: &Context,
) -> Outcome {
    // The pod as the writes have left it: the watch reports nothing new of it.
    observed.pod = ctx.caches.pods.get(&ctx.key(&observed.name()));
    let is_kept = *decision == Decision::Keep && plan.is_some();
    let is_created = *decision == Decision::Create;
    decision
        .outcome(observed.now)
        .sooner(diagnose::recheck(&observed))
        .sooner(orphans)
        .sooner(service(notes))
        .sooner(rejections(&observed, notes, ctx))
        .sooner(plan.as_ref().and_then(downloads))
        .sooner(plan.as_ref().and_then(|plan| image_repository(plan, ctx)))
        .sooner(pod::refresh_volume::recheck(&observed).filter(|_| is_kept))
        .sooner(is_created.then_some(RECHECK_AFTER_CREATION))
}

fn service(notes: &[Wanted]) -> Option<Duration> {
    let mut types = notes.iter().map(|note| note.type_);
    types
        .any(|type_| type_ == conditions::SERVICE_IN_SYNC)
        .then_some(SERVICE_RETRY)
}

fn rejections(observed: &Observed, notes: &[Wanted], ctx: &Context) -> Option<Duration> {
    let (vm, now) = (observed.key(), (ctx.cluster.instant)());
    let retries = notes
        .iter()
        .filter_map(|note| ctx.states.retry_after(&vm, note.type_, now));
    retries.min().map(|after| after.max(REJECTION_RETRY_MIN))
}

fn downloads(plan: &Plan) -> Option<Duration> {
    let rechecks = plan.fetches.iter().filter_map(|fetch| fetch.recheck);
    rechecks.min()
}

fn image_repository(plan: &Plan, ctx: &Context) -> Option<Duration> {
    plan.image_repository.as_ref()?;
    apply::claims::image_repository_retry(ctx)
}
