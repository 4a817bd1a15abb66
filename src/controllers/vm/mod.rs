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
//! | [`plan`] | `Observed`, settings | [`plan::Plan`]: all defaults merged, all values checked; or [`plan::Invalid`] |
//! | [`objects`] | `Plan` | [`objects::Objects`]: the desired children |
//! | [`decide`] | `Observed`, `Plan` | [`decide::Decision`]: the action on the pod |
//! | [`gates::freshness`] | all of the above | whether the VM is known in its newest version, before its pod is created, deleted or changed |
//! | [`apply`] | `Objects`, `Observed`, `Decision` | only differences are written |
//! | [`gates::orphans`] | `Observed` | objects of a previous VM with the same name are deleted |
//! | [`report`] | all of the above | status and events: only differences are written |
//!
//! [`images`] downloads CD images into the image repository. [`diagnose`] finds the blocking condition of a VM that does not start or
//! stop. [`pod`] reads how a pod ended and what restarts it. [`context`] and [`state`] hold what a reconcile needs.

pub mod apply;
pub mod context;
pub mod decide;
pub mod diagnose;
#[cfg(test)]
mod fixtures;
pub mod gates;
pub mod images;
pub mod objects;
pub mod observe;
pub mod ownership;
pub mod plan;
pub mod pod;
pub mod report;
pub mod state;
pub mod views;
pub mod watches;

use crate::api::VirtualMachine;
use crate::api::conditions::{self, Wanted};
use crate::api::vm::names;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::decide::{Decision, WaitFor};
use crate::controllers::vm::diagnose::Problem;
use crate::controllers::vm::gates::freshness::{self, Confirmed};
use crate::controllers::vm::state::{VmState, VmStates};
use crate::k8s::cluster::{Cluster, Manager};
use crate::k8s::controller::{Outcome, Reconciler};
use crate::k8s::error::Error;
use crate::k8s::tasks::Tasks;
use futures::Stream;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::Store;
use std::sync::Arc;
use std::time::Duration;

/// When a service that could not be made is tried again.
const SERVICE_RECHECK: Duration = Duration::from_secs(300);

/// The shortest time until a rejected request is sent again.
const REJECTION_RETRY_MIN: Duration = Duration::from_secs(1);

/// When the removal of an orphaned object that nothing waits for is tried again.
const ORPHAN_RETRY: Duration = Duration::from_secs(60);

/// When a VM is looked at again whose pod was made, if nobody tells of that pod before.
const AFTER_CREATION: Duration = Duration::from_secs(1);

/// The operator as field manager and as reporter of events.
pub const MANAGER: Manager = Manager {
    field_manager: names::MANAGER_OPERATOR,
    reporter: names::REPORTER_OPERATOR,
    action: names::ACTION_RECONCILE,
};

impl Reconciler for Context {
    type Object = VirtualMachine;
    type State = VmState;
    const NAME: &'static str = "vm";

    fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn states(&self) -> &VmStates {
        &self.states
    }

    fn objects(&self) -> Store<VirtualMachine> {
        self.vms.reader()
    }

    fn reconcile(
        &self,
        vm: Arc<VirtualMachine>,
    ) -> impl Future<Output = Result<Outcome, Error>> + Send {
        reconcile(vm, self)
    }

    fn on_elected(self: &Arc<Self>) {
        watches::report_all_undecodable(self);
    }
}

/// Starts the watches. Returns the VMs that have changed, or whose children have.
pub fn watch(
    ctx: &Arc<Context>,
    tasks: &mut Tasks,
) -> impl Stream<Item = ObjectRef<VirtualMachine>> + Send + 'static + use<> {
    let children = watches::children(ctx, tasks);
    let sweep = images::sweep::forever(ctx.clone());
    tasks.spawn("removal of unused download pods".to_owned(), sweep);
    futures::stream::select(watches::vms(ctx), children)
}

