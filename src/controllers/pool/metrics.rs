//! The metrics of pools.

use crate::telemetry::metrics::OwnMetrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The label of a pool.
type PoolLabel = [(&'static str, String); 1];

/// Labels of a pool and a state or a cause.
type TwoLabels = [(&'static str, String); 2];

/// The metrics of pools.
#[derive(Clone)]
pub struct PoolMetrics {
    vms: Family<TwoLabels, Gauge>,
    waiting: Family<PoolLabel, Gauge>,
    assignments: Family<TwoLabels, Counter>,
    assign_seconds: Family<PoolLabel, Histogram>,
    conflicts: Family<PoolLabel, Counter>,
}

impl OwnMetrics for PoolMetrics {
    fn registered(registry: &mut Registry) -> Self {
        let metrics = Self {
            vms: Family::default(),
            waiting: Family::default(),
            assignments: Family::default(),
            // Without a wait, four writes take some tens of milliseconds.
            assign_seconds: Family::new_with_constructor(|| {
                Histogram::new([
                    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0,
                ])
            }),
            conflicts: Family::default(),
        };
        registry.register("pool_vms", "VMs of pools, by state", metrics.vms.clone());
        registry.register(
            "pool_waiting",
            "Users who wait for a VM, by pool",
            metrics.waiting.clone(),
        );
        registry.register(
            "pool_assignments",
            "Starts and ends of assignments, by cause",
            metrics.assignments.clone(),
        );
        registry.register(
            "pool_assign_seconds",
            "Time from the creation of an assignment until the user has a VM",
            metrics.assign_seconds.clone(),
        );
        registry.register(
            "pool_conflicts",
            "Writes of the pool controller that the API server has rejected with a conflict (409), because the object had changed",
            metrics.conflicts.clone(),
        );
        metrics
    }
}

impl PoolMetrics {
    /// Removes the numbers of all pools, before they are set again.
    pub fn clear(&self) {
        self.vms.clear();
        self.waiting.clear();
    }

    /// Serves the counter of conflicts of a pool before the first one, because a rate needs the value before it.
    pub fn begin(&self, pool: &str) {
        drop(self.conflicts.get_or_create(&[("pool", pool.to_owned())]));
    }

    /// Sets the number of VMs of a pool in a state.
    pub fn set_vms(&self, pool: &str, state: &str, count: i64) {
        let labels = [("pool", pool.to_owned()), ("state", state.to_owned())];
        self.vms.get_or_create(&labels).set(count);
    }

    /// Sets the number of users who wait.
    pub fn set_waiting(&self, pool: &str, count: i64) {
        self.waiting
            .get_or_create(&[("pool", pool.to_owned())])
            .set(count);
    }

    /// Counts an assignment, which has taken that time.
    pub fn assigned(&self, pool: &str, seconds: f64) {
        self.ended(pool, "Assigned");
        let label = [("pool", pool.to_owned())];
        self.assign_seconds.get_or_create(&label).observe(seconds);
    }

    /// Counts the end of an assignment.
    pub fn ended(&self, pool: &str, cause: &str) {
        let labels = [("pool", pool.to_owned()), ("outcome", cause.to_owned())];
        self.assignments.get_or_create(&labels).inc();
    }

    /// Counts a write that another write has preceded.
    pub fn conflict(&self, pool: &str) {
        self.conflicts
            .get_or_create(&[("pool", pool.to_owned())])
            .inc();
    }
}
