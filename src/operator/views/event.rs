//! What matters of events.

use super::metadata;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use serde::Deserialize;

/// An event, whoever has published it.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = Event)]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    /// Metadata.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// `Normal` or `Warning`.
    #[serde(default, rename = "type")]
    pub type_: Option<String>,
    /// Reason.
    #[serde(default)]
    pub reason: Option<String>,
    /// What it says.
    #[serde(default)]
    pub note: Option<String>,
    /// What it is about.
    #[serde(default)]
    pub regarding: RegardingView,
    /// When it was published first, by new publishers.
    #[serde(default)]
    pub event_time: Option<MicroTime>,
    /// When it was published last, by new publishers.
    #[serde(default)]
    pub series: Option<SeriesView>,
    /// When it was published last, by old publishers.
    #[serde(default)]
    pub deprecated_last_timestamp: Option<Time>,
}

/// What an event is about.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RegardingView {
    /// Kind.
    pub kind: Option<String>,
    /// Name.
    pub name: Option<String>,
    /// UID.
    pub uid: Option<String>,
}

/// Repetitions of an event.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SeriesView {
    /// When it was published last.
    pub last_observed_time: Option<MicroTime>,
}

impl EventView {
    /// When it was published last.
    #[must_use]
    pub fn at(&self) -> Option<Timestamp> {
        let repeated = self.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|t| t.0);
        let old = self.deprecated_last_timestamp.as_ref().map(|t| t.0);
        let first = self.event_time.as_ref().map(|t| t.0);
        repeated.or(old).or(first).or(self.metadata.creation_timestamp.as_ref().map(|t| t.0))
    }
}
