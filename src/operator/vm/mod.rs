//! The controller of `VirtualMachine`.
//!
//! ```text
//! observe ──► plan ──► lifecycle ──► build ──► confirm ──► apply ──► leftovers ──► report
//! (caches)    (pure)   (pure)        (pure)    (asks)      (writes)  (removes)     (status, events)
//! ```
//!
//! | room | takes | gives |
//! |---|---|---|
//! | [`observe`] | the VM | [`observe::Observed`]: the VM and its children, from the caches |
//! | [`plan`] | `Observed`, settings | [`plan::Plan`]: every default merged, every value checked; or [`plan::Invalid`] |
//! | [`lifecycle`] | wanted state, pod, past ends | [`lifecycle::Decision`]: what becomes of the pod |
//! | [`build`] | `Plan` | [`build::Objects`]: every child as it should be |
//! | [`confirm`] | all of the above | whether the VM is known as it is now, where a guest that runs would feel what follows |
//! | [`apply`] | `Objects`, `Observed`, `Decision` | what differs is written, and nothing else |
//! | [`leftovers`] | `Observed` | what an earlier VM of the name has left is removed, if nobody else does that |
//! | [`report`] | all of the above | status and events: only what differs is written |
//!
//! [`fetch`] gets CD images into the image repository; [`ignored`] names fields that have no effect; [`end`] reads how a pod ended; [`unreadable`] keeps VMs that cannot be
//! read from disturbing the others; [`loss`] notes which pods others delete; [`explain`] reads a pod's and its claims' status and says what is in the way.

pub mod apply;
pub mod build;
pub mod confirm;
pub mod end;
pub mod explain;
pub mod fetch;
#[cfg(test)]
mod fixtures;
pub mod ignored;
pub mod leftovers;
pub mod lifecycle;
pub mod loss;
pub mod observe;
pub mod plan;
pub mod poke;
pub mod report;
pub mod restart;
pub mod unreadable;

use super::context::Context;
use super::controller::{Outcome, after_failure, guarded};
use super::error::Error;
use super::streams::Vms;
use crate::api::VirtualMachine;
use crate::api::conditions::{self, Wanted};
use confirm::Confirmed;
use explain::Problem;
use futures::{Stream, StreamExt};
use kube::ResourceExt;
use kube::runtime::controller::{Config, Controller, Error as ControllerError};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use lifecycle::{Decision, WaitFor};
use std::sync::Arc;
use std::time::Duration;

/// How many VMs are worked on at once: enough to keep the API server busy, few enough not to flood it.
const CONCURRENCY: u16 = 16;

/// When a service that could not be made is tried again.
const SERVICE_RECHECK: Duration = Duration::from_secs(300);

/// When a VM is looked at again whose status can wait. With hundreds that wait, each second is felt by those that come.
const DEEDS_FIRST: Duration = Duration::from_secs(2);

/// When a VM is looked at again whose pod was made, if nobody tells of that pod before.
const AFTER_CREATION: Duration = Duration::from_secs(1);

/// Runs the controller until `stop` completes and the reconciles under way have ended.
pub async fn run<S, T>(
    ctx: Arc<Context>,
    vms: Vms<S>,
    changed_children: T,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) where
    S: Stream<Item = ObjectRef<VirtualMachine>> + Send + 'static,
    T: Stream<Item = ObjectRef<VirtualMachine>> + Send + 'static,
{
    let reconcile = async |vm: Arc<VirtualMachine>, ctx: Arc<Context>| {
        guarded(&vm.name_any(), &ctx, reconcile(vm.clone(), &ctx)).await
    };
    let failed = |vm: Arc<VirtualMachine>, error: &Error, ctx: Arc<Context>| after_failure(&vm.name_any(), error, &ctx);
    let sweeping = fetch::sweep::forever(ctx.clone(), vms.store.clone());
    // The store is all that the controller has to know of VMs.
    let reconciling = Controller::for_stream(futures::stream::pending::<watcher::Result<VirtualMachine>>(), vms.store)
        .reconcile_on(vms.changed)
        .reconcile_on(changed_children)
        .with_config(Config::default().concurrency(CONCURRENCY))
        .graceful_shutdown_on(stop)
        .run(reconcile, failed, ctx.clone())
        .for_each(|result| {
            // All else reports itself.
            if let Err(ControllerError::ObjectNotFound(object)) = result {
                ctx.forget(&object.name);
            }
            futures::future::ready(())
        });
    tokio::select! {
        biased;
        () = reconciling => {}
        () = sweeping => {}
    }
}

/// Whether nobody misses the VM's first status for a moment: where many VMs are started at once, all get their pods
/// before it is said of each that it is starting. So the last of them starts as early as it can.
fn can_wait_to_be_told(observed: &observe::Observed, ctx: &Context) -> bool {
    let told = conditions::find(observed.conditions(), conditions::READY).is_some();
    !told && !observed.is_running() && ctx.is_one_of_many(&observed.name(), observed.now)
}

/// Whether nothing but what an earlier VM has left is in the way of this one.
fn waits_for_leftovers<T>(applied: &Result<T, Error>, decision: &Decision) -> bool {
    match applied {
        Ok(_) => *decision == Decision::Wait(WaitFor::OtherPod),
        Err(error) => matches!(error, Error::OfEarlier { .. }),
    }
}

