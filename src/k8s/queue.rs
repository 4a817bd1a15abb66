//! The metrics of a controller's queue. The queue is kube's, which cannot be read.

use crate::k8s::cluster::Cluster;
use crate::k8s::key::ObjectKey;
use crate::k8s::state::States;
use std::time::{Duration, Instant};

/// A controller's queue, as its metrics show it.
pub struct Queue<'a, T> {
    /// The objects that wait.
    pub states: &'a States<T>,
    /// The metrics and the clock.
    pub cluster: &'a Cluster,
    /// The controller's name.
    pub controller: &'static str,
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
            let metrics = &self.cluster.metrics.work_queue;
            metrics.started(self.controller, waited);
        }
    }

    /// Updates the depth of the queue in the metrics.
    pub fn update_depth(&self) {
        let waiting = self.states.waiting((self.cluster.instant)());
        let metrics = &self.cluster.metrics.work_queue;
        metrics.set_depth(self.controller, waiting);
    }
}
