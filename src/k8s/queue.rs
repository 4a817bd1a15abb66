//! The metrics of a controller's queue. The queue is kube's, which cannot be read.

use crate::k8s::controller::Reconciler;
use crate::k8s::key::ObjectKey;
use std::time::{Duration, Instant};

/// Records that the object is reconciled after that time.
pub(super) fn enqueue<R: Reconciler>(reconciler: &R, key: &ObjectKey, after: Duration) {
    let cluster = reconciler.cluster();
    let due = (cluster.instant)() + after;
    if reconciler.states().enqueue(key, due) {
        cluster.metrics.work_queue.added(R::NAME);
    }
}

/// Records that the reconcile of the object begins.
pub(super) fn dequeue<R: Reconciler>(reconciler: &R, key: &ObjectKey, now: Instant) {
    if let Some(due) = reconciler.states().dequeue(key) {
        let waited = now.saturating_duration_since(due);
        let metrics = &reconciler.cluster().metrics;
        metrics.work_queue.started(R::NAME, waited);
    }
}

/// Updates the depth of the queue in the metrics.
pub fn update_depth<R: Reconciler>(reconciler: &R) {
    let cluster = reconciler.cluster();
    let waiting = reconciler.states().waiting((cluster.instant)());
    cluster.metrics.work_queue.set_depth(R::NAME, waiting);
}
