//! The metrics of PeerPods.

use crate::telemetry::metrics::OwnMetrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;

/// The outcomes of releases.
const OUTCOMES: [&str; 5] = ["Deleted", "Gone", "NoInstance", "Replaced", "Abandoned"];

/// The metrics of PeerPods.
pub struct PeerPodMetrics {
    released: Family<[(&'static str, &'static str); 1], Counter>,
    failures: Family<[(&'static str, &'static str); 2], Counter>,
    is_up: Family<[(&'static str, &'static str); 1], Gauge>,
    pending: Family<[(&'static str, &'static str); 1], Gauge>,
    oldest_pending: Gauge,
    orphans: Family<[(&'static str, &'static str); 1], Gauge>,
    orphans_deleted: Family<[(&'static str, &'static str); 1], Counter>,
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
        let (pending, oldest_pending) = (Family::default(), Gauge::default());
        let help = "PeerPods that are being deleted, by the reason of their condition Ready; InProgress without a reason";
        registry.register("peerpod_pending", help, Family::clone(&pending));
        let help = "Age of the oldest deletion of a PeerPod whose pod has ended, in seconds";
        registry.register(
            "peerpod_oldest_pending_seconds",
            help,
            oldest_pending.clone(),
        );
        let (orphans, orphans_deleted) = (Family::default(), Family::default());
        let help = "Instances with the tag of this cluster that no PeerPod and no pod has named for 30 minutes, by provider";
        registry.register("peerpod_orphans", help, Family::clone(&orphans));
        let help = "Deletions of such instances that the controller has requested, by provider";
        registry.register(
            "peerpod_orphans_deleted",
            help,
            Family::clone(&orphans_deleted),
        );
        Self {
            released,
            failures,
            is_up,
            pending,
            oldest_pending,
            orphans,
            orphans_deleted,
        }
    }
}

impl PeerPodMetrics {
    /// Forgets the states that a controller has set. Another process can be the leader now, and knows them.
    pub fn reset(&self) {
        self.is_up.clear();
        self.orphans.clear();
        self.set_pending(&BTreeMap::new(), 0);
    }

    /// Sets the number of deletions by reason, and the age of the oldest one.
    pub fn set_pending(&self, pending: &BTreeMap<&'static str, i64>, oldest_seconds: i64) {
        self.pending.clear();
        for (reason, count) in pending {
            self.pending
                .get_or_create(&[("reason", *reason)])
                .set(*count);
        }
        self.oldest_pending.set(oldest_seconds);
    }

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

    /// Sets the number of orphans.
    pub fn set_orphans(&self, provider: &'static str, count: usize) {
        let gauge = self.orphans.get_or_create(&[("provider", provider)]);
        gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts the deletion of an orphan.
    pub fn orphan_deleted(&self, provider: &'static str) {
        let labels = [("provider", provider)];
        self.orphans_deleted.get_or_create(&labels).inc();
    }

    /// Counts a release.
    pub fn released(&self, outcome: &'static str) {
        self.released.get_or_create(&[("outcome", outcome)]).inc();
    }
}
