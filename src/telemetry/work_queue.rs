//! The metrics of the queue of each controller, with the names that Kubernetes' client library uses.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

/// The name of a queue is that of its controller. Dashboards for other operators select by either label.
type Labels = [(&'static str, &'static str); 2];

/// The metrics of the queues.
pub struct WorkQueueMetrics {
    depth: Family<Labels, Gauge>,
    adds: Family<Labels, Counter>,
    retries: Family<Labels, Counter>,
    waits: Family<Labels, Histogram>,
}

impl WorkQueueMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let waits = Family::<Labels, Histogram>::new_with_constructor(|| {
            Histogram::new([0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0])
        });
        let new = Self {
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            waits,
        };
        let help = "Objects that wait for a reconcile, by controller";
        registry.register("workqueue_depth", help, new.depth.clone());
        let help = "Objects that were added to the queue, by controller";
        registry.register("workqueue_adds", help, new.adds.clone());
        let help =
            "Objects that were added to the queue again after a failed reconcile, by controller";
        registry.register("workqueue_retries", help, new.retries.clone());
        let help =
            "Time that an object waits in the queue until its reconcile starts, by controller";
        let name = "workqueue_queue_duration_seconds";
        registry.register(name, help, new.waits.clone());
        new
    }

    fn labels(controller: &'static str) -> Labels {
        [("controller", controller), ("name", controller)]
    }

    /// Counts an object that was added to the queue.
    pub fn added(&self, controller: &'static str) {
        self.adds.get_or_create(&Self::labels(controller)).inc();
    }

    /// Counts an object that is added again after a failed reconcile.
    pub fn retried(&self, controller: &'static str) {
        self.retries.get_or_create(&Self::labels(controller)).inc();
    }

    /// Records the time that an object has waited.
    pub fn started(&self, controller: &'static str, waited: Duration) {
        let labels = Self::labels(controller);
        self.waits
            .get_or_create(&labels)
            .observe(waited.as_secs_f64());
    }

    /// Sets the number of objects that wait.
    pub fn set_depth(&self, controller: &'static str, objects: usize) {
        let labels = Self::labels(controller);
        let objects = i64::try_from(objects).unwrap_or(i64::MAX);
        self.depth.get_or_create(&labels).set(objects);
        // A rate needs a sample from before the first retry.
        drop(self.retries.get_or_create(&labels));
    }
}
