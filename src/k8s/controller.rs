//! The loop of a controller: a queue of changed objects, a deadline and isolation of panics for each reconcile, metrics, retries,
//! and waiting for leadership. A controller implements [`Reconciler`].
//!
//! An object has at most one reconcile at a time. A change during its reconcile leads to another one.

use crate::k8s::cluster::Cluster;
use crate::k8s::error::{Error, Retry};
use crate::k8s::key::ObjectKey;
use crate::k8s::queue::Queue;
use crate::k8s::state::States;
use crate::k8s::tasks::panic_text;
use crate::k8s::undecodable::Undecodable;
use crate::telemetry::work_queue::WorkQueueMetrics;
use futures::{FutureExt, Stream, StreamExt};
use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{JoinError, JoinSet};
use tracing::Instrument;

/// The result of a successful reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No further reconcile until something changes.
    Done,
    /// Reconcile again after that time.
    Recheck(Duration),
}

impl Outcome {
    /// The same outcome, but with a reconcile after that time at the latest.
    #[must_use]
    pub fn recheck_within(self, recheck: Option<Duration>) -> Self {
        match (self, recheck) {
            (Self::Done, Some(after)) => Self::Recheck(after),
            (Self::Recheck(before), Some(after)) => Self::Recheck(before.min(after)),
            (outcome, None) => outcome,
        }
    }
}

/// A controller of one kind.
pub trait Reconciler: Send + Sync + 'static {
    /// The kind that the controller reconciles.
    type Object: Resource<DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static;
    /// The state that the controller keeps of each object.
    type State: Default + Send + 'static;

    /// The controller's name: a value of `--controllers`, and the label `controller` of metrics.
    const NAME: &'static str;

    /// The number of concurrent reconciles. The default keeps the API server busy without flooding it.
    const CONCURRENCY: u16 = 16;

    /// The dependencies that all controllers share.
    fn cluster(&self) -> &Cluster;

    /// The states of the objects.
    fn states(&self) -> &States<Self::State>;

    /// The store of the objects.
    fn objects(&self) -> Store<Self::Object>;

    /// Returns when the stores are complete that leadership does not wait for, see
    /// [`Registry::add_optional`](crate::k8s::registry::Registry::add_optional). The first reconcile follows.
    fn ready(&self) -> impl Future<Output = ()> + Send {
        futures::future::ready(())
    }

    /// Whether the object is reconciled before objects without priority.
    fn has_priority(&self, _: &ObjectKey) -> bool {
        false
    }

    /// Changes the cluster to what the object requests. It is called for an object with a deletion timestamp too. It is not called
    /// for an object that no longer exists: the loop forgets its state.
    ///
    /// # Errors
    /// The reconcile has failed. The object is reconciled again after a delay.
    fn reconcile(
        &self,
        object: Arc<Self::Object>,
    ) -> impl Future<Output = Result<Outcome, Error>> + Send;

    /// The objects that the controller cannot decode, one entry for each watched kind.
    fn undecodable(&self) -> &[Arc<Undecodable>] {
        &[]
    }

    /// Updates the metrics that the controller defines before they are read.
    fn update_own_metrics(&self) {}

    /// Updates the metrics of the controller before they are read.
    fn update_metrics(&self) {
        self.update_own_metrics();
        if self.undecodable().is_empty() {
            return;
        }
        let undecodable = self.undecodable().iter().map(|kind| kind.count()).sum();
        self.cluster()
            .metrics
            .set_undecodable(Self::NAME, undecodable);
    }
}

