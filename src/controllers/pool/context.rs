//! The pool controller: cluster, stores and remembered state.

use crate::api::VmPool;
use crate::controllers::pool::metrics::PoolMetrics;
use crate::controllers::pool::views::{AssignmentView, MemberView};
use crate::k8s::cluster::Cluster;
use crate::k8s::key::ObjectKey;
use crate::k8s::registry::{Registry, Stored};
use crate::k8s::rejection::{HasRejections, Rejections};
use crate::k8s::scope::Scope;
use crate::k8s::state::States;
use crate::k8s::store::children::Cache;
use crate::k8s::store::primary::PrimaryStore;
use crate::k8s::undecodable::Undecodable;
use std::sync::Arc;

/// The remembered state of a pool.
#[derive(Debug, Default)]
pub struct PoolState {
    rejections: Rejections,
}

impl HasRejections for PoolState {
    fn rejections(&mut self) -> &mut Rejections {
        &mut self.rejections
    }
}

/// Reconciles pools.
pub struct PoolController {
    /// The watched namespace.
    pub scope: Scope,
    /// All pools.
    pub pools: Arc<PrimaryStore<VmPool>>,
    /// The VMs that concern pools.
    pub vms: Arc<PrimaryStore<MemberView>>,
    /// All assignments, by pool.
    pub assignments: Arc<Cache<AssignmentView>>,
    /// The remembered state of each pool.
    pub states: States<PoolState>,
    /// Pools, assignments and VMs that cannot be decoded.
    pub undecodable: [Arc<Undecodable>; 3],
    /// The metrics of pools.
    pub metrics: Arc<PoolMetrics>,
}

impl PoolController {
    /// A controller with empty stores.
    #[must_use]
    pub fn new(cluster: Cluster, namespace: String) -> Self {
        let pool_of = |assignment: &AssignmentView| {
            Some(ObjectKey::of(assignment).sibling(&assignment.spec.pool))
        };
        Self {
            states: States::new(cluster.first_backoff, cluster.jitter),
            metrics: cluster.metrics.of(),
            scope: Scope { cluster, namespace },
            undecodable: [
                Undecodable::new::<VmPool>(Some("assignments of the pool do not expire")),
                Undecodable::new::<AssignmentView>(Some(
                    "the operator does not change the assignment",
                )),
                // The controller of VMs reports them.
                Undecodable::new::<MemberView>(None),
            ],
            pools: Arc::default(),
            vms: Arc::default(),
            assignments: Arc::new(Cache::new(pool_of)),
        }
    }

    /// Adds the stores to the registry. VMs work without pools, and without their definitions.
    pub fn register(&self, registry: &mut Registry) {
        registry.add_optional("vmpools", self.pools.clone());
        registry.add_optional("vmassignments", self.assignments.clone());
        registry.add_optional("vms of pools", self.vms.clone());
    }

    /// Returns when all stores are complete.
    pub async fn stores_ready(&self) {
        futures::join!(
            self.pools.ready(),
            self.assignments.ready(),
            self.vms.ready()
        );
    }
}
