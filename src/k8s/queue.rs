//! The metrics of a controller's queue. The queue is kube's, which cannot be read.

use crate::k8s::cluster::Cluster;
use crate::k8s::key::ObjectKey;
use crate::k8s::state::States;
use std::time::{Duration, Instant};

/// The queue of one controller.
pub struct Queue<'a, T> {
    /// Name of the controller.
    pub controller: &'static str,
    /// The clock and the metrics.
    pub cluster: &'a Cluster,
    /// The states of the controller's objects.
    pub states: &'a States<T>,
}

impl<T: Default> Queue<'_, T> {
    /// Records that the object is reconciled after that time.
    pub(super) fn enqueue(&self, key: &ObjectKey, after: Duration) {
        let due = (self.cluster.instant)() + after;
        if self.states.enqueue(key, due) {
            self.cluster.metrics.work_queue.added(self.controller);
        }
    }

    /// Records that the reconcile of the object begins.
    pub(super) fn dequeue(&self, key: &ObjectKey, now: Instant) {
        if let Some(due) = self.states.dequeue(key) {
            let waited = now.saturating_duration_since(due);
            self.cluster
                .metrics
                .work_queue
                .started(self.controller, waited);
        }
    }

    /// Updates the depth of the queue in the metrics.
    pub fn update_depth(&self) {
        let waiting = self.states.waiting((self.cluster.instant)());
        self.cluster
            .metrics
            .work_queue
            .set_depth(self.controller, waiting);
    }
}
