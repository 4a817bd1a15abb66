//! The controller of PeerPods, and its scenarios. Instances are VirtualMachines of the same namespace, which no operator runs. [`aws`] has
//! those with instances of EC2, and [`libvirt`] those with domains.

pub mod aws;
mod ec2;
mod leaders;
pub mod libvirt;
mod libvirtd;

use crate::components::{Cluster, Entry, Kind, VIRTUAL_MACHINE};
use crate::enumeration::run::Run;
use crate::enumeration::{self, Controller, History, Scenario, Started, Step};
use crate::install;
use crate::layer::Layer;
use crate::timings::Timings;
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
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

fn judge(history: &History) -> Vec<String> {
    let (mut present, mut found) = (Present::new(), Vec::new());
    for entry in &history.history {
        let object = &entry.object;
        let name = object["metadata"]["name"].as_str().unwrap();
        let key = (entry.kind, name.to_owned());
        let before = present.get(&key);
        let wrong = match entry.kind {
            "PeerPod" => wrong_end_of_peerpod(&present, before, entry),
            _ if before.and_then(ended_by_controller).is_some() => None,
            _ => ended_by_controller(object)
                .and_then(|time| wrong_end_of_instance(&present, name, object, time)),
        };
        found.extend(wrong.map(|why| format!("{why}: {object}")));
        match entry.deleted {
            true => present.remove(&key),
            false => present.insert(key, object.clone()),
        };
    }
    found
}

type Present = BTreeMap<(&'static str, String), Value>;

/// The finalizer never comes back. A `PeerPod` disappears only after its instance, unless a person has abandoned it, or another one has the
/// instance.
fn wrong_end_of_peerpod(
    present: &Present,
    before: Option<&Value>,
    entry: &Entry,
) -> Option<&'static str> {
    let (object, of) = (&entry.object, instance_of(&entry.object));
    let is_free = |it: &Value| {
        !it["metadata"]["finalizers"]
            .to_string()
            .contains("peer.pod/")
    };
    if before.is_some_and(is_free) && !is_free(object) {
        return Some("the finalizer is back");
    }
    let is_instance = |((kind, name), it): (&(&str, String), &Value)| {
        *kind != "PeerPod" && name == of && it["data"]["state"] != "terminated"
    };
    let is_other =
        |it: &Value| instance_of(it) == of && it["metadata"]["name"] != object["metadata"]["name"];
    let is_abandoned = !object["metadata"]["annotations"][ABANDON].is_null();
    let is_wrong = entry.deleted && !is_abandoned && present.iter().any(is_instance);
    (is_wrong && !peerpods(present).any(is_other))
        .then_some("a PeerPod is gone before its instance")
}

/// The controller ends an instance only after its pod, or if the pod has a younger `PeerPod` with another one. The adaptor has 10 s before, or
/// 30 min if no `PeerPod` names the instance. In the developer mode, the controller ends none.
fn wrong_end_of_instance(
    present: &Present,
    name: &str,
    object: &Value,
    time: Timestamp,
) -> Option<&'static str> {
    let get = |kind, name: &str| present.get(&(kind, name.to_owned()));
    let pod = object["data"]["pod"].as_str().unwrap_or("pod");
    let is_replaced = get("PeerPod", "two").is_some_and(|it| instance_of(it) != name);
    if get("Pod", pod).is_some() && !is_replaced {
        return Some("an instance ends that its pod needs");
    }
    let has =
        |kind, name, value| get(kind, name).is_some_and(|it| it["data"][DEVELOPER_MODE] == value);
    if has("ConfigMap", ADAPTOR, "true") || has("Secret", ADAPTOR_SECRET, TRUE) {
        return Some("an instance ends in the developer mode");
    }
    let (since, least) = match peerpods(present).find(|it| instance_of(it) == name) {
        Some(peerpod) => (&peerpod["metadata"]["deletionTimestamp"], 10),
        None => (&object["metadata"]["creationTimestamp"], 30 * 60),
    };
    let since: Option<Timestamp> = since.as_str().map(|since| since.parse().unwrap());
    // Times of objects are in whole seconds.
    let is_late = |since| time.duration_since(since).as_secs() >= least - 1;
    (!since.is_some_and(is_late))
        .then_some("the adaptor had too little time before the end of an instance")
}

