//! What every reconcile needs: the client, the caches, the settings, and the outside world as parameters.

use crate::controllers::vm::images::progress_cache::Progresses;
use crate::controllers::vm::state::VmStates;
use crate::controllers::vm::views::{
    ClaimView, ConfigMapView, PodView, SecretView, ServiceView, owner_of, vm_of,
};
use crate::k8s::leader::Leadership;
use crate::k8s::store::children::Cache;
use crate::k8s::store::primary::VmStore;
use crate::settings::Settings;
use crate::telemetry::metrics::Metrics;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::core::error_boundary::InvalidObject;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What every reconcile needs.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The namespace that is watched.
    pub namespace: String,
    /// The configuration. It does not change: with another one, the operator creates another context.
    pub settings: Settings,
    /// All VMs.
    pub vms: VmStore,
    /// The VMs' children.
    pub caches: Caches,
    /// What is remembered of each VM.
    pub states: VmStates,
    /// How far the fetches of CD images are.
    pub progresses: Progresses,
    /// Figures for `/metrics`.
    pub metrics: Arc<Metrics>,
    /// A reconcile that takes longer has failed.
    pub deadline: Duration,
    /// The longest pause before a watch begins anew, but for a part that is left to chance.
    pub watch_pause: Duration,
    /// How many reconciles have begun.
    reconciles: AtomicU64,
    /// Whether this operator may write.
    pub leadership: Leadership,
    /// The clock.
    pub now: fn() -> Timestamp,
    /// The clock that nobody sets.
    pub instant: fn() -> Instant,
    /// Makes passwords.
    pub random_password: fn() -> String,
    /// VMs that cannot be decoded, by name.
    undecodable: Mutex<BTreeMap<String, InvalidObject>>,
    /// Whether the API server does not know VMs.
    pub definition_missing: AtomicBool,
}

/// A reconcile that takes longer has failed, if [`Context::deadline`] does not say otherwise.
const DEADLINE: Duration = Duration::from_secs(30);

/// The same of [`Context::watch_pause`].
const WATCH_PAUSE: Duration = Duration::from_secs(5);

/// The delay after the first failed reconcile.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// What is known of the VMs' children, one cache a kind.
pub struct Caches {
    /// All pods of the namespace: any may have the name of a VM.
    pub pods: Cache<PodView>,
    /// ConfigMaps of VMs.
    pub config_maps: Cache<ConfigMapView>,
    /// All claims of the namespace: disks may have been made by others.
    pub claims: Cache<ClaimView>,
    /// Display secrets.
    pub secrets: Cache<SecretView>,
    /// Load balancer services.
    pub services: Cache<ServiceView>,
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            // A pod has the name of its VM. One that is not ours can have it too, and is then in the way.
            pods: Cache::new(|pod| pod.metadata.name.clone()),
            config_maps: Cache::new(vm_of::<ConfigMapView>),
            claims: Cache::new(|claim| Some(owner_of(claim).unwrap_or_default())),
            secrets: Cache::new(vm_of::<SecretView>),
            services: Cache::new(vm_of::<ServiceView>),
        }
    }
}

impl Caches {
    /// How many objects of each kind are known.
    #[must_use]
    pub fn sizes(&self) -> [(&'static str, usize); 5] {
        [
            ("pods", self.pods.len()),
            ("configmaps", self.config_maps.len()),
            ("persistentvolumeclaims", self.claims.len()),
            ("secrets", self.secrets.len()),
            ("services", self.services.len()),
        ]
    }

    /// Whether each has its first list; else the kinds that have not.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let kinds = [
            ("pods", self.pods.is_ready()),
            ("configmaps", self.config_maps.is_ready()),
            ("persistentvolumeclaims", self.claims.is_ready()),
            ("secrets", self.secrets.is_ready()),
            ("services", self.services.is_ready()),
        ];
        kinds
            .into_iter()
            .filter(|(_, ready)| !ready)
            .map(|(kind, _)| kind)
            .collect()
    }

    /// Returns when each has its first list.
    pub async fn ready(&self) {
        futures::join!(
            self.pods.ready(),
            self.config_maps.ready(),
            self.claims.ready(),
            self.secrets.ready(),
            self.services.ready()
        );
    }
}

impl Context {
    /// A context of the only operator, with empty caches, the system's clock and the system's randomness.
    #[must_use]
    pub fn new(client: Client, namespace: String, settings: Settings) -> Self {
        Self {
            client,
            namespace,
            settings,
            vms: VmStore::default(),
            caches: Caches::default(),
            states: VmStates::new(FIRST_BACKOFF, chance),
            progresses: Progresses::default(),
            deadline: DEADLINE,
            watch_pause: WATCH_PAUSE,
            metrics: Arc::default(),
            reconciles: AtomicU64::default(),
            leadership: Leadership::alone(),
            now: Timestamp::now,
            instant: Instant::now,
            random_password,
            undecodable: Mutex::default(),
            definition_missing: AtomicBool::new(false),
        }
    }

    /// VMs that cannot be decoded, by name.
    pub fn undecodable(&self) -> MutexGuard<'_, BTreeMap<String, InvalidObject>> {
        self.undecodable
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// An id for a reconcile that begins, which no other of this process has.
    pub fn reconcile_id(&self) -> u64 {
        self.reconciles.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Observes how long the start of a VM that runs took, once and only if this operator has created its pod.
    pub fn vm_runs(&self, name: &str, now: Timestamp) {
        let Some(created) = self.states.started(name) else {
            return;
        };
        let seconds = now.duration_since(created).as_secs_f64();
        tracing::info!(vm = name, seconds, "the VM runs");
        self.metrics.vm_start.observe(seconds);
    }
}

/// 16 random bytes in Base64, as the reference makes them.
fn random_password() -> String {
    use base64::Engine;
    let mut bytes = [0; 16];
    // The kernel's generator does not fail once the system has booted; a predictable password must not be made.
    if getrandom::fill(&mut bytes).is_err() {
        tracing::error!("no randomness; ending");
        std::process::exit(70);
    }
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// From 0 to 1.
fn chance() -> f64 {
    let mut bytes = [0; 4];
    // Without randomness nothing is left to chance.
    match getrandom::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_is_spread_between_none_and_all() {
        let chances: Vec<f64> = (0..1000).map(|_| chance()).collect();
        assert!(chances.iter().all(|chance| (0.0..=1.0).contains(chance)));
        assert!(
            chances.iter().any(|chance| *chance < 0.1)
                && chances.iter().any(|chance| *chance > 0.9)
        );
    }

    #[test]
    fn passwords_are_as_long_as_the_references_and_never_the_same() {
        let passwords: std::collections::BTreeSet<String> =
            (0..100).map(|_| random_password()).collect();
        assert_eq!(passwords.len(), 100);
        assert!(
            passwords.iter().all(|password| password.len() == 24),
            "{passwords:?}"
        );
    }
}
