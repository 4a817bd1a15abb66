//! The metrics of PeerPods.

use crate::telemetry::metrics::OwnMetrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The outcomes of releases.
const OUTCOMES: [&str; 5] = ["Deleted", "Gone", "NoInstance", "Replaced", "Abandoned"];

/// The metrics of PeerPods.
pub struct PeerPodMetrics {
    released: Family<[(&'static str, &'static str); 1], Counter>,
    failures: Family<[(&'static str, &'static str); 2], Counter>,
    is_up: Family<[(&'static str, &'static str); 1], Gauge>,
}

impl OwnMetrics for PeerPodMetrics {
    fn registered(registry: &mut Registry) -> Self {
        let released = Family::<[(&str, &str); 1], Counter>::default();
        // A rate needs the value before the first release.
        for outcome in OUTCOMES {
            drop(released.get_or_create(&[("outcome", outcome)]));
        }
        let help = "PeerPods that were released, by outcome: Deleted, Gone, NoInstance, Replaced or Abandoned";
        registry.register("peerpod_released", help, released.clone());
        let (failures, is_up) = (Family::default(), Family::default());
        let help = "Failed calls to providers of instances, by provider and reason";
        registry.register("peerpod_provider_failures", help, Family::clone(&failures));
        let help = "1 if the last calls to the provider were answered, 0 during the pause after a failure of all calls";
        registry.register("peerpod_provider_up", help, Family::clone(&is_up));
        Self {
            released,
            failures,
            is_up,
        }
    }
}

impl PeerPodMetrics {
    /// Counts a failed call.
    pub fn failed(&self, provider: &'static str, reason: &'static str) {
        let labels = [("provider", provider), ("reason", reason)];
        self.failures.get_or_create(&labels).inc();
    }

    /// Sets whether the provider answers.
    pub fn set_up(&self, provider: &'static str, is_up: bool) {
        self.is_up
            .get_or_create(&[("provider", provider)])
            .set(is_up.into());
    }

    /// Counts a release.
    pub fn released(&self, outcome: &'static str) {
        self.released.get_or_create(&[("outcome", outcome)]).inc();
    }
}
