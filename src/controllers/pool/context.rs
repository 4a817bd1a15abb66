//! The context of each reconcile of a pool: cluster, stores and remembered state.

use crate::api::VmPool;
use crate::controllers::pool::views::{AssignmentView, MemberView};
use crate::k8s::cluster::Cluster;
use crate::k8s::key::ObjectKey;
use crate::k8s::registry::{Registry, Stored};
use crate::k8s::state::States;
use crate::k8s::store::children::Cache;
use crate::k8s::store::primary::PrimaryStore;
use crate::k8s::watch::Namespaces;
use crate::k8s::writer::Writer;
use std::sync::Arc;
use std::time::Instant;

/// The remembered state of a pool.
#[derive(Debug, Default)]
pub struct PoolState {
    /// The time of the last write of a rejection into the status.
    pub rejection_reported: Option<Instant>,
}

/// The context of each reconcile of a pool.
pub struct Context {
    /// Client, leadership, clocks and metrics, shared by all controllers.
    pub cluster: Cluster,
    /// The watched namespace.
    pub namespace: String,
    /// All pools.
    pub pools: Arc<PrimaryStore<VmPool>>,
    /// The VMs that concern pools.
    pub vms: Arc<PrimaryStore<MemberView>>,
    /// All assignments, by pool.
    pub claims: Arc<Cache<AssignmentView>>,
    /// The remembered state of each pool.
    pub states: States<PoolState>,
}

impl Context {
    /// A context with empty stores.
    #[must_use]
    pub fn new(cluster: Cluster, namespace: String) -> Self {
        let pool_of = |claim: &AssignmentView| Some(ObjectKey::of(claim).sibling(&claim.spec.pool));
        Self {
            states: States::new(cluster.first_backoff, cluster.jitter),
            cluster,
            namespace,
            pools: Arc::default(),
            vms: Arc::default(),
            claims: Arc::new(Cache::new(pool_of)),
        }
    }

    /// Adds the stores to the registry. VMs work without pools, and without their definitions.
    pub fn register(&self, registry: &mut Registry) {
        registry.add_optional("vmpools", self.pools.clone());
        registry.add_optional("vmassignments", self.claims.clone());
        registry.add_optional("vms of pools", self.vms.clone());
    }

    /// Returns when all stores are complete.
    pub async fn stores_ready(&self) {
        futures::join!(self.pools.ready(), self.claims.ready(), self.vms.ready());
    }

    /// A writer for the watched namespace.
    #[must_use]
    pub fn writer(&self) -> Writer<'_> {
        Writer::new(&self.cluster, &self.namespace)
    }

    /// The watched namespace, as the watches need it.
    #[must_use]
    pub fn watched_namespace(&self) -> Namespaces {
        Namespaces::Only(vec![self.namespace.clone()])
    }

    /// The key of an object in the watched namespace.
    #[must_use]
    pub fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(&self.namespace, name)
    }
}
