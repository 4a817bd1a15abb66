//! The metrics of `SIPClusters`.

use crate::telemetry::metrics::OwnMetrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

type Label = [(&'static str, String); 1];

/// The metrics of `SIPClusters`.
pub struct SipMetrics {
    clusters: Family<Label, Gauge>,
    hosts: Family<Label, Gauge>,
    conflicts: Counter,
}

impl OwnMetrics for SipMetrics {
    fn registered(registry: &mut Registry) -> Self {
        let metrics = Self {
            clusters: Family::default(),
            hosts: Family::default(),
            conflicts: Counter::default(),
        };
        registry.register(
            "sip_clusters",
            "SIPClusters, by the reason of their condition Ready",
            metrics.clusters.clone(),
        );
        registry.register(
            "sip_hosts",
            "Hosts of SIPClusters, by role",
            metrics.hosts.clone(),
        );
        registry.register(
            "sip_claim_conflicts",
            "Labels of hosts that the API server has rejected with a conflict (409), because the host had changed",
            metrics.conflicts.clone(),
        );
        metrics
    }
}

impl SipMetrics {
    /// Removes the numbers of all clusters, before they are set again.
    pub fn clear(&self) {
        self.clusters.clear();
        self.hosts.clear();
    }

    /// Counts a cluster with that reason.
    pub fn cluster(&self, reason: &str) {
        let label = [("reason", reason.to_owned())];
        self.clusters.get_or_create(&label).inc();
    }

    /// Counts hosts of a role.
    pub fn hosts(&self, role: &str, hosts: i64) {
        let label = [("role", role.to_owned())];
        self.hosts.get_or_create(&label).inc_by(hosts);
    }

    /// Counts a conflict.
    pub fn conflict(&self) {
        self.conflicts.inc();
    }
}
