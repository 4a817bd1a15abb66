//! (client) Publishes events, best effort: a failure is logged. The controllers of a process share a queue.

use crate::k8s::cluster::Cluster;
use crate::k8s::event_queue::PendingEvent;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use kube::runtime::events::EventType;

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
    let note = note
        .get(..note.floor_char_boundary(NOTE_BYTES_MAX))
        .unwrap_or_default();
    // kube's recorder would set the time when the queue publishes the event, and repeat the note of its previous event with the same
    // reason.
    let now = Timestamp::now();
    let name = regarding.name.as_deref().unwrap_or_default();
    let reporter = Some(cluster.manager.reporter.to_owned());
    let event = Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:x}", now.as_nanosecond())),
            namespace: regarding.namespace.clone(),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        type_: Some(match type_ {
            EventType::Normal => "Normal".to_owned(),
            EventType::Warning => "Warning".to_owned(),
        }),
        reason: Some(reason.to_owned()),
        note: Some(note.to_owned()),
        action: Some(cluster.manager.action.to_owned()),
        regarding: Some(regarding.clone()),
        reporting_controller: reporter.clone(),
        reporting_instance: reporter,
        ..Event::default()
    };
    let pending = PendingEvent {
        client: cluster.client.clone(),
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
    use std::time::Duration;

    #[tokio::test]
    async fn reconciles_do_not_wait_for_events() {
        let published = Arc::new(AtomicUsize::new(0));
        let count = published.clone();
        let server = tower::service_fn(move |_: http::Request<Body>| {
            let count = count.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                count.fetch_add(1, Ordering::Relaxed);
                Ok::<_, std::convert::Infallible>(http::Response::new(Body::empty()))
            }
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
            // The request for the first event begins. It is in progress at the end of this work.
            tokio::task::yield_now().await;
            assert_eq!(published.load(Ordering::Relaxed), 0);
        };
        cluster.events.publish_during(reconciles).await;
        assert_eq!(published.load(Ordering::Relaxed), 2);
        // Afterwards, an event is published at once.
        send().await;
        assert_eq!(published.load(Ordering::Relaxed), 3);
    }
}
