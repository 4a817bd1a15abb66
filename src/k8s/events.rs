//! (client) Publishes events, best effort: a failure is logged.

use crate::k8s::cluster::Cluster;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use std::time::Duration;

/// The limit of the API server is 1024 bytes.
const NOTE_BYTES_MAX: usize = 1000;
/// Slow events must not delay reconciles.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);

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
    let object = regarding.name.as_deref().unwrap_or_default();
    match tokio::time::timeout(PUBLISH_TIMEOUT, recorder.publish(&event, regarding)).await {
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
