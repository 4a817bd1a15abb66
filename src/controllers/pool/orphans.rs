//! (client) The controller of VMs of deleted pools. Their assignments end with the pool, and no controller reconciles that pool. It also
//! restarts VMs that have left all pools before the end of their assignment.
//!
//! An assignment by the Java VM-Operator remains until its pool appears, or another pool needs the VM.

use crate::api::VmPool;
use crate::controllers::pool::action::{Action, Why};
use crate::controllers::pool::apply;
use crate::controllers::pool::context::PoolController;
use crate::controllers::pool::decide;
use crate::controllers::pool::observe::vm_facts;
use crate::controllers::pool::views::MemberView;
use crate::k8s::cluster::Cluster;
use crate::k8s::controller::{Outcome, Reconciler};
use crate::k8s::error::Error;
use crate::k8s::state::States;
use kube::runtime::reflector::Store;
use std::sync::Arc;
use std::time::Duration;

/// A list of pools does not report deletions, which happened while the watch was broken.
const RECHECK_DELAY: Duration = Duration::from_secs(600);

/// The controller.
pub struct Orphans {
    ctx: Arc<PoolController>,
    states: States<()>,
}

impl Orphans {
    /// The controller on the stores of that context.
    #[must_use]
    pub fn new(ctx: &Arc<PoolController>) -> Arc<Self> {
        let states = States::new(ctx.scope.cluster.first_backoff, ctx.scope.cluster.jitter);
        let ctx = ctx.clone();
        Arc::new(Self { ctx, states })
    }

    /// The number of VMs with a failed last reconcile.
    #[must_use]
    pub fn failing(&self) -> usize {
        self.states.failing()
    }
}

impl Reconciler for Orphans {
    type Object = MemberView;
    type State = ();
    const NAME: &'static str = "pool-orphans";

    fn cluster(&self) -> &Cluster {
        &self.ctx.scope.cluster
    }

    fn states(&self) -> &States<()> {
        &self.states
    }

    fn objects(&self) -> Store<MemberView> {
        self.ctx.vms.reader()
    }

    async fn ready(&self) {
        self.ctx.stores_ready().await;
    }

    async fn reconcile(&self, vm: Arc<MemberView>) -> Result<Outcome, Error> {
        let ctx = &self.ctx;
        let is_in_no_pool = vm.spec.pools.is_empty();
        let vm = vm_facts(&vm, "");
        if let Some(Action::Change { vm, spec, why }) =
            decide::restart(&vm).filter(|_| is_in_no_pool)
        {
            apply::change_spec(&vm, spec, why, ctx).await?;
            return Ok(Outcome::Done);
        }
        let held = vm.held.as_ref().filter(|held| held.assignment.is_some());
        let Some(held) = held.filter(|_| !vm.is_ending) else {
            return Ok(Outcome::Done);
        };
        if ctx.pools.get(&ctx.scope.key(&held.pool)).is_some() {
            return Ok(Outcome::Recheck(RECHECK_DELAY));
        }
        // The pool can be newer than the store.
        let found = ctx
            .scope
            .writer()
            .find::<VmPool, VmPool>(&held.pool)
            .await?;
        if found.is_none() {
            // An assignment with another owner is not deleted with its pool.
            apply::delete_of_missing_pool(held, ctx).await?;
            apply::free(&vm.id, &held.user, None, Why::PoolDeleted, ctx).await?;
        }
        Ok(Outcome::Done)
    }
}
