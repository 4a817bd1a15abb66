//! The controller of `VirtualMachine`.
//!
//! ```text
//! observe ──► plan ──► objects ──► decide ──► freshness ──► apply ──► orphans ──► report
//! (stores)    (pure)   (pure)      (pure)     (gate)        (writes)  (gate)      (status, events)
//! ```
//!
//! | step | input | output |
//! |---|---|---|
//! | [`observe`] | the VM | [`observe::Observed`]: the VM and its children, from the stores |
//! | [`plan`] | `Observed`, settings | [`plan::Plan`]: all defaults merged, all values checked; or a [`Diagnosis`] |
//! | [`objects`] | `Plan` | [`objects::Objects`]: the desired children |
//! | [`decide`] | `Observed`, `Plan` | [`decide::Decision`]: the action on the pod |
//! | [`gates::freshness`] | all of the above | whether the VM is known in its newest version, before its pod is created, deleted or changed |
//! | [`apply`] | `Objects<Prepared>`, `Observed`, `Decision` | `Objects<Applied>`, then the pod: only differences are written |
//! | [`gates::orphans`] | `Observed` | objects of a previous VM with the same name are deleted |
//! | [`report`] | all of the above | status and events: only differences are written |
//!
//! The step observe reads the runner's report ([`runner_report`]). The step report copies it into the VM's status, with `Ready`.
//!
//! [`fetch`] downloads CD images into the image repository. [`diagnose`] finds the blocking condition of a VM that does
//! not start or stop. [`pod`] handles changes and restarts of a running pod. [`context`] has the stores and the
//! configuration, [`state`] the remembered state of each VM. [`import`] fills disks with images before the first start.
//! [`claim_names`] decides which VM has a PVC name, and [`volumes`] whether a used PVC is lost.

pub mod apply;
pub mod claim_names;
pub mod context;
mod copies;
pub mod copy_source;
pub mod decide;
pub mod diagnose;
pub mod fetch;
#[cfg(test)]
mod fixtures;
pub mod gates;
pub mod images;
pub mod import;
pub mod metrics;
pub mod name_conflicts;
pub mod objects;
pub mod observe;
pub mod ownership;
pub mod plan;
pub mod pod;
pub mod report;
mod requeue;
pub mod runner_report;
pub mod state;
pub mod status;
pub mod views;
pub mod volumes;
pub mod watches;

use crate::api::VirtualMachine;
use crate::api::vm::conditions::DesiredCondition;
use crate::api::vm::diagnosis::Diagnosis;
use crate::api::vm::names;
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::decide::{Decision, WaitFor};
use crate::controllers::vm::gates::freshness::{self, Freshness};
use crate::controllers::vm::objects::Objects;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::plan::Plan;
use crate::controllers::vm::state::{VmState, VmStates};
use crate::k8s::cluster::{Cluster, Manager};
use crate::k8s::controller::{Outcome, Reconciler};
use crate::k8s::error::Error;
use crate::k8s::key::ObjectKey;
use crate::k8s::tasks::Tasks;
use crate::k8s::undecodable::Undecodable;
use futures::Stream;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::Store;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::MutexGuard;

/// Internal errors of the API server in a row after which the status of the VM reports them.
const INTERNAL_ERRORS_MIN: u32 = 3;
/// Delay after a failed removal of an orphaned object that does not block the VM.
const ORPHAN_RETRY_DELAY: Duration = Duration::from_secs(60);

/// The operator as field manager and as reporter of events.
pub const MANAGER: Manager = Manager {
    field_manager: names::MANAGER_OPERATOR,
    reporter: names::REPORTER_OPERATOR,
    action: names::ACTION_RECONCILE,
};

impl Reconciler for VmController {
    type Object = VirtualMachine;
    type State = VmState;
    const NAME: &'static str = "vm";
    // The first reconcile of a VM waits for about ten requests, so it needs little of a processor.
    const CONCURRENCY: u16 = 32;

    fn cluster(&self) -> &Cluster {
        &self.scope.cluster
    }

    fn states(&self) -> &VmStates {
        &self.states
    }

    fn objects(&self) -> Store<VirtualMachine> {
        self.vms.reader()
    }

    // The status of a VM that starts or runs does not wait for the creation of others.
    fn has_priority(&self, vm: &ObjectKey) -> bool {
        self.caches.pods.get(vm).is_some()
    }

    fn reconcile(
        &self,
        vm: Arc<VirtualMachine>,
    ) -> impl Future<Output = Result<Outcome, Error>> + Send {
        reconcile(vm, self)
    }

