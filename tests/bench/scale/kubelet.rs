//! Simulates the volume binder, the kubelet and the runner: binds claims, runs pods, and reports as the runner does.

use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::time::Duration;
use vm_operator::api::vm::names;
use vm_operator::api::{VirtualMachine, VmReport};

/// Concurrent requests.
const WORKERS: usize = 16;
/// Attempts to write a report, and the delay between them.
const RETRIES: usize = 600;
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Starts the simulation, which runs until the process exits.
pub fn start(client: &Client, namespace: &str) {
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
    let bound = watcher(claims.clone(), watcher::Config::default())
        .default_backoff()
        .applied_objects();
    tokio::spawn(bound.for_each_concurrent(WORKERS, move |claim| {
        let claims = claims.clone();
        async move {
            let Ok(claim) = claim else { return };
            if claim
                .status
                .as_ref()
                .is_some_and(|status| status.phase.as_deref() == Some("Pending"))
            {
                patch_status(&claims, &claim.name_any(), &json!({"phase": "Bound"})).await;
            }
        }
    }));
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let client = client.clone();
    let made = watcher(pods.clone(), watcher::Config::default())
        .default_backoff()
        .applied_objects();
    tokio::spawn(made.for_each_concurrent(WORKERS, move |pod| {
        let (pods, client) = (pods.clone(), client.clone());
        async move {
            let Ok(pod) = pod else { return };
            if pod
                .status
                .as_ref()
                .is_some_and(|status| status.phase.as_deref() == Some("Pending"))
            {
                patch_status(&pods, &pod.name_any(), &running(&pod)).await;
                report(&client, &pod).await;
            }
        }
    }));
}

async fn patch_status<K>(api: &Api<K>, name: &str, status: &Value)
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let patch = Patch::Merge(json!({"status": status}));
    if let Err(error) = api
        .patch_status(name, &PatchParams::default(), &patch)
        .await
    {
        eprintln!("{name}: {error}");
    }
}

fn running(pod: &Pod) -> Value {
    let container = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.containers.first())
        .map(|container| &container.name);
    let now = Timestamp::now().to_string();
    let condition =
        |type_: &str| json!({"type": type_, "status": "True", "lastTransitionTime": now});
    json!({
        "phase": "Running",
        "podIP": "10.1.2.3",
        "startTime": now,
        "conditions": [condition("PodScheduled"), condition("Initialized"), condition("Ready")],
        "containerStatuses": [{
            "name": container, "ready": true, "started": true, "restartCount": 0, "image": "none", "imageID": "none",
            "state": {"running": {"startedAt": now}},
        }],
    })
}

/// The report of the runner of a booted guest. It retries, because the operator creates the report after the pod.
async fn report(client: &Client, pod: &Pod) {
    let namespace = pod.namespace().unwrap_or_default();
    let vms = Api::<VirtualMachine>::namespaced(client.clone(), &namespace);
    let Ok(vm) = vms.get(&pod.name_any()).await else {
        return;
    };
    let now = Timestamp::now().to_string();
    let condition = |type_: &str, reason: &str| {
        json!({
            "type": type_, "status": "True", "reason": reason, "message": "", "lastTransitionTime": now,
            "observedGeneration": vm.metadata.generation,
        })
    };
    let conditions = [
        ("Running", "VmBooted"),
        ("Booted", "VmBooted"),
        ("ConfigInSync", "Applied"),
    ];
    let status = json!({
        "cpus": 1, "ram": "1Gi",
        "conditions": conditions.map(|(type_, reason)| condition(type_, reason)),
    });
    let name = pod.uid().unwrap_or_default();
    let body = json!({
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VmReport", "metadata": {"name": name}, "status": status,
    });
    let reports = Api::<VmReport>::namespaced(client.clone(), &namespace);
    let params = PatchParams::apply(names::MANAGER_RUNNER).force();
    for _ in 0..RETRIES {
        match reports
            .patch_status(&name, &params, &Patch::Apply(&body))
            .await
        {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if status.code == 404 => {
                tokio::time::sleep(RETRY_DELAY).await;
            }
            Err(error) => return eprintln!("{name}: {error}"),
        }
    }
    eprintln!("{name}: the operator has not created the report");
}
