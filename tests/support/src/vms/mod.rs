//! The controller of VMs and its scenarios for the [`enumeration`](crate::enumeration).
//!
//! | file | content |
//! |---|---|
//! | `adopted` | a VM of the Java VM-Operator |
//! | `orphans` | the orphaned objects of a previous VM with the same name |
//! | `scenarios` | the scenarios |

mod adopted;
mod orphans;
mod scenarios;

pub use scenarios::SCENARIOS;

use crate::components::{Cluster, VM_KINDS};
use crate::enumeration::{self, Controller, History, Started};
use crate::fault::Fault;
use crate::final_state::ready;
use crate::install;
use crate::invariants::{final_violations, violations};
use crate::layer::Layer;
use crate::timings::Timings;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Client;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use vm_operator::controllers::vm;
use vm_operator::controllers::vm::context::VmController;
use vm_operator::k8s::controller;
use vm_operator::k8s::registry::Stored;
use vm_operator::k8s::tasks::Tasks;
use vm_operator::settings::{LoadBalancerService, Settings};

/// The controller of VMs.
pub const CONTROLLER: Controller = Controller {
    kinds: &VM_KINDS,
    name: "vm",
    follows: &[
        "vms",
        "pods",
        "configmaps",
        "persistentvolumeclaims",
        "secrets",
        "services",
        "vmreports",
    ],
    definitions: install::definitions,
    prepare,
    start,
    is_settled,
    is_reported,
    reports,
    judge,
};

/// A storage class with volumes that can be expanded.
fn prepare(client: &Client) -> BoxFuture<'_, ()> {
    Box::pin(async {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "grows"},
            "provisioner": "test", "allowVolumeExpansion": true,
        });
        let request = http::Request::post("/apis/storage.k8s.io/v1/storageclasses")
            .header("Content-Type", "application/json");
        client
            .request::<Value>(request.body(class.to_string().into_bytes()).unwrap())
            .await
            .unwrap();
    })
}

fn start(layer: &Layer, namespace: &str, timings: &Timings) -> Started {
    let mut settings = Settings::default();
    settings.reconciler.load_balancer_service = LoadBalancerService::On {
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    };
    let cluster = enumeration::cluster(layer, namespace, timings, vm::MANAGER);
    let mut ctx = VmController::new(cluster, namespace.to_owned(), settings);
    ctx.random_password = || "secret".to_owned();
    let ctx = Arc::new(ctx);
    let task = tokio::spawn(operate(ctx.clone(), std::future::pending()));
    let busy_reason =
        move || (ctx.states.failing() > 0).then(|| "the last reconcile has failed".to_owned());
    Started {
        task,
        busy_reason: Box::new(busy_reason),
    }
}

/// Runs the controller of VMs until `stop` is complete. It starts after the first lists of all children.
pub async fn operate(ctx: Arc<VmController>, stop: impl Future<Output = ()> + Send + 'static) {
    let mut tasks = Tasks::default();
    let changes = vm::watch(&ctx, &mut tasks);
    children_listed(&ctx).await;
    let reconciling = controller::run(ctx, changes, stop.boxed().shared());
    tokio::select! {
        () = reconciling => {}
        ended = tasks.ended() => panic!("{ended}"),
    }
}

/// Returns when all children are listed.
pub async fn children_listed(ctx: &VmController) {
    let caches = &ctx.caches;
    futures::join!(
        caches.pods.ready(),
        caches.config_maps.ready(),
        caches.claims.ready(),
        caches.secrets.ready(),
        caches.services.ready(),
        caches.reports.ready()
    );
}

fn is_settled(cluster: &Cluster, namespace: &str) -> bool {
    let Some(vm) = cluster.get(namespace, "VirtualMachine", "vm") else {
        return true;
    };
    let is_ready = matches!(
        ready(Some(&vm)).as_str(),
        "Running" | "Stopped" | "DataMissing"
    );
    is_ready && vm["status"]["observedGeneration"] == vm["metadata"]["generation"]
}

/// Whether a rejection is reported in a condition. Such a change of a pod or PVC is requested again only when the VM
/// changes: the rejection is mostly final, and retries would make a settled VM cause requests forever.
fn is_reported(place: &str, fault: Fault) -> bool {
    let is_asked_once =
        place.contains("pods/vm/resize") || place.starts_with("PATCH persistentvolumeclaims/");
    // A PVC that is not found is handled in the next reconcile.
    let codes: &[u16] = if place.contains("/resize") {
        &[403, 404, 422]
    } else {
        &[403, 422]
    };
    is_asked_once && matches!(fault, Fault::Refused(code) if codes.contains(&code))
}

fn reports(cluster: &Cluster, namespace: &str, message: &str) -> bool {
    let vm = cluster
        .get(namespace, "VirtualMachine", "vm")
        .unwrap_or_default();
    let mut conditions = vm["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| {
        condition["message"]
            .as_str()
            .is_some_and(|text| text.contains(message))
    })
}

fn judge(history: &History) -> Vec<String> {
    let mut found = violations(&history.history, history.deleted_by_others);
    if history.ended_as_expected {
        found.extend(final_violations(&history.history));
    }
    found
}
