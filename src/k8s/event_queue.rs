//! (client) The events of a process that wait to be published. One task publishes them, so that a slow API server delays no reconcile.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, Recorder};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc::{self, error::TrySendError};

/// A burst of 1,000 VMs has three events for each. An event takes about a kilobyte.
const QUEUE_SIZE: usize = 4096;
/// The time limit of a request, and of all remaining requests at shutdown.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);

/// The queue. Clones share it.
#[derive(Clone, Default)]
pub struct EventQueue(Arc<OnceLock<mpsc::Sender<PendingEvent>>>);

/// An event with its recorder.
pub(super) struct PendingEvent {
    pub(super) recorder: Recorder,
    pub(super) regarding: ObjectReference,
    pub(super) event: Event,
}

impl EventQueue {
    /// Publishes events, one after the other, until `work` is complete, and then those that still wait. Only the first call for a queue
    /// publishes: the controllers of a process share it.
    pub async fn publish_during(&self, work: impl Future<Output = ()>) {
        let (sender, mut events) = mpsc::channel(QUEUE_SIZE);
        if self.0.set(sender).is_err() {
            return work.await;
        }
        let publishing = async {
            while let Some(event) = events.recv().await {
                event.publish().await;
            }
        };
        tokio::select! {
            () = work => {}
            // The queue has its sender as long as it exists.
            () = publishing => {}
        }
        let remaining = async {
            while let Ok(event) = events.try_recv() {
                event.publish().await;
            }
        };
        // After this time, the last events are lost.
        drop(tokio::time::timeout(PUBLISH_TIMEOUT, remaining).await);
    }

    /// Adds an event. It is published at once if no call publishes the queue, or if too many events wait.
    pub(super) async fn publish(&self, event: PendingEvent) {
        let rejected = match self.0.get() {
            Some(queue) => queue.try_send(event).err().map(TrySendError::into_inner),
            None => Some(event),
        };
        if let Some(event) = rejected {
            event.publish().await;
        }
    }
}

impl PendingEvent {
    async fn publish(&self) {
        let object = self.regarding.name.as_deref().unwrap_or_default();
        let reason = self.event.reason.as_str();
        let published = self.recorder.publish(&self.event, &self.regarding);
        match tokio::time::timeout(PUBLISH_TIMEOUT, published).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(object, reason, %error, "cannot publish an event; the event is lost")
            }
            Err(_) => tracing::warn!(
                object,
                reason,
                "the API server has not accepted an event within {PUBLISH_TIMEOUT:?}; the event may be lost"
            ),
        }
    }
}