fn peerpods(present: &Present) -> impl Iterator<Item = &Value> {
    let peerpods = present.iter().filter(|((kind, _), _)| *kind == "PeerPod");
    peerpods.map(|(_, peerpod)| peerpod)
}

/// The name of the instance of a `PeerPod`.
fn instance_of(peerpod: &Value) -> &str {
    let id = peerpod["spec"]["instanceID"].as_str().unwrap_or_default();
    id.split('/').nth(1).unwrap_or(id)
}

/// The time at which the controller has ended an instance. Only the controller deletes VirtualMachines in the foreground.
fn ended_by_controller(instance: &Value) -> Option<Timestamp> {
    let (data, metadata) = (&instance["data"], &instance["metadata"]);
    let is_foreground = metadata["finalizers"]
        .to_string()
        .contains("foregroundDeletion");
    let time = match data[ec2::ENDED_BY] == ec2::CONTROLLER {
        true => &data["time"],
        false => is_foreground.then_some(&metadata["deletionTimestamp"])?,
    };
    Some(time.as_str()?.parse().unwrap())
}

/// Creates a pod, its instance, and the `PeerPod` of both.
fn create<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        let pod = pod(run).await;
        let vm = instance(run, "vm-of-pod", &pod).await;
        peerpod(run, "one", &pod, "virtualmachine", &vm).await;
    }
    .boxed()
}

async fn pod(run: &Run) -> Value {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"},
        "spec": {"containers": [{"name": "main", "image": "main"}]},
    });
    run.cluster.make(&run.namespace, "Pod", pod).await
}

/// The UID of the namespace `kube-system`.
async fn cluster_uid(run: &Run) -> String {
    let request = http::Request::get("/api/v1/namespaces/kube-system").body(Vec::new());
    let system: Value = run.cluster.client.request(request.unwrap()).await.unwrap();
    system["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// Creates the instance of a pod, and returns its identifier.
async fn instance(run: &Run, name: &str, pod: &Value) -> String {
    let of = format!(
        "{}/pod/{}",
        run.namespace,
        pod["metadata"]["uid"].as_str().unwrap()
    );
    let vm = json!({
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine",
        "metadata": {
            "name": name,
            "labels": {"peerpod.vmoperator.jdrupes.org/cluster": cluster_uid(run).await},
            "annotations": {"peerpod.vmoperator.jdrupes.org/pod": of},
        },
        "spec": {"vm": {"maximumRam": "1Gi", "networks": [{"user": {}}]}},
    });
    let vm = run.cluster.make(&run.namespace, "VirtualMachine", vm).await;
    let uid = vm["metadata"]["uid"].as_str().unwrap();
    format!("{}/{name}/{uid}", run.namespace)
}

/// Creates a `PeerPod` as the cloud-api-adaptor does.
async fn peerpod(run: &Run, name: &str, pod: &Value, provider: &str, id: &str) {
    let owner = json!({
        "apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": pod["metadata"]["uid"], "controller": true,
        "blockOwnerDeletion": true,
    });
    let peerpod = json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
        "metadata": {"name": name, "finalizers": ["peer.pod/finalizer"], "ownerReferences": [owner]},
        "spec": {"cloudProvider": provider, "instanceID": id},
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
        pod_is_gone(run).await;
        delete(run, "VirtualMachine", "vm-of-pod").await;
    }
    .boxed()
}

async fn pod_is_gone(run: &Run) {
    while run.cluster.get(&run.namespace, "Pod", "pod").is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn delete(run: &Run, kind: &str, name: &str) {
    let api = run.cluster.api(kind, Some(&run.namespace));
    api.delete(name, &DeleteParams::default()).await.unwrap();
}

/// Deletes the pod at once, while the cloud-api-adaptor still works.
fn force_pod<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        let (cluster, namespace) = (&run.cluster, &run.namespace);
        let pod = cluster.get(namespace, "Pod", "pod").unwrap();
        cluster.delete("Pod", namespace, &pod, 0).await.unwrap();
    }
    .boxed()
}