/// Brings the objects of one VM in line with it.
///
/// # Errors
/// If the API server could not be asked or refuses a write.
pub async fn reconcile(vm: Arc<VirtualMachine>, ctx: &Context) -> Result<Outcome, Error> {
    let observed = observe::observe(vm, ctx);
    if let Some(left) = ctx.versions.wait(&observed.vm, (ctx.instant)()) {
        tracing::debug!(?left, "the VM was known as newer; waiting for that");
        return Ok(Outcome::Recheck(left));
    }
    let observed = report::take_back(observed, ctx).await?;
    let observed = fetch::progress::read(observed, ctx).await;
    if observed.is_running() {
        ctx.vm_runs(&observed.name(), observed.now);
    }
    let observed = loss::note(observed, &ctx.losses);
    if observed.vm.metadata.deletion_timestamp.is_some() {
        // The garbage collector takes its children away; nothing must bring them back.
        return Ok(Outcome::Done);
    }
    let plan = plan::plan(&observed, &ctx.settings().reconciler);
    let medium = plan.as_ref().ok().and_then(|plan| plan.media.wait);
    let objects = plan.as_ref().ok().map(build::build);
    let made_of = || objects.as_ref().map(|objects| build::made_of(&objects.pod));
    let decision = lifecycle::decide(&observed, plan.is_ok()).once_there(medium).unless_outdated(&observed, made_of);
    let confirmed = confirm::confirmed(&observed, &decision, objects.as_ref(), ctx).await;
    if let Ok(Confirmed::Behind { ask_again }) = confirmed {
        tracing::debug!("the API server knows something newer of the VM; waiting for that");
        return Ok(Outcome::Recheck(ask_again));
    }
    let applied = match (confirmed, objects) {
        (Err(error), _) => Err(error),
        // On the heap: objects take kilobytes, and are moved from hand to hand; a build without optimizations runs out of stack.
        (Ok(_), Some(objects)) => Box::pin(apply::apply(objects, &observed, &decision, ctx)).await,
        (Ok(_), None) => apply::end_pod(&observed, &decision, ctx).await.map(|()| Vec::new()),
    };
    let (applied, leftovers) = match leftovers::remove(&observed, ctx).await {
        Ok(again) => (applied, again),
        // What keeps it there is what is in the VM's way.
        Err(error) if waits_for_leftovers(&applied, &decision) => (Err(error), None),
        Err(error) => {
            tracing::warn!(%error, "what an earlier VM has left is still there");
            (applied, Some(ctx.garbage))
        }
    };
    let problem = match (&plan, &applied) {
        (Err(invalid), _) => Some(Problem::from(invalid)),
        (_, Err(error)) if error.is_rejection() => Some(Problem::rejected(error)),
        (_, Err(_)) => None,
        (Ok(_), Ok(notes)) => fetch::in_the_way(&decision, notes).or_else(|| explain::explain(&observed)),
    };
    let is_on_its_way = matches!(decision, Decision::Create | Decision::Keep) && applied.is_ok() && problem.is_none();
    if is_on_its_way && can_wait_to_be_told(&observed, ctx) {
        return Ok(Outcome::Recheck(DEEDS_FIRST));
    }
    // A write that failed for another reason says nothing about the VM: its status stays as it is.
    if applied.is_ok() || problem.is_some() {
        // Where not everything was tried, what was told before stays.
        let notes = applied.as_deref().ok().filter(|_| plan.is_ok());
        let ignored = ignored::ignored(&observed.vm.spec);
        let data = report::data_not_accessible(&observed, &decision);
        let notes = notes.map(|notes| notes.iter().cloned().chain(ignored).chain(data).collect::<Vec<_>>());
        let created = decision == Decision::Create && applied.is_ok();
        report::report(&observed, &decision, problem, notes.as_deref(), created, ctx).await?;
    }
    // Nobody tells when a name or a quota is free again.
    let refused = |notes: &[Wanted]| notes.iter().any(|note| note.type_ == conditions::SERVICE_IN_SYNC);
    let again = applied.as_deref().is_ok_and(refused).then_some(SERVICE_RECHECK);
    let noted = applied.iter().flatten();
    let of_refused = |note: &Wanted| ctx.refusals.recheck(&observed.name(), note.type_, (ctx.instant)());
    let refusals = noted.filter_map(of_refused).min().map(|after| after.max(DEEDS_FIRST));
    let repository =
        plan.iter().find_map(|plan| plan.image_repository.as_ref()).and_then(|_| apply::repository::recheck(ctx));
    let fetches = plan.iter().flat_map(|plan| &plan.fetches).filter_map(|fetch| fetch.recheck).min();
    applied.map(|_| {
        decision
            .outcome(observed.now)
            .sooner(explain::recheck(&observed))
            .sooner(leftovers)
            .sooner(again)
            .sooner(refusals)
            .sooner(fetches)
            .sooner(repository)
            .sooner(poke::recheck(&observed))
            .sooner((decision == Decision::Create).then_some(AFTER_CREATION))
    })
}