    fn undecodable(&self) -> &[Arc<Undecodable>] {
        &self.undecodable
    }

    fn update_own_metrics(&self) {
        let vms = self.vms.reader().state();
        self.metrics
            .set_vms(vms.iter().map(|vm| metrics::ready_reason(vm)));
    }
}

/// Starts the watches, and the removal of unused download pods. Returns the VMs to reconcile: those that have changed, and those
/// with a changed child.
pub fn watch(
    ctx: &Arc<VmController>,
    tasks: &mut Tasks,
) -> impl Stream<Item = ObjectRef<VirtualMachine>> + Send + 'static + use<> {
    let children = watches::children(ctx, tasks);
    let sweep = fetch::sweep::run(ctx.clone());
    tasks.spawn("removal of unused download pods".to_owned(), sweep);
    futures::stream::select(watches::vms(ctx), children)
}

fn observe(vm: Arc<VirtualMachine>, ctx: &VmController) -> Observed {
    let mut observed = observe::observe(vm, ctx);
    observed.copy_source = copies::observe(&observed, ctx);
    observed
}

/// Reconciles one VM.
///
/// # Errors
/// If a request fails. A rejection by the API server is reported in the status before it is returned.
pub async fn reconcile(vm: Arc<VirtualMachine>, ctx: &VmController) -> Result<Outcome, Error> {
    let observed = observe(vm, ctx);
    let (observed, turn) = lock_name_conflicts(observed, ctx).await;
    let mut observed = read_more(observed, ctx).await?;
    if observed.is_being_deleted() {
        return reconcile_deleted(&observed, ctx).await;
    }
    let plan = plan::plan(&observed, &ctx.settings.reconciler);
    let objects = plan.as_ref().ok().map(objects::build);
    let decision = decide_with_objects(&observed, &plan, objects.as_ref());
    let applied = match freshness::check(&mut observed, &decision, objects.as_ref(), ctx).await {
        Ok(Freshness::Current) => apply::apply(objects, &mut observed, &decision, ctx).await,
        Ok(Freshness::Stale) => {
            tracing::debug!(
                "the API server has a newer version of the VM than the operator's watch has delivered; the operator waits for \
                 the watch"
            );
            return Ok(Outcome::Recheck(freshness::RECHECK_DELAY));
        }
        Err(error) => Err(error),
    };
    drop(turn);
    let created = runner_report::create_missing(&observed, ctx).await;
    let applied = applied.and_then(|conditions| created.map(|()| conditions));
    let (applied, orphans) = delete_orphans(applied, &observed, &decision, ctx).await;
    report_all(&observed, &plan, &decision, applied.as_deref(), ctx).await?;
    let plan = plan.ok();
    applied.map(|conditions| requeue::outcome(observed, plan, &decision, &conditions, orphans, ctx))
}

/// Reconciles a VM that is being deleted. Its pod stops, because finalizers of other programs can delay the deletion of the VM for
/// any time. The garbage collector deletes the other children. None of them is created again.
async fn reconcile_deleted(observed: &Observed, ctx: &VmController) -> Result<Outcome, Error> {
    let outcome = Outcome::Done.recheck_within(observed.copy.delay());
    if observe::orphans_pod(&observed.vm) {
        // The deletion leaves the pod, which goes on.
        runner_report::copy(observed, ctx).await?;
        return Ok(outcome);
    }
    let decision = decide::decide(observed, false);
    apply::end_pod(observed, &decision, ctx).await?;
    let problem = diagnose::explain(observed);
    match report::report(observed, &decision, problem, None, false, ctx).await {
        Err(error) if error.is_absence() => Ok(outcome),
        result => result.map(|()| outcome.recheck_within(diagnose::recheck(observed))),
    }
}

/// Waits until no other VM with a shared PVC name is reconciled, and observes the VM again. See [`VmController::name_conflict_lock`].
async fn lock_name_conflicts(
    observed: Observed,
    ctx: &VmController,
) -> (Observed, Option<MutexGuard<'_, ()>>) {
    if observed.name_conflicts.is_empty() {
        return (observed, None);
    }
    let turn = ctx.name_conflict_lock.lock().await;
    let newest = ctx.vms.get(&observed.key()).unwrap_or(observed.vm);
    (observe(newest, ctx), Some(turn))
}

