//! The loop of a controller: a queue of changed objects, a deadline and isolation of panics for each reconcile, metrics, retries,
//! and waiting for leadership. A controller implements [`Reconciler`].

use crate::k8s::cluster::Cluster;
use crate::k8s::error::{Error, Retry};
use crate::k8s::key::ObjectKey;
use crate::k8s::queue::Queue;
use crate::k8s::state::States;
use crate::k8s::tasks::panic_text;
use crate::k8s::undecodable::Undecodable;
use futures::{FutureExt, Stream, StreamExt};
use kube::Resource;
use kube::runtime::controller::{Action, Config, Controller, Error as ControllerError};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
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

    /// Changes the cluster to what the object requests. It is called for an object with a deletion timestamp too. It is not called
    /// for an object that no longer exists: the loop forgets its state.
    ///
    /// # Errors
    /// The reconcile has failed. The object is reconciled again after a delay.
    fn reconcile(
        &self,
        object: Arc<Self::Object>,
    ) -> impl Future<Output = Result<Outcome, Error>> + Send;

    /// The metrics of the queue of this controller.
    fn queue(&self) -> Queue<'_, Self::State> {
        Queue {
            controller: Self::NAME,
            cluster: self.cluster(),
            states: self.states(),
        }
    }

    /// The objects that the controller cannot decode, one entry for each watched kind.
    fn undecodable(&self) -> &[Arc<Undecodable>] {
        &[]
    }

    /// Updates the metrics that the controller defines before they are read.
    fn update_own_metrics(&self) {}

    /// Updates the metrics of the controller before they are read.
    fn update_metrics(&self) {
        self.update_own_metrics();
        self.queue().update_depth();
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
///
/// `changes` yields objects that have changed, or have changed children. It is also read before this process leads.
pub async fn run<R: Reconciler>(
    reconciler: Arc<R>,
    changes: impl Stream<Item = ObjectRef<R::Object>> + Send + 'static,
    stop: impl Future<Output = ()> + Clone + Send + Sync + 'static,
) {
    let mut changes = changes.boxed();
    tokio::select! {
        biased;
        () = stop.clone() => return,
        () = stand_by(&*reconciler, &mut changes) => {}
    }
    for undecodable in reconciler.undecodable() {
        undecodable.report_all(reconciler.cluster());
    }
    let known = reconciler.objects().state();
    let all: Vec<_> = known
        .iter()
        .map(|object| ObjectRef::from_obj(&**object))
        .collect();
    let reconcile = async |object: Arc<R::Object>, reconciler: Arc<R>| {
        let reconcile = reconciler.reconcile(object.clone());
        guarded(&*reconciler, &ObjectKey::of(&*object), reconcile).await
    };
    let failed = |object: Arc<R::Object>, error: &Error, reconciler: Arc<R>| {
        after_failure(&*reconciler, &ObjectKey::of(&*object), error)
    };
    // The controller reads the store. The events of the watch have already been applied to it.
    let no_events = futures::stream::pending::<watcher::Result<R::Object>>();
    let queued = reconciler.clone();
    let requests = futures::stream::iter(all)
        .chain(changes)
        .inspect(move |object| {
            queued
                .queue()
                .enqueue(&ObjectKey::from(object), Duration::ZERO)
        });
    Controller::for_stream(no_events, reconciler.objects())
        .reconcile_on(requests)
        .with_config(Config::default().concurrency(R::CONCURRENCY))
        .graceful_shutdown_on(stop)
        .run(reconcile, failed, reconciler.clone())
        .for_each(|result| {
            // All other errors have already been reported.
            if let Err(ControllerError::ObjectNotFound(object)) = result {
                reconciler.states().forget(&ObjectKey::from(&*object));
                set_backoff(&*reconciler);
            }
            futures::future::ready(())
        })
        .await;
}

/// Discards changes until this process leads and the stores are complete. The first reconcile then covers all objects.
async fn stand_by<R: Reconciler>(
    reconciler: &R,
    changes: &mut (impl Stream<Item = ObjectRef<R::Object>> + Send + Unpin),
) {
    let drained = changes.map(drop).collect::<()>();
    let elected = reconciler.cluster().leadership.elected();
    tokio::select! {
        biased;
        () = elected.then(|()| reconciler.ready()) => {}
        // Watches do not end while the process runs.
        () = drained.then(|()| futures::future::pending()) => {}
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
) -> Result<Action, Error> {
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
) -> Result<Action, Error> {
    let cluster = reconciler.cluster();
    let began = (cluster.instant)();
    reconciler.queue().dequeue(key, began);
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
    result.map(|outcome| match outcome {
        Outcome::Done => Action::await_change(),
        Outcome::Recheck(after) => {
            reconciler.queue().enqueue(key, after);
            Action::requeue(after)
        }
    })
}

/// The delay before the next reconcile after a failure.
pub fn after_failure<R: Reconciler>(reconciler: &R, key: &ObjectKey, error: &Error) -> Action {
    let after = match error.retry() {
        Retry::After(after) => after,
        Retry::Backoff(longest) => reconciler.states().failed(key).min(longest),
    };
    set_backoff(reconciler);
    reconciler.queue().enqueue(key, after);
    reconciler.cluster().metrics.work_queue.retried(R::NAME);
    tracing::debug!(controller = R::NAME, object = %key, ?after, "trying again");
    Action::requeue(after)
}

fn set_backoff<R: Reconciler>(reconciler: &R) {
    let failing = reconciler.states().failing();
    reconciler.cluster().metrics.set_backoff(R::NAME, failing);
}

#[cfg(test)]
mod tests;