/// Whether the VM waits for nothing but the objects of a previous VM with the same name.
fn waits_for_orphans<T>(applied: &Result<T, Error>, decision: &Decision) -> bool {
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
    let observed = report::take_back(observed, ctx).await?;
    let observed = images::progress::read(observed, ctx).await;
    if observed.is_running() {
        ctx.vm_runs(&observed.key(), observed.now);
    }
    if observed.vm.metadata.deletion_timestamp.is_some() {
        // The garbage collector takes its children away; nothing must bring them back.
        return Ok(Outcome::Done);
    }
    let mut observed = diagnose::warnings::read(observed, ctx).await;
    let plan = plan::plan(&observed, &ctx.settings.reconciler);
    let medium = plan.as_ref().ok().and_then(|plan| plan.media.wait);
    let objects = plan.as_ref().ok().map(objects::build);
    let made_of = || {
        objects
            .as_ref()
            .map(|objects| objects::made_of(&objects.pod))
    };
    let decision = decide::decide(&observed, plan.is_ok())
        .once_there(medium)
        .unless_outdated(&observed, made_of);
    let confirmed = freshness::confirmed(&observed, &decision, objects.as_ref(), ctx).await;
    if let Ok(Confirmed::Behind) = confirmed {
        tracing::debug!("the API server has a newer version of the VM; waiting for the watch");
        return Ok(Outcome::Recheck(freshness::ASK_AGAIN));
    }
    let applied = match (confirmed, objects) {
        (Err(error), _) => Err(error),
        // On the heap: objects take kilobytes, and are moved from hand to hand; a build without optimizations runs out of stack.
        (Ok(_), Some(objects)) => Box::pin(apply::apply(objects, &observed, &decision, ctx)).await,
        (Ok(_), None) => apply::end_pod(&observed, &decision, ctx)
            .await
            .map(|()| Vec::new()),
    };
    let (applied, removed) = match gates::orphans::remove(&observed, ctx).await {
        Err(error) if waits_for_orphans(&applied, &decision) => (Err(error), Ok(())),
        removed => (applied, removed),
    };
    let problem = match (&plan, &applied) {
        (Err(invalid), _) => Some(Problem::from(invalid)),
        (_, Err(error)) if error.is_rejection() => Some(Problem::rejected(error)),
        (_, Err(_)) => None,
        (Ok(_), Ok(notes)) => {
            images::in_the_way(&decision, notes).or_else(|| diagnose::explain(&observed))
        }
    };
    // A write that failed for another reason says nothing about the VM: its status stays as it is.
    if applied.is_ok() || problem.is_some() {
        // Where not everything was tried, what was told before stays.
        let notes = applied.as_deref().ok().filter(|_| plan.is_ok());
        let ignored = diagnose::ignored::ignored(&observed.vm.spec);
        let data = report::data_not_accessible(&observed, &decision);
        let notes = notes.map(|notes| {
            notes
                .iter()
                .cloned()
                .chain(ignored)
                .chain(data)
                .collect::<Vec<_>>()
        });
        let created = decision == Decision::Create && applied.is_ok();
        report::report(
            &observed,
            &decision,
            problem,
            notes.as_deref(),
            created,
            ctx,
        )
        .await?;
    }
    // Nobody tells when a name or a quota is free again.
    let refused = |notes: &[Wanted]| {
        notes
            .iter()
            .any(|note| note.type_ == conditions::SERVICE_IN_SYNC)
    };
    let again = applied
        .as_deref()
        .is_ok_and(refused)
        .then_some(SERVICE_RECHECK);
    let noted = applied.iter().flatten();
    let of_rejected = |note: &Wanted| {
        ctx.states
            .retry_after(&observed.key(), note.type_, (ctx.cluster.instant)())
    };
    let rejections = noted
        .filter_map(of_rejected)
        .min()
        .map(|after| after.max(REJECTION_RETRY_MIN));
    let repository = plan
        .iter()
        .find_map(|plan| plan.image_repository.as_ref())
        .and_then(|_| apply::repository::recheck(ctx));
    let fetches = plan
        .iter()
        .flat_map(|plan| &plan.fetches)
        .filter_map(|fetch| fetch.recheck)
        .min();
    let orphans = removed.err().map(|error| {
        tracing::warn!(%error, "cannot remove an object of a previous VM with the same name");
        ORPHAN_RETRY
    });
    // The pod as the writes have left it: the watch reports nothing new of it.
    observed.pod = ctx.caches.pods.get(&observed.name());
    let follows = decision == Decision::Keep && plan.is_ok();
    applied.map(|_| {
        decision
            .outcome(observed.now)
            .sooner(diagnose::recheck(&observed))
            .sooner(orphans)
            .sooner(again)
            .sooner(rejections)
            .sooner(fetches)
            .sooner(repository)
            .sooner(pod::refresh_volume::recheck(&observed).filter(|_| follows))
            .sooner((decision == Decision::Create).then_some(AFTER_CREATION))
    })
}
