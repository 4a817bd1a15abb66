//! The metrics of PeerPods.

use crate::telemetry::metrics::OwnMetrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// The outcomes of releases.
const OUTCOMES: [&str; 5] = ["Deleted", "Gone", "NoInstance", "Replaced", "Abandoned"];

/// The metrics of PeerPods.
pub struct PeerPodMetrics {
    released: Family<[(&'static str, &'static str); 1], Counter>,
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
        Self { released }
    }
}

impl PeerPodMetrics {
    /// Counts a release.
    pub fn released(&self, outcome: &'static str) {
        self.released.get_or_create(&[("outcome", outcome)]).inc();
    }
}