/// Runs a controller. It waits until this process leads, then reconciles all objects once, and each object of
/// `changes`. It returns when `stop` is complete and the reconciles in progress have finished.
/// Until then, it publishes the events of the process.
///
/// `changes` yields objects that have changed, or have changed children. It is also read before this process leads.
pub async fn run<R: Reconciler>(
    reconciler: Arc<R>,
    changes: impl Stream<Item = ObjectRef<R::Object>> + Send + 'static,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let mut changes = changes.fuse().boxed();
    let mut stop = pin!(stop);
    let mut queued = Loop::new(reconciler.clone());
    tokio::select! {
        biased;
        () = stop.as_mut() => return,
        () = stand_by(&*reconciler, &mut changes) => {}
    }
    for undecodable in reconciler.undecodable() {
        undecodable.report_all(reconciler.cluster());
    }
    let known = reconciler.objects().state();
    let mut all: Vec<_> = known
        .iter()
        .map(|object| ObjectKey::of(&**object))
        .collect();
    // The order of the store is random.
    all.sort_unstable();
    drop(known);
    for key in all {
        queued.changed(&key);
    }
    let events = &reconciler.cluster().events;
    events.publish_during(queued.run(&mut changes, stop)).await;
}

/// Discards changes until this process leads and the stores are complete. The first reconcile then covers all objects.
async fn stand_by<R: Reconciler>(
    reconciler: &R,
    changes: &mut (impl Stream<Item = ObjectRef<R::Object>> + Send + Unpin),
) {
    let drained = changes.map(drop).collect::<()>();
    let complete = async {
        reconciler.cluster().leadership.elected().await;
        // It fails if the writer of the store is dropped, which lives as long as the controller.
        drop(reconciler.objects().wait_until_ready().await);
        reconciler.ready().await;
    };
    tokio::select! {
        biased;
        () = complete => {}
        // Watches do not end while the process runs.
        () = drained.then(|()| futures::future::pending()) => {}
    }
}

/// The queue of a controller and its reconciles in progress.
struct Loop<R: Reconciler> {
    reconciler: Arc<R>,
    queue: Queue,
    running: JoinSet<(ObjectKey, Result<Outcome, Error>)>,
}

impl<R: Reconciler> Loop<R> {
    fn new(reconciler: Arc<R>) -> Self {
        let new = Self {
            reconciler,
            queue: Queue::default(),
            running: JoinSet::new(),
        };
        new.update_depth();
        new
    }

    fn metrics(&self) -> &WorkQueueMetrics {
        &self.reconciler.cluster().metrics.work_queue
    }

    fn update_depth(&self) {
        self.metrics().set_depth(R::NAME, self.queue.depth());
    }

    async fn run(
        mut self,
        changes: &mut (impl Stream<Item = ObjectRef<R::Object>> + Send + Unpin),
        mut stop: impl Future<Output = ()> + Send + Unpin,
    ) {
        loop {
            self.update_depth();
            let next_due = self.queue.next_due();
            let has_capacity = self.running.len() < usize::from(R::CONCURRENCY);
            let starts = has_capacity && self.queue.depth() > 0;
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(result) = self.running.join_next() => self.finished(result),
                Some(object) = changes.next() => self.changed(&ObjectKey::from(&object)),
                () = sleep_until(next_due) => self.end_delays(),
                // All changes are in the queue by now, so that the next object is the right one.
                () = futures::future::ready(()), if starts => self.start_next(),
            }
        }
        while let Some(result) = self.running.join_next().await {
            self.finished(result);
        }
    }

    fn changed(&mut self, key: &ObjectKey) {
        let has_priority = self.reconciler.has_priority(key);
        if self.queue.add(key, has_priority, now()) {
            self.metrics().added(R::NAME);
        }
    }

    fn end_delays(&mut self) {
        let reconciler = &self.reconciler;
        self.queue
            .end_delays(now(), |key| reconciler.has_priority(key));
    }

    /// Starts the reconcile of the next object. The state of an object that no longer exists is removed.
    fn start_next(&mut self) {
        let Some((key, since)) = self.queue.take() else {
            return;
        };
        let waited = now().saturating_duration_since(since);
        self.metrics().started(R::NAME, waited);
        let Some(object) = self.reconciler.objects().get(&key.object_ref()) else {
            self.reconciler.states().forget(&key);
            set_backoff(&*self.reconciler);
            self.queue.finish(&key, false, None);
            return;
        };
        let reconciler = self.reconciler.clone();
        self.running.spawn(async move {
            let result = guarded(&*reconciler, &key, reconciler.reconcile(object)).await;
            (key, result)
        });
    }

    fn finished(&mut self, result: Result<(ObjectKey, Result<Outcome, Error>), JoinError>) {
        let (key, result) = match result.map_err(JoinError::try_into_panic) {
            Ok(finished) => finished,
            // A panic outside a reconcile, which the process does not survive.
            Err(Ok(panic)) => resume_unwind(panic),
            // The runtime shuts down.
            Err(Err(_)) => return,
        };
        let delay = match result {
            Ok(Outcome::Done) => None,
            Ok(Outcome::Recheck(after)) => Some(after),
            Err(error) => Some(after_failure(&*self.reconciler, &key, &error)),
        };
        let next = delay.map(|delay| now() + delay);
        let has_priority = self.reconciler.has_priority(&key);
        if self.queue.finish(&key, has_priority, next) {
            self.metrics().added(R::NAME);
        }
    }
}