/// Resets the status if the runner has exited. Adds information that is not in the stores: the progress of downloads, and warnings
/// about the pod and the PVCs.
async fn read_more(observed: Observed, ctx: &VmController) -> Result<Observed, Error> {
    let observed = gates::stopped_claims::confirm(observed, ctx).await?;
    let observed = runner_report::reset_stopped_runner(observed, ctx).await?;
    let observed = runner_report::take(observed, ctx);
    let observed = fetch::progress::read(observed, ctx).await;
    if observed.is_running() {
        ctx.record_vm_start(&observed.key(), observed.now);
    }
    if observed.is_being_deleted() {
        return Ok(observed);
    }
    Ok(diagnose::warnings::read(observed, ctx).await)
}

/// The decision, corrected for a missing boot image and for a pod with an outdated template.
fn decide_with_objects(
    observed: &Observed,
    plan: &Result<Plan, Diagnosis>,
    objects: Option<&Objects>,
) -> Decision {
    // An import needs no CD image.
    let media = plan.as_ref().ok().filter(|plan| plan.import.is_none());
    let boot_image_deadline = media.and_then(|plan| plan.media.wait);
    let template_hash = || objects.map(|objects| objects::template_hash(&objects.pod));
    decide::decide(observed, plan.is_ok())
        .unless_boot_image_is_missing(boot_image_deadline)
        .unless_outdated(observed, template_hash)
}

/// Deletes orphaned objects. Returns the result of the reconcile, and the delay before a failed deletion is retried.
async fn delete_orphans(
    applied: Result<Vec<DesiredCondition>, Error>,
    observed: &Observed,
    decision: &Decision,
    ctx: &VmController,
) -> (Result<Vec<DesiredCondition>, Error>, Option<Duration>) {
    let Err(error) = gates::orphans::delete_orphans(observed, ctx).await else {
        return (applied, None);
    };
    let waits_for_orphans = match &applied {
        Ok(_) => *decision == Decision::Wait(WaitFor::OtherPod),
        Err(error) => matches!(error, Error::OwnedByPrevious { .. }),
    };
    if waits_for_orphans {
        return (Err(error), None);
    }
    tracing::warn!(%error, "cannot delete an orphaned object of a deleted VM that had the same name as this VM; the operator \
        tries again");
    (applied, Some(ORPHAN_RETRY_DELAY))
}

/// Reports the blocking condition and the additional conditions.
async fn report_all(
    observed: &Observed,
    plan: &Result<Plan, Diagnosis>,
    decision: &Decision,
    applied: Result<&[DesiredCondition], &Error>,
    ctx: &VmController,
) -> Result<(), Error> {
    // The usual cause is a webhook that does not answer.
    let is_internal = applied.is_err_and(|error| error.code() == Some(500));
    let internal_errors = ctx
        .states
        .count_internal_errors(&observed.key(), is_internal);
    let problem = match (plan, applied) {
        (Err(invalid), _) => Some(invalid.clone()),
        (_, Err(error)) if error.is_rejection() || internal_errors >= INTERNAL_ERRORS_MIN => {
            Some(diagnose::rejected(error, Some(&observed.vm.spec)))
        }
        // The exit of a pod is recorded in any case, so that the VM starts again.
        (_, Err(_))
            if matches!(
                decision,
                Decision::Remember(_) | Decision::RecordImport { .. } | Decision::StopAfterShutdown
            ) =>
        {
            None
        }
        // Other errors are not about the VM. The operator's part of its status is kept.
        (_, Err(_)) => return runner_report::copy(observed, ctx).await,
        (Ok(plan), Ok(conditions)) => diagnose::media::explain(decision, conditions)
            .or_else(|| diagnose::explain(observed))
            .map(|problem| plan.with_outdated_claim(problem)),
    };
    // Without a plan or after an error, the additional conditions are unknown and kept.
    let conditions = applied.ok().filter(|_| plan.is_ok()).map(|conditions| {
        let ignored = diagnose::ignored::ignored(&observed.vm.spec);
        let data = report::data_not_accessible(observed, decision);
        let unnamed = diagnose::unnamed_disks::unnamed_disks(&observed.vm);
        let pod = plan.as_ref().ok().map(|plan| &plan.pod);
        let limit =
            pod.and_then(|pod| diagnose::memory_limit::too_low(&pod.resources, pod.needed_memory));
        let all = conditions
            .iter()
            .cloned()
            .chain(ignored)
            .chain(data)
            .chain(unnamed)
            .chain(limit);
        all.collect::<Vec<_>>()
    });
    let created = *decision == Decision::Create && applied.is_ok();
    let conditions = conditions.as_deref();
    report::report(observed, decision, problem, conditions, created, ctx).await
}
