//! (client) Events of the operator. They are best effort: one that cannot be published is logged.

use crate::k8s::cluster::Cluster;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use std::time::Duration;

/// Longest note that the API server takes, in bytes, with some room.
const LONGEST_NOTE: usize = 1000;
/// A server that is slow with events must not delay what matters.
const DEADLINE: Duration = Duration::from_secs(2);

/// Publishes an event on an object. Whoever calls it does so when something has changed, not because it still holds.
pub async fn publish(
    cluster: &Cluster,
    regarding: &ObjectReference,
    type_: EventType,
    reason: &str,
    note: &str,
) {
    if !cluster.leadership.leads() {
        // Who leads sees the same and tells it.
        return;
    }
    // One for each event: a recorder that has published the same reason before would repeat that event's note.
    let reporter = Reporter {
        controller: cluster.manager.reporter.to_owned(),
        instance: None,
    };
    let recorder = Recorder::new(cluster.client.clone(), reporter);
    let note = note
        .get(..note.floor_char_boundary(LONGEST_NOTE))
        .unwrap_or_default();
    let event = Event {
        type_,
        reason: reason.to_owned(),
        note: Some(note.to_owned()),
        action: cluster.manager.action.to_owned(),
        secondary: None,
    };
    let object = regarding.name.as_deref().unwrap_or_default();
    match tokio::time::timeout(DEADLINE, recorder.publish(&event, regarding)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(object, reason, %error, "cannot publish an event"),
        Err(_) => tracing::warn!(
            object,
            reason,
            "cannot publish an event within {DEADLINE:?}"
        ),
    }
}
