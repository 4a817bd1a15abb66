//! What every reconcile needs: the client, the caches, the settings, and the outside world as parameters.

use super::backoff::Failures;
use super::cache::Cache;
use super::lately::Lately;
use super::leader::Leadership;
use super::logs::LogLevel;
use super::losses::Losses;
use super::metrics::Metrics;
use super::progress::Progresses;
use super::refusals::Refusals;
use super::settings::Settings;
use super::starts::Starts;
use super::versions::{Versions, version};
use super::views::{ClaimView, ConfigMapView, PodView, SecretView, ServiceView, owner_of, vm_of};
use super::warnings::Warnings;
use crate::api::VirtualMachine;
use k8s_openapi::jiff::Timestamp;
use kube::{Client, ResourceExt};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What every reconcile needs.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The namespace that is watched.
    pub namespace: String,
    /// The operator's own namespace, where its ConfigMap and its Deployment are. None: it has only a file.
    pub home: Option<String>,
    /// What is known of the VMs' children.
    pub caches: Caches,
    /// Failures in a row, by VM.
    pub failures: Failures,
    /// Pods that others have deleted, by VM.
    pub losses: Losses,
    /// When what was refused is asked for again, by VM.
    pub refusals: Refusals,
    /// How far the fetches of CD images are.
    pub progresses: Progresses,
    /// Figures for `/metrics`.
    pub metrics: Arc<Metrics>,
    /// A reconcile that takes longer has failed.
    pub deadline: Duration,
    /// The longest pause before a watch begins anew, but for a part that is left to chance.
    pub watch_pause: Duration,
    /// How much is logged.
    pub log_level: LogLevel,
    /// How many reconciles have begun.
    reconciles: AtomicU64,
    /// The VMs that are being started.
    starts: Mutex<Starts>,
    /// Whether this operator may write.
    pub leadership: Leadership,
    /// The clock.
    pub now: fn() -> Timestamp,
    /// The clock that nobody sets.
    pub instant: fn() -> Instant,
    /// VMs that were told lately what the API server refuses, or what an earlier one of whose name had left was removed lately;
    /// and the image repository where it was refused lately.
    pub lately: Lately,
    /// How old a VM is before what an earlier one of its name has left is removed: the garbage collector's time for that.
    pub garbage: Duration,
    /// Makes passwords.
    pub random_password: fn() -> String,
    /// The newest version of each VM that was known.
    pub versions: Versions,
    /// VMs as the answers to the operator's own writes showed them, until the watch shows them as new.
    written: Mutex<HashMap<String, Arc<VirtualMachine>>>,
    settings: Mutex<Arc<Settings>>,
    /// Whether the API server does not know VMs.
    pub definition_missing: AtomicBool,
}

/// A reconcile that takes longer has failed, if [`Context::deadline`] does not say otherwise.
const DEADLINE: Duration = Duration::from_secs(30);

/// The same of [`Context::watch_pause`].
const WATCH_PAUSE: Duration = Duration::from_secs(5);

/// The same of [`Context::garbage`]. It takes seconds, if not thousands of VMs are deleted at once.
const GARBAGE: Duration = Duration::from_secs(60);

/// How long the first list of events is waited for.
const EVENTS_DEADLINE: Duration = Duration::from_secs(10);

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
    /// Warnings about pods and claims.
    pub warnings: Warnings,
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
            warnings: Warnings::default(),
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
        kinds.into_iter().filter(|(_, ready)| !ready).map(|(kind, _)| kind).collect()
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
        // Only explanations need these: an operator that must not list events works without them.
        if tokio::time::timeout(EVENTS_DEADLINE, self.warnings.ready()).await.is_err() {
            tracing::warn!("events are not listed yet; going on without them");
        }
    }
}

impl Context {
    /// A context of the only operator, with empty caches, the system's clock and the system's randomness.
    #[must_use]
    pub fn new(client: Client, namespace: String, settings: Settings) -> Self {
        Self {
            client,
            namespace,
            home: None,
            settings: Mutex::new(Arc::new(settings)),
            caches: Caches::default(),
            failures: Failures::by_chance(chance),
            losses: Losses::default(),
            refusals: Refusals::new(chance),
            progresses: Progresses::default(),
            deadline: DEADLINE,
            watch_pause: WATCH_PAUSE,
            metrics: Arc::default(),
            log_level: LogLevel::default(),
            reconciles: AtomicU64::default(),
            starts: Mutex::default(),
            leadership: Leadership::alone(),
            now: Timestamp::now,
            instant: Instant::now,
            lately: Lately::default(),
            garbage: GARBAGE,
            random_password,
            versions: Versions::default(),
            written: Mutex::default(),
            definition_missing: AtomicBool::new(false),
        }
    }

    /// The settings in force. Whoever needs them twice for one purpose keeps what it got.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts other settings in force.
    pub fn set_settings(&self, settings: Settings) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Takes in a VM that the answer to an own write shows.
    pub fn wrote_vm(&self, vm: VirtualMachine) -> Arc<VirtualMachine> {
        let vm = Arc::new(vm);
        self.versions.saw(&vm);
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.insert(vm.name_any(), vm.clone());
        vm
    }

    /// The newer of the VM as the watch shows it and as the last own write did.
    #[must_use]
    pub fn newest(&self, watched: Arc<VirtualMachine>) -> Arc<VirtualMachine> {
        let name = watched.name_any();
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        match written.get(&name) {
            Some(own) if own.uid() == watched.uid() && version(own.as_ref()) > version(watched.as_ref()) => own.clone(),
            _ => {
                written.remove(&name);
                watched
            }
        }
    }

    /// An id for a reconcile that begins, which no other of this process has.
    pub fn reconcile_id(&self) -> u64 {
        self.reconciles.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn starts(&self) -> MutexGuard<'_, Starts> {
        self.starts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers that a VM's pod was created.
    pub fn pod_created(&self, name: &str, now: Timestamp) {
        self.starts().created(name, now);
    }

    /// Whether this VM's pod is just made, and so are others': what there is to say of it can wait.
    #[must_use]
    pub fn is_one_of_many(&self, name: &str, now: Timestamp) -> bool {
        self.starts().is_one_of_many(name, now)
    }

    /// Counts how long the start of a VM that runs took, once, if this operator has created its pod.
    pub fn vm_runs(&self, name: &str, now: Timestamp) {
        let Some(created) = self.starts().runs(name) else { return };
        let seconds = now.duration_since(created).as_secs_f64();
        tracing::info!(vm = name, seconds, "the VM runs");
        self.metrics.vm_start.observe(seconds);
    }

    /// Forgets a VM that is gone.
    pub fn forget(&self, name: &str) {
        self.starts().forget(name);
        self.failures.forget(name);
        self.losses.forget(name);
        self.refusals.forget(name);
        self.versions.forget(name);
        self.lately.forget(&format!("vm/{name}"));
        self.lately.forget(&format!("leftovers/{name}"));
        self.written.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
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
        assert!(chances.iter().any(|chance| *chance < 0.1) && chances.iter().any(|chance| *chance > 0.9));
    }

    #[test]
    fn passwords_are_as_long_as_the_references_and_never_the_same() {
        let passwords: std::collections::BTreeSet<String> = (0..100).map(|_| random_password()).collect();
        assert_eq!(passwords.len(), 100);
        assert!(passwords.iter().all(|password| password.len() == 24), "{passwords:?}");
    }
}
