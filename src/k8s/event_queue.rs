//! (client) The events of a process that wait to be published. One task publishes them, so that a slow API server delays no reconcile.

use k8s_openapi::api::events::v1::Event;
use kube::api::PostParams;
use kube::{Api, Client};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::oneshot;

/// A burst of 1,000 VMs has three events for each. An event takes about a kilobyte.
const QUEUE_SIZE: usize = 4096;
/// The time limit of a request.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit of all events that still wait at shutdown. An event takes about five milliseconds.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The queue. Clones share it.
#[derive(Clone, Default)]
pub struct EventQueue(Arc<OnceLock<mpsc::Sender<PendingEvent>>>);

/// An event with the client that creates it.
pub(super) struct PendingEvent {
    pub(super) client: Client,
    pub(super) event: Event,
}

impl EventQueue {
    /// Publishes events, one after the other, until `work` is complete, and then those that still wait. Only the first call for a queue
    /// publishes: the controllers of a process share it.
    pub async fn publish_during(&self, work: impl Future<Output = ()>) {
        let (sender, events) = mpsc::channel(QUEUE_SIZE);
        if self.0.set(sender.clone()).is_err() {
            return work.await;
        }
        let (done, is_done) = oneshot::channel();
        let mut publishing = pin!(publish_all(events, is_done));
        tokio::select! {
            () = work => {}
            // It goes on until `done`.
            () = publishing.as_mut() => {}
        }
        drop(done);
        let drained = tokio::time::timeout(DRAIN_TIMEOUT, publishing).await;
        let lost = sender.max_capacity() - sender.capacity();
        if drained.is_err() {
            tracing::warn!(
                lost,
                "events are lost, because the API server has not accepted them at the shutdown within {DRAIN_TIMEOUT:?}"
            );
        }
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

/// Publishes the events of the queue until it is empty after `is_done`.
async fn publish_all(mut events: mpsc::Receiver<PendingEvent>, mut is_done: oneshot::Receiver<()>) {
    loop {
        tokio::select! {
            biased;
            Some(event) = events.recv() => event.publish().await,
            _ = &mut is_done, if !events.is_closed() => events.close(),
            else => return,
        }
    }
}

impl PendingEvent {
    async fn publish(&self) {
        let namespace = self.event.metadata.namespace.as_deref();
        let events = Api::<Event>::namespaced(self.client.clone(), namespace.unwrap_or("default"));
        let regarding = self.event.regarding.as_ref();
        let object = regarding.and_then(|it| it.name.as_deref());
        let object = object.unwrap_or_default();
        let reason = self.event.reason.as_deref().unwrap_or_default();
        let parameters = PostParams::default();
        let published = events.create(&parameters, &self.event);
        match tokio::time::timeout(PUBLISH_TIMEOUT, published).await {
            Ok(Ok(_)) => {}
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
