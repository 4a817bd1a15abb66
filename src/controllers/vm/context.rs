//! What every reconcile of a VM needs: the cluster, the stores, the configuration and the remembered state.

use crate::api::VirtualMachine;
use crate::api::conditions;
use crate::controllers::vm::images::progress_cache::Progresses;
use crate::controllers::vm::state::VmStates;
use crate::controllers::vm::views::{
    ClaimView, ConfigMapView, PodView, SecretView, ServiceView, owner_of, vm_of,
};
use crate::k8s::cluster::Cluster;
use crate::k8s::key::ObjectKey;
use crate::k8s::registry::Registry;
use crate::k8s::store::children::Cache;
use crate::k8s::store::primary::PrimaryStore;
use crate::k8s::watch::Namespaces;
use crate::k8s::writer::Writer;
use crate::settings::Settings;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::core::error_boundary::InvalidObject;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What every reconcile of a VM needs.
pub struct Context {
    /// What all controllers share.
    pub cluster: Cluster,
    /// The namespace that is watched.
    pub namespace: String,
    /// The configuration. It does not change: with another one, the operator creates another context.
    pub settings: Settings,
    /// All VMs.
    pub vms: Arc<PrimaryStore<VirtualMachine>>,
    /// The VMs' children.
    pub caches: Caches,
    /// What is remembered of each VM.
    pub states: VmStates,
    /// How far the fetches of CD images are.
    pub progresses: Progresses,
    /// Generates passwords.
    pub random_password: fn() -> String,
    /// VMs that cannot be decoded, by name.
    undecodable: Mutex<BTreeMap<String, InvalidObject>>,
}

/// What is known of the VMs' children, one cache a kind.
pub struct Caches {
    /// All pods of the namespace: any may have the name of a VM.
    pub pods: Arc<Cache<PodView>>,
    /// ConfigMaps of VMs.
    pub config_maps: Arc<Cache<ConfigMapView>>,
    /// All claims of the namespace: disks may have been made by others.
    pub claims: Arc<Cache<ClaimView>>,
    /// Display secrets.
    pub secrets: Arc<Cache<SecretView>>,
    /// Load balancer services.
    pub services: Arc<Cache<ServiceView>>,
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            // A pod has the name of its VM. A pod of another program with that name blocks the VM.
            pods: Arc::new(Cache::new(|pod| Some(ObjectKey::of(pod)))),
            config_maps: Arc::new(Cache::new(labelled_vm)),
            // Claims of no VM are kept, too: a VM may name them.
            claims: Arc::new(Cache::new(|claim| {
                Some(sibling(claim, &owner_of(claim).unwrap_or_default()))
            })),
            secrets: Arc::new(Cache::new(labelled_vm)),
            services: Arc::new(Cache::new(labelled_vm)),
        }
    }
}

fn sibling<K: Resource>(object: &K, name: &str) -> ObjectKey {
    ObjectKey::of(object).sibling(name)
}

/// The VM that the object's label names.
fn labelled_vm<K: Resource>(object: &K) -> Option<ObjectKey> {
    Some(sibling(object, &vm_of(object)?))
}

impl Context {
    /// A context in that cluster, with empty stores.
    #[must_use]
    pub fn new(cluster: Cluster, namespace: String, settings: Settings) -> Self {
        Self {
            states: VmStates::new(cluster.first_backoff, cluster.jitter),
            cluster,
            namespace,
            settings,
            vms: Arc::default(),
            caches: Caches::default(),
            progresses: Progresses::default(),
            random_password,
            undecodable: Mutex::default(),
        }
    }

    /// Adds the stores to the registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.add("vms", self.vms.clone());
        registry.add("pods", self.caches.pods.clone());
        registry.add("configmaps", self.caches.config_maps.clone());
        registry.add("persistentvolumeclaims", self.caches.claims.clone());
        registry.add("secrets", self.caches.secrets.clone());
        registry.add("services", self.caches.services.clone());
    }

    /// Writes into the namespace that is watched.
    #[must_use]
    pub fn writer(&self) -> Writer<'_> {
        Writer::new(&self.cluster, &self.namespace)
    }

    /// The namespace that is watched, for the watches.
    #[must_use]
    pub fn watched_namespace(&self) -> Namespaces {
        Namespaces::Only(vec![self.namespace.clone()])
    }

    /// The key of the object of that name in the namespace that is watched.
    #[must_use]
    pub fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(&self.namespace, name)
    }

    /// VMs that cannot be decoded, by name.
    pub fn undecodable(&self) -> MutexGuard<'_, BTreeMap<String, InvalidObject>> {
        self.undecodable
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Observes how long the start of a VM that runs took, once and only if this operator has created its pod.
    pub fn vm_runs(&self, vm: &ObjectKey, now: Timestamp) {
        let Some(created) = self.states.started(vm) else {
            return;
        };
        let seconds = now.duration_since(created).as_secs_f64();
        tracing::info!(vm = vm.name(), seconds, "the VM runs");
        self.cluster.metrics.vm_start.observe(seconds);
    }

    /// Updates the metrics that count VMs.
    pub fn update_metrics(&self) {
        let (metrics, vms) = (&self.cluster.metrics, self.vms.reader().state());
        metrics.set_vms(vms.iter().map(|vm| ready_reason(vm)));
        let undecodable = i64::try_from(self.undecodable().len()).unwrap_or(i64::MAX);
        metrics.undecodable.set(undecodable);
    }
}

/// The reason of a VM's condition `Ready`, as `kubectl get vms` shows it.
fn ready_reason(vm: &VirtualMachine) -> &str {
    let conditions = vm
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    conditions::find(conditions, conditions::READY).map_or("Unknown", |ready| ready.reason.as_str())
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

#[cfg(test)]
mod tests {
    use super::*;

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
