//! The time of a VM's next reconcile if nothing changes. It is derived from stores and remembered state; no request is made.

use crate::api::vm::State;
use crate::api::vm::conditions::{self, DesiredCondition};
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::decide::Decision;
use crate::controllers::vm::fetch::PROGRESS_INTERVAL;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::plan::{Plan, can_grow};
use crate::controllers::vm::{apply, copy_source, diagnose, import, pod, report, runner_report};
use crate::k8s::controller::Outcome;
use std::time::Duration;

/// Delay after a rejected Service. No watch reports that a name or a quota has become free.
const SERVICE_RETRY_DELAY: Duration = Duration::from_secs(300);

/// Minimum delay before a rejected request is sent again.
const REJECTION_RETRY_MIN: Duration = Duration::from_secs(1);

/// Delay after the creation of a pod, if the watch has not reported the pod before.
const RECHECK_AFTER_CREATION: Duration = Duration::from_secs(1);

/// Delay after a change of the pod, if its response was that the kubelet has allocated the memory.
const RECHECK_AFTER_RESIZE: Duration = Duration::from_secs(1);

/// Delay while the name of a PVC belongs to another VM.
const NAME_CONFLICT_RECHECK_DELAY: Duration = Duration::from_secs(60);

/// The outcome of a successful reconcile. `orphans` is the delay before the next removal of orphaned objects.
pub fn outcome(
    mut observed: Observed,
    plan: Option<Plan>,
    decision: &Decision,
    conditions: &[DesiredCondition],
    orphans: Option<Duration>,
    ctx: &VmController,
) -> Outcome {
    // The response to the last write. The watch does not report it again.
    observed.pod = ctx.caches.pods.get(&ctx.scope.key(&observed.name()));
    let is_kept = *decision == Decision::Keep && plan.is_some();
    let is_created = *decision == Decision::Create;
    let can_grow = plan
        .as_ref()
        .is_some_and(|plan| is_kept && can_grow(plan, &observed));
    decision
        .outcome(observed.now)
        .recheck_within(diagnose::recheck(&observed))
        .recheck_within(report::recovery(&observed))
        .recheck_within(orphans)
        .recheck_within(name_conflicts(&observed).filter(|_| plan.is_none()))
        .recheck_within(service(conditions))
        .recheck_within(rejections(&observed, conditions, ctx))
        .recheck_within(plan.as_ref().and_then(downloads))
        .recheck_within(running_import(&observed))
        .recheck_within(copy(&observed).filter(|_| plan.is_none()))
        .recheck_within(plan.as_ref().and_then(|plan| image_repository(plan, ctx)))
        .recheck_within(pod::refresh_volume::recheck(&observed).filter(|_| is_kept))
        .recheck_within(is_created.then_some(RECHECK_AFTER_CREATION))
        .recheck_within(can_grow.then_some(RECHECK_AFTER_RESIZE))
        .recheck_within(runner_report::recheck(observed, ctx))
}

/// A VM may wait for the PVC name of another VM. Nothing reports that the other VM is deleted or has other disks.
fn name_conflicts(observed: &Observed) -> Option<Duration> {
    (!observed.name_conflicts.is_empty()).then_some(NAME_CONFLICT_RECHECK_DELAY)
}

fn service(conditions: &[DesiredCondition]) -> Option<Duration> {
    conditions
        .iter()
        .any(|condition| condition.type_ == conditions::SERVICE_IN_SYNC)
        .then_some(SERVICE_RETRY_DELAY)
}

fn rejections(
    observed: &Observed,
    conditions: &[DesiredCondition],
    ctx: &VmController,
) -> Option<Duration> {
    let (vm, now) = (observed.key(), (ctx.scope.cluster.instant)());
    let retries = conditions
        .iter()
        .filter_map(|condition| ctx.states.retry_after(&vm, condition.type_, now));
    retries.min().map(|after| after.max(REJECTION_RETRY_MIN))
}

fn downloads(plan: &Plan) -> Option<Duration> {
    let rechecks = plan.fetches.iter().filter_map(|fetch| fetch.recheck);
    rechecks.min()
}

/// The progress of an import is in the log of its pod.
fn running_import(observed: &Observed) -> Option<Duration> {
    let pod = observed.own_pod()?;
    let is_running = pod.import_claim().is_some() && pod.status.phase == "Running";
    is_running.then_some(PROGRESS_INTERVAL)
}

/// A copy that waits for its source.
fn copy(observed: &Observed) -> Option<Duration> {
    let due = import::due(observed)?;
    let is_wanted = observed.pod.is_none() && observed.desired_state() == State::Running;
    let waits = is_wanted && due.source.pvc.is_some();
    waits.then_some(copy_source::RECHECK_DELAY)
}

fn image_repository(plan: &Plan, ctx: &VmController) -> Option<Duration> {
    plan.image_repository.as_ref()?;
    apply::claims::image_repository_retry(ctx)
}
