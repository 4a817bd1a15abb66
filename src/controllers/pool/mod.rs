//! The controller of `VmPool` and `VmAssignment`.
//!
//! ```text
//! observe ──► decide ──► apply ──┐ until nothing is left to do ──► report
//! (stores)    (pure)     (writes)│                                 (status)
//!    ▲───────────────────────────┘
//! ```
//!
//! | step | input | output |
//! |---|---|---|
//! | [`observe`] | the pool | [`facts::Facts`]: the pool, its members and its assignments, from the stores |
//! | [`decide`] | `Facts` | [`action::Decision`]: independent writes, and the next deadline |
//! | [`apply`] | `Decision` | each write has a precondition; the stores have the responses |
//! | [`report`] | `Facts` | the status of the pool, if it differs |
//!
//! A user has a VM if the assignment names the VM by UID, the VM names the assignment by UID, the condition `Bound` of
//! the assignment is true, and neither is being deleted. Both fields have one value, and each write has the resource
//! version of its object as a precondition. So a VM never belongs to two users, whatever a store, a lost response or a
//! second operator does.
//!
//! [`orphans`] is a second controller on the same stores. It takes care of VMs of a pool that does not exist.

pub mod action;
pub mod apply;
pub mod context;
pub mod decide;
pub mod facts;
pub mod metrics;
pub mod observe;
pub mod orphans;
pub mod report;
pub mod views;
pub mod watches;

use crate::api::VmPool;
use crate::api::pool::names;
use crate::api::vm::names::REPORTER_OPERATOR;
use crate::controllers::pool::action::Action;
use crate::controllers::pool::apply::Applied;
use crate::controllers::pool::context::{PoolController, PoolState};
use crate::k8s::cluster::{Cluster, Manager};
use crate::k8s::controller::{Outcome, Reconciler};
use crate::k8s::error::Error;
use crate::k8s::key::ObjectKey;
use crate::k8s::state::States;
use crate::k8s::undecodable::Undecodable;
use futures::StreamExt;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::Store;
use std::sync::Arc;
use std::time::Duration;

pub use watches::watch;

/// The controller as field manager and as reporter of events.
pub const MANAGER: Manager = Manager {
    field_manager: names::MANAGER_POOLS,
    reporter: REPORTER_OPERATOR,
    action: names::ACTION_ASSIGN,
};

/// Concurrent writes for a pool.
const WRITES: usize = 8;

/// Rounds of decisions in one reconcile. An assignment takes four, the end of one with a restart three.
const ROUNDS: usize = 12;

/// Delay after a decision on an outdated store. The watch usually causes a reconcile before.
const OUTDATED_DELAY: Duration = Duration::from_secs(1);

/// Maximum delay between two reconciles of a pool. They write nothing if nothing has changed.
const RECHECK_MAX: Duration = Duration::from_secs(600);

impl Reconciler for PoolController {
    type Object = VmPool;
    type State = PoolState;
    const NAME: &'static str = "pool";

    fn cluster(&self) -> &Cluster {
        &self.scope.cluster
    }

    fn states(&self) -> &States<PoolState> {
        &self.states
    }

    fn objects(&self) -> Store<VmPool> {
        self.pools.reader()
    }

    async fn ready(&self) {
        self.stores_ready().await;
    }

    fn undecodable(&self) -> &[Arc<Undecodable>] {
        &self.undecodable
    }

    fn update_own_metrics(&self) {
        report::update_metrics(self);
    }

    async fn reconcile(&self, pool: Arc<VmPool>) -> Result<Outcome, Error> {
        reconcile(pool, self).await
    }
}

/// Reconciles one pool.
///
/// # Errors
/// If a request fails. All other writes are still sent.
pub async fn reconcile(pool: Arc<VmPool>, ctx: &PoolController) -> Result<Outcome, Error> {
    let mut error = None;
    let mut recheck = RECHECK_MAX;
    for _ in 0..ROUNDS {
        let facts = observe::observe(&pool, ctx);
        let decision = decide::decide(&facts);
        if let Some(deadline) = decision.deadline {
            recheck = RECHECK_MAX.min(until(deadline, facts.now));
        }
        let round = apply_all(&decision.actions, &pool, ctx).await;
        error = round.error;
        if round.is_outdated {
            recheck = OUTDATED_DELAY;
        }
        // A rejected write does not hold up the others.
        if !round.has_written {
            break;
        }
    }
    // The responses to the writes are in the stores.
    let pool = ctx.pools.get(&ObjectKey::of(&*pool)).unwrap_or(pool);
    let facts = observe::observe(&pool, ctx);
    let reported = report::report(&facts, &pool, error.as_ref(), ctx).await;
    match error {
        Some(error) => Err(error),
        None => reported.map(|()| Outcome::Recheck(recheck)),
    }
}

/// The time until the deadline. Objects have whole seconds.
fn until(deadline: Timestamp, now: Timestamp) -> Duration {
    let left = deadline.duration_since(now);
    Duration::try_from(left).unwrap_or_default() + Duration::from_millis(10)
}

/// The result of a round of writes.
#[derive(Default)]
struct Round {
    has_written: bool,
    is_outdated: bool,
    /// The first error.
    error: Option<Error>,
}

async fn apply_all(actions: &[Action], pool: &VmPool, ctx: &PoolController) -> Round {
    let mut writes = Vec::with_capacity(actions.len());
    for action in actions {
        writes.push(apply::apply(action, pool, ctx));
    }
    // In the order of the actions, so that the same error is reported each time.
    let mut results = futures::stream::iter(writes).buffered(WRITES);
    let mut round = Round::default();
    while let Some(result) = results.next().await {
        match result {
            Ok(Applied::Written) => round.has_written = true,
            Ok(Applied::Outdated) => round.is_outdated = true,
            Err(error) => {
                if error.code() == Some(409) {
                    ctx.metrics.conflict(&pool.name_any());
                }
                round.error.get_or_insert(error);
            }
        }
    }
    round
}
