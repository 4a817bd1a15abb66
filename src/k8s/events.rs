//! (client) Publishes events, best effort: a failure is logged. The controllers of a process share a queue.

use crate::k8s::cluster::Cluster;
use crate::k8s::event_queue::PendingEvent;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

/// The limit of the API server is 1024 bytes.
const NOTE_BYTES_MAX: usize = 1000;

/// Publishes an event on an object. Callers publish when a state changes, not while it lasts.
pub async fn publish(
    cluster: &Cluster,
    regarding: &ObjectReference,
    type_: EventType,
    reason: &str,
    note: &str,
) {
    if !cluster.leadership.leads() {
        // The leader observes the same state and publishes the event.
        return;
    }
    // A new recorder for each event, because a recorder repeats the note of its previous event with the same reason.
    let reporter = Reporter {
        controller: cluster.manager.reporter.to_owned(),
        instance: None,
    };
    let recorder = Recorder::new(cluster.client.clone(), reporter);
    let note = note
        .get(..note.floor_char_boundary(NOTE_BYTES_MAX))
        .unwrap_or_default();
    let event = Event {
        type_,
        reason: reason.to_owned(),
        note: Some(note.to_owned()),
        action: cluster.manager.action.to_owned(),
        secondary: None,
    };
    let pending = PendingEvent {
        recorder,
        regarding: regarding.clone(),
        event,
    };
    cluster.events.publish(pending).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::cluster::Manager;
    use kube::client::Body;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn reconciles_do_not_wait_for_events() {
        let published = Arc::new(AtomicUsize::new(0));
        let count = published.clone();
        let server = tower::service_fn(move |_: http::Request<Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, std::convert::Infallible>(http::Response::new(Body::empty())) }
        });
        let manager = Manager {
            field_manager: "fake",
            reporter: "fake",
            action: "Reconcile",
        };
        let cluster = Cluster::new(kube::Client::new(server, "ns"), manager);
        let object = ObjectReference::default();
        let send = async || publish(&cluster, &object, EventType::Normal, "R", "n").await;
        let reconciles = async {
            send().await;
            send().await;
            assert_eq!(published.load(Ordering::Relaxed), 0);
        };
        cluster.events.publish_during(reconciles).await;
        assert_eq!(published.load(Ordering::Relaxed), 2);
        // Afterwards, an event is published at once.
        send().await;
        assert_eq!(published.load(Ordering::Relaxed), 3);
    }
}
