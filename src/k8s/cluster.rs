//! The dependencies that all controllers share: the API client, leadership, clocks, randomness and metrics.

use crate::k8s::event_queue::EventQueue;
use crate::k8s::forbidden::Forbidden;
use crate::k8s::leader::Leadership;
use crate::telemetry::metrics::Metrics;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A reconcile that takes longer fails.
const RECONCILE_DEADLINE: Duration = Duration::from_secs(30);

/// The longest delay before a failed watch is requested again.
const WATCH_BACKOFF_MAX: Duration = Duration::from_secs(5);

/// The delay after the first failed reconcile.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// The command that installs the definitions of this project.
const INSTALL_OWN: &str = "kubectl apply -f crds/";

/// The dependencies that all controllers of a process share. Clones share the client, the leadership, the metrics and the queue of events.
#[derive(Clone)]
pub struct Cluster {
    /// The API client.
    pub client: Client,
    /// The names under which the program writes and reports events.
    pub manager: Manager,
    /// Whether this process may write.
    pub leadership: Leadership,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// The events that wait to be published.
    pub events: EventQueue,
    /// The time limit of a reconcile. Default 30 s.
    pub deadline: Duration,
    /// The longest delay before a failed watch is requested again, without jitter. Default 5 s.
    pub watch_backoff_max: Duration,
    /// The delay after the first failed reconcile of an object, without jitter. Default 1 s.
    pub first_backoff: Duration,
    /// The wall clock.
    pub now: fn() -> Timestamp,
    /// The monotonic clock.
    pub instant: fn() -> Instant,
    /// Random numbers from 0 to 1.
    pub jitter: fn() -> f64,
    /// Kinds of other programs that the controllers need.
    pub foreign: &'static [ForeignKind],
    /// Kinds that the operator may not list or watch.
    pub forbidden: Arc<Forbidden>,
    /// The number of reconciles that have started.
    reconciles: Arc<AtomicU64>,
}

/// A kind that another program defines.
#[derive(Clone, Copy, Debug)]
pub struct ForeignKind {
    /// Plural name, for example `pods`.
    pub plural: &'static str,
    /// The command that installs the definition.
    pub install: &'static str,
}

/// Names under which a program writes.
#[derive(Clone, Copy, Debug)]
pub struct Manager {
    /// Field manager of its writes.
    pub field_manager: &'static str,
    /// Reporting controller of its events.
    pub reporter: &'static str,
    /// Action of its events.
    pub action: &'static str,
}

impl Cluster {
    /// The cluster for a program without leader election, with the system's clocks and randomness.
    #[must_use]
    pub fn new(client: Client, manager: Manager) -> Self {
        Self {
            client,
            manager,
            leadership: Leadership::alone(),
            metrics: Arc::default(),
            events: EventQueue::default(),
            deadline: RECONCILE_DEADLINE,
            watch_backoff_max: WATCH_BACKOFF_MAX,
            first_backoff: FIRST_BACKOFF,
            now: Timestamp::now,
            instant: Instant::now,
            jitter,
            foreign: &[],
            forbidden: Arc::default(),
            reconciles: Arc::default(),
        }
    }

    /// The command that installs the definition of the kind with that plural name.
    #[must_use]
    pub fn install_command(&self, plural: &str) -> &'static str {
        let foreign = self.foreign.iter().find(|kind| kind.plural == plural);
        foreign.map_or(INSTALL_OWN, |kind| kind.install)
    }

    /// An id for a reconcile, unique in this process.
    #[must_use]
    pub fn reconcile_id(&self) -> u64 {
        self.reconciles.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A random number from 0 to 1.
fn jitter() -> f64 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX),
        // Without randomness there is no jitter.
        Err(_) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_spread_between_0_and_1() {
        let numbers: Vec<f64> = (0..1000).map(|_| jitter()).collect();
        assert!(numbers.iter().all(|number| (0.0..=1.0).contains(number)));
        assert!(numbers.iter().any(|number| *number < 0.1));
        assert!(numbers.iter().any(|number| *number > 0.9));
    }
}
