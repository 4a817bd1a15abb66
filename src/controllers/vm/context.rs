//! The VM controller: cluster, stores, configuration and remembered state.

use crate::api::VirtualMachine;
use crate::controllers::vm::images::ProgressCache;
use crate::controllers::vm::metrics::VirtualMachineMetrics;
use crate::controllers::vm::state::VmStates;
use crate::controllers::vm::views::{ConfigMapView, ReportView, VmView, owner_of, vm_of};
use crate::k8s::cluster::Cluster;
use crate::k8s::key::ObjectKey;
use crate::k8s::registry::Registry;
use crate::k8s::scope::Scope;
use crate::k8s::store::children::Cache;
use crate::k8s::store::primary::PrimaryStore;
use crate::k8s::store::trim::Labelled;
use crate::k8s::undecodable::Undecodable;
use crate::k8s::views::{ClaimView, PodView, SecretView, ServiceView};
use crate::settings::Settings;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use std::sync::Arc;

/// Reconciles VMs.
pub struct VmController {
    /// The watched namespace.
    pub scope: Scope,
    /// The configuration. It never changes: for a changed one, the operator creates a new controller.
    pub settings: Settings,
    /// All VMs.
    pub vms: Arc<PrimaryStore<VirtualMachine>>,
    /// The VMs' children.
    pub caches: Caches,
    /// The remembered state of each VM.
    pub states: VmStates,
    /// The progress of downloads of CD images.
    pub download_progress: ProgressCache,
    /// Generates passwords.
    pub random_password: fn() -> String,
    /// Held while the operator applies the objects of a VM that shares a generated PVC name with another VM. So no PVC of that name is
    /// created between the last check of a PVC and the creation of the pod that names it.
    pub name_conflict_lock: tokio::sync::Mutex<()>,
    /// VMs that cannot be decoded.
    pub undecodable: [Arc<Undecodable>; 1],
    /// The metrics of VMs.
    pub metrics: Arc<VirtualMachineMetrics>,
}

/// The stores of the VMs' children, one for each kind.
pub struct Caches {
    /// All pods of the namespace. Each of them may have the name of a VM.
    pub pods: Arc<Cache<PodView>>,
    /// ConfigMaps of VMs.
    pub config_maps: Arc<Cache<ConfigMapView>>,
    /// All PVCs of the namespace. Users may have created PVCs for VMs.
    pub claims: Arc<Cache<ClaimView>>,
    /// Display Secrets.
    pub secrets: Arc<Cache<SecretView>>,
    /// Load balancer Services.
    pub services: Arc<Cache<ServiceView>>,
    /// The reports of runners.
    pub reports: Arc<Cache<ReportView>>,
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            // A pod has the name of its VM. A pod of another program with that name blocks the VM.
            pods: Arc::new(Cache::new(|pod| Some(ObjectKey::of(pod)))),
            config_maps: Arc::new(Cache::new(labelled_vm)),
            // PVCs without a VM are stored, too: a VM may use them by name.
            claims: Arc::new(Cache::new(|claim| {
                Some(sibling(claim, &owner_of(claim).unwrap_or_default()))
            })),
            secrets: Arc::new(Cache::new(labelled_vm)),
            services: Arc::new(Cache::new(labelled_vm)),
            reports: Arc::new(Cache::new(|report| Some(sibling(report, &report.spec.vm)))),
        }
    }
}

fn sibling<K: Resource>(object: &K, name: &str) -> ObjectKey {
    ObjectKey::of(object).sibling(name)
}

/// The VM that the object's label names.
fn labelled_vm<K: Resource + Labelled>(object: &K) -> Option<ObjectKey> {
    Some(sibling(object, &vm_of(object)?))
}

impl VmController {
    /// A controller with empty stores.
    #[must_use]
    pub fn new(cluster: Cluster, namespace: String, settings: Settings) -> Self {
        let vms = Arc::new(PrimaryStore::default());
        let metrics = cluster.metrics.of::<VirtualMachineMetrics>();
        metrics.set_sources(&vms, cluster.now);
        Self {
            states: VmStates::new(cluster.first_backoff, cluster.jitter),
            scope: Scope { cluster, namespace },
            settings,
            vms,
            caches: Caches::default(),
            download_progress: ProgressCache::default(),
            random_password,
            name_conflict_lock: tokio::sync::Mutex::default(),
            undecodable: [Undecodable::new::<VmView>(Some(
                "the operator does not change the VM's pod",
            ))],
            metrics,
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
        registry.add("vmreports", self.caches.reports.clone());
    }

    /// Records the start time of a running VM in the metric, once and only if this operator has created its pod.
    pub fn record_vm_start(&self, vm: &ObjectKey, now: Timestamp) {
        let Some(created) = self.states.started(vm) else {
            return;
        };
        let seconds = now.duration_since(created).as_secs_f64();
        tracing::info!(vm = vm.name(), seconds, "the VM has started");
        self.metrics.start.observe(seconds);
    }
}

/// 16 random bytes in Base64, the format of the Java VM-Operator.
fn random_password() -> String {
    use base64::Engine;
    let mut bytes = [0; 16];
    // The kernel's generator does not fail after the boot. A predictable password would be worse than an exit.
    if getrandom::fill(&mut bytes).is_err() {
        tracing::error!(
            "the operator exits, because the system call getrandom failed; Kubernetes restarts the operator. Check the \
            seccomp profile of the operator's pod"
        );
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