/// The time of the clock that delays follow. It can be virtual in tests.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Returns at that time. Without a time it never returns.
async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => futures::future::pending().await,
    }
}

/// Runs the reconcile of one object within the time limit. A panic fails this reconcile only.
///
/// # Errors
/// The reconcile fails, takes too long or panics.
pub async fn guarded<R: Reconciler>(
    reconciler: &R,
    key: &ObjectKey,
    reconcile: impl Future<Output = Result<Outcome, Error>>,
) -> Result<Outcome, Error> {
    // All log lines of one reconcile have its id.
    let id = reconciler.cluster().reconcile_id();
    let span = tracing::error_span!("reconcile", controller = R::NAME, object = %key, id);
    reconcile_with_metrics(reconciler, key, reconcile)
        .instrument(span)
        .await
}

async fn reconcile_with_metrics<R: Reconciler>(
    reconciler: &R,
    key: &ObjectKey,
    reconcile: impl Future<Output = Result<Outcome, Error>>,
) -> Result<Outcome, Error> {
    let cluster = reconciler.cluster();
    let began = (cluster.instant)();
    let reconcile = AssertUnwindSafe(reconcile).catch_unwind();
    let result = match tokio::time::timeout(cluster.deadline, reconcile).await {
        Err(_) => Err(Error::Timeout(cluster.deadline)),
        Ok(Err(panic)) => Err(Error::Panic(panic_text(panic.as_ref()))),
        Ok(Ok(result)) => result,
    };
    let seconds = (cluster.instant)()
        .saturating_duration_since(began)
        .as_secs_f64();
    let outcome = result.as_ref().map_or_else(Error::reason, |_| "Done");
    cluster.metrics.reconciled(R::NAME, outcome, seconds);
    match &result {
        Ok(_) => reconciler.states().succeeded(key),
        // Another program has written first, or the blocking object is being removed. Neither is a defect.
        Err(error) if error.code() == Some(409) || matches!(error.retry(), Retry::After(_)) => {
            tracing::debug!(reason = error.reason(), %error, "trying again");
        }
        Err(error) => {
            tracing::warn!(reason = error.reason(), %error, "the reconcile of an object has failed; the operator retries");
        }
    }
    set_backoff(reconciler);
    result
}

/// Records a failed reconcile. Returns the delay before the next one.
pub fn after_failure<R: Reconciler>(reconciler: &R, key: &ObjectKey, error: &Error) -> Duration {
    let after = match error.retry() {
        Retry::After(after) => after,
        Retry::Backoff(longest) => reconciler.states().failed(key).min(longest),
    };
    set_backoff(reconciler);
    reconciler.cluster().metrics.work_queue.retried(R::NAME);
    tracing::debug!(controller = R::NAME, object = %key, ?after, "trying again");
    after
}

fn set_backoff<R: Reconciler>(reconciler: &R) {
    let failing = reconciler.states().failing();
    reconciler.cluster().metrics.set_backoff(R::NAME, failing);
}

#[cfg(test)]
mod tests;
