//! The controller of PeerPods, and its scenarios. Instances are VirtualMachines of the same namespace, which no operator runs.

use crate::components::{Cluster, Kind, VIRTUAL_MACHINE};
use crate::enumeration::run::Run;
use crate::enumeration::{self, Controller, History, Scenario, Started, Step};
use crate::install;
use crate::layer::Layer;
use crate::timings::Timings;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use vm_operator::controllers::peerpod::{MANAGER, PeerPodController};
use vm_operator::k8s::tasks::Tasks;
use vm_operator::settings::peerpod::{PeerPodSettings, VirtualMachineProvider};

const PEERPOD: Kind = Kind {
    version: "v1alpha1",
    ..Kind::new("confidentialcontainers.org", "PeerPod", "peerpods")
};

/// The controller of PeerPods.
pub const CONTROLLER: Controller = Controller {
    kinds: &[PEERPOD, VIRTUAL_MACHINE],
    name: "one",
    follows: &["peerpods"],
    definitions: install::definitions,
    prepare: |client| enumeration::create_namespace(client, "kube-system").boxed(),
    start,
    is_settled,
    // A denied request is reported, and sent again after a minute.
    is_reported: |_, _| false,
    reports: |_, _, _| false,
    judge,
};

fn start(layer: &Layer, namespace: &str, timings: &Timings) -> Started {
    let cluster = enumeration::cluster(layer, namespace, timings, MANAGER);
    let namespaces = vec![namespace.to_owned()];
    let settings = PeerPodSettings {
        namespaces: namespaces.clone(),
        virtual_machine: VirtualMachineProvider { namespaces },
        ..PeerPodSettings::default()
    };
    let environment = HashMap::new();
    let controller = PeerPodController::new(cluster, namespace.to_owned(), settings, environment);
    let changes = controller.watch();
    enumeration::started(Arc::new(controller), changes, Tasks::default())
}

/// No `PeerPod` is being deleted.
fn is_settled(cluster: &Cluster, namespace: &str) -> bool {
    let present = cluster.present(namespace);
    let mut peerpods = present.iter().filter(|((kind, _), _)| *kind == "PeerPod");
    peerpods.all(|(_, peerpod)| peerpod["metadata"]["deletionTimestamp"].is_null())
}

/// An instance is deleted only after its pod, or if the pod has a younger `PeerPod`. A `PeerPod` disappears only after its instance, unless a
/// person has abandoned it, or the younger one has the instance.
fn judge(history: &History) -> Vec<String> {
    let (mut found, mut present) = (Vec::new(), BTreeSet::new());
    for entry in &history.history {
        let object = &entry.object;
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let has = |kind, name: &str| present.contains(&(kind, name.to_owned()));
        let instance = object["spec"]["instanceID"].as_str().unwrap_or_default();
        let instance = instance.split('/').nth(1).unwrap_or_default();
        let is_replaced = has("PeerPod", "two");
        let is_abandoned = !object["metadata"]["annotations"][ABANDON].is_null();
        let is_ending = entry.deleted || object["metadata"]["deletionTimestamp"].is_string();
        match entry.kind {
            "PeerPod"
                if entry.deleted
                    && has("VirtualMachine", instance)
                    && !is_abandoned
                    && !is_replaced =>
            {
                found.push(format!("a PeerPod is gone before its instance: {object}"));
            }
            "VirtualMachine" if is_ending && has("Pod", "pod") && !is_replaced => {
                found.push(format!("an instance ends before its pod: {object}"));
            }
            _ => {}
        }
        match entry.deleted {
            true => present.remove(&(entry.kind, name)),
            false => present.insert((entry.kind, name)),
        };
    }
    found
}

/// Creates a pod, its instance, and the `PeerPod` of both.
fn create<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"},
            "spec": {"containers": [{"name": "main", "image": "main"}]},
        });
        let pod = run.cluster.make(&run.namespace, "Pod", pod).await;
        let vm = instance(run, "vm-of-pod", &pod).await;
        peerpod(run, "one", &pod, &vm).await;
    }
    .boxed()
}

/// Creates the instance of a pod.
async fn instance(run: &Run, name: &str, pod: &Value) -> Value {
    let request = http::Request::get("/api/v1/namespaces/kube-system").body(Vec::new());
    let system: Value = run.cluster.client.request(request.unwrap()).await.unwrap();
    let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap().to_owned();
    let vm = json!({
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine",
        "metadata": {
            "name": name,
            "labels": {"peerpod.vmoperator.jdrupes.org/cluster": uid(&system)},
            "annotations": {"peerpod.vmoperator.jdrupes.org/pod": format!("{}/pod/{}", run.namespace, uid(pod))},
        },
        "spec": {"vm": {"maximumRam": "1Gi", "networks": [{"user": {}}]}},
    });
    run.cluster.make(&run.namespace, "VirtualMachine", vm).await
}