/// Deletes the instance and the finalizer, as the cloud-api-adaptor does. It needs less than 10 s.
fn adaptor_works<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        tokio::time::sleep(Duration::from_secs(6)).await;
        delete(run, "VirtualMachine", "vm-of-pod").await;
        let free = json!({"metadata": {"finalizers": null}});
        change(run, "PeerPod", "one", free).await;
    }
    .boxed()
}

async fn change(run: &Run, kind: &str, name: &str, patch: Value) {
    let changed = run.cluster.merge(kind, &run.namespace, name, "", patch);
    changed.await.unwrap();
}

/// Deletes all objects in any order, as the deletion of their namespace does.
fn delete_namespace<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        for (kind, name) in [
            ("PeerPod", "one"),
            ("VirtualMachine", "vm-of-pod"),
            ("Pod", "pod"),
        ] {
            delete(run, kind, name).await;
        }
    }
    .boxed()
}

/// Creates a younger `PeerPod` of the pod, after the adaptor has started the pod again.
async fn younger(run: &Run, is_same_instance: bool) {
    tokio::time::sleep(Duration::from_secs(2)).await;
    let get = |kind, name| run.cluster.get(&run.namespace, kind, name).unwrap();
    let pod = get("Pod", "pod");
    let vm = match is_same_instance {
        true => get("PeerPod", "one")["spec"]["instanceID"]
            .as_str()
            .unwrap()
            .to_owned(),
        false => instance(run, "vm-of-younger", &pod).await,
    };
    peerpod(run, "two", &pod, "virtualmachine", &vm).await;
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
        change(run, "PeerPod", "one", annotation).await;
    }
    .boxed()
}

/// The annotation with which a person abandons an instance.
const ABANDON: &str = "peerpod.vmoperator.jdrupes.org/abandon";

/// The configuration of the cloud-api-adaptor.
const ADAPTOR: &str = "peer-pods-cm";
const DEVELOPER_MODE: &str = "PEERPODS_DEVELOPER_MODE";
/// Its keys have precedence.
const ADAPTOR_SECRET: &str = "peer-pods-secret";
const TRUE: &str = "dHJ1ZQ==";
const FALSE: &str = "ZmFsc2U=";

/// Begins the developer mode by the Secret.
fn retain<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": ADAPTOR_SECRET}, "data": {DEVELOPER_MODE: TRUE},
        });
        run.cluster.make(&run.namespace, "Secret", secret).await;
    }
    .boxed()
}

/// Ends the developer mode, after the controller would have ended the instance.
fn end_developer_mode<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        tokio::time::sleep(Duration::from_secs(40)).await;
        let data = json!({"data": {DEVELOPER_MODE: FALSE}});
        change(run, "Secret", ADAPTOR_SECRET, data).await;
    }
    .boxed()
}

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
    scenario(
        "adaptor-works",
        &[Step::Act(adaptor_works), Step::Act(delete_pod)],
        None,
    ),
    scenario(
        "pod-forced",
        &[Step::Act(force_pod), Step::Act(adaptor_works)],
        None,
    ),
    scenario(
        "instance-retained",
        &[
            Step::Act(retain),
            Step::Act(delete_pod),
            Step::Act(end_developer_mode),
        ],
        None,
    ),
    scenario("namespace-deleted", &[Step::Act(delete_namespace)], None),
];