/// Creates a `PeerPod` as the cloud-api-adaptor does.
async fn peerpod(run: &Run, name: &str, pod: &Value, vm: &Value) {
    let text = |field: &str| vm["metadata"][field].as_str().unwrap();
    let id = format!("{}/{}/{}", run.namespace, text("name"), text("uid"));
    let owner = json!({
        "apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": pod["metadata"]["uid"], "controller": true,
        "blockOwnerDeletion": true,
    });
    let peerpod = json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
        "metadata": {"name": name, "finalizers": ["peer.pod/finalizer"], "ownerReferences": [owner]},
        "spec": {"cloudProvider": "virtualmachine", "instanceID": id},
    });
    run.cluster.make(&run.namespace, "PeerPod", peerpod).await;
}

fn delete_pod<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    run.deleted_by_others += 1;
    let pods = run.cluster.api("Pod", Some(&run.namespace));
    async move { drop(pods.delete("pod", &DeleteParams::default()).await.unwrap()) }.boxed()
}

/// Deletes the instance after the pod, as the cloud-api-adaptor does, but without the removal of the finalizer.
fn delete_instance<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        while run.cluster.get(&run.namespace, "Pod", "pod").is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let vms = run.cluster.api("VirtualMachine", Some(&run.namespace));
        vms.delete("vm-of-pod", &DeleteParams::default())
            .await
            .unwrap();
    }
    .boxed()
}

/// Creates a younger `PeerPod` of the pod, after the adaptor has started the pod again.
async fn younger(run: &Run, is_same_instance: bool) {
    tokio::time::sleep(Duration::from_secs(2)).await;
    let get = |kind, name| run.cluster.get(&run.namespace, kind, name).unwrap();
    let pod = get("Pod", "pod");
    let vm = match is_same_instance {
        true => get("VirtualMachine", "vm-of-pod"),
        false => instance(run, "vm-of-younger", &pod).await,
    };
    peerpod(run, "two", &pod, &vm).await;
}

fn replace<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    younger(run, false).boxed()
}

fn share<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    younger(run, true).boxed()
}

/// Abandons the instance of a `PeerPod` that is being deleted.
fn abandon<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        let peerpod = run.cluster.get(&run.namespace, "PeerPod", "one").unwrap();
        let annotation =
            json!({"metadata": {"annotations": {ABANDON: peerpod["spec"]["instanceID"]}}});
        let annotated = run
            .cluster
            .merge("PeerPod", &run.namespace, "one", "", annotation);
        annotated.await.unwrap();
    }
    .boxed()
}

/// The annotation with which a person abandons an instance.
const ABANDON: &str = "peerpod.vmoperator.jdrupes.org/abandon";

const CREATED: &[Step] = &[Step::Act(create), Step::Start];

const INSTANCE: Option<(&str, &str)> = Some(("VirtualMachine/vm-of-pod", "vm-of-pod"));
const INSTANCE_OF_YOUNGER: Option<(&str, &str)> =
    Some(("VirtualMachine/vm-of-younger", "vm-of-younger"));

const fn scenario(
    name: &'static str,
    steps: &'static [Step],
    says: Option<(&'static str, &'static str)>,
) -> Scenario {
    Scenario {
        name,
        spec: "{}",
        before: CREATED,
        steps,
        ready: "",
        says,
    }
}

/// The scenarios.
pub const SCENARIOS: &[Scenario] = &[
    scenario("peerpod-ends", &[Step::Act(delete_pod)], None),
    scenario(
        "peerpod-first",
        &[Step::Delete, Step::Act(delete_pod)],
        None,
    ),
    scenario(
        "instance-gone",
        &[Step::Act(delete_pod), Step::Act(delete_instance)],
        None,
    ),
    scenario(
        "instance-replaced",
        &[Step::Act(replace)],
        INSTANCE_OF_YOUNGER,
    ),
    scenario("instance-shared", &[Step::Act(share)], INSTANCE),
    scenario(
        "instance-abandoned",
        &[Step::Delete, Step::Act(abandon)],
        INSTANCE,
    ),
];
