//! The life of a `PeerPod`: its pod, the objects of the cloud-api-adaptor, and the controller with its account.

use crate::apiserver::peerpods::install;
use crate::apiserver::peerpods::log::Log;
use crate::apiserver::world::{World, eventually, machine, root};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::{Body, ClientBuilder};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::enumeration::{Started, started};
use support::rights::{Right, right_of};
use vm_operator::api::PeerPod;
use vm_operator::api::peerpod::names;
use vm_operator::controllers::peerpod::{MANAGER, PeerPodController};
use vm_operator::k8s::cluster::Cluster;
use vm_operator::k8s::tasks::Tasks;
use vm_operator::settings::peerpod::{PeerPodSettings, Providers, Sweep, VirtualMachineProvider};
use vm_operator::telemetry::metrics::Metrics;

/// The annotation with the note about an instance.
pub const SEEN: &str = "peerpod.vmoperator.jdrupes.org/seen";

/// The clock of the controllers is ahead by this number of seconds.
pub static AHEAD: AtomicU64 = AtomicU64::new(0);

pub fn instant() -> Instant {
    Instant::now() + Duration::from_secs(AHEAD.load(Ordering::Relaxed))
}

/// A namespace with PeerPods of one provider, and their controller.
pub struct Life {
    pub world: World,
    pub peerpods: Api<PeerPod>,
    pub metrics: Arc<Metrics>,
    /// The permissions that the requests of the controller have needed.
    pub requests: Arc<Mutex<BTreeSet<(Right, bool)>>>,
    provider: &'static str,
    controller: Option<Started>,
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Some(controller) = &self.controller {
            controller.task.abort();
        }
    }
}

impl Life {
    pub async fn start(name: &str, provider: &'static str) -> Self {
        let world = World::new(name).await;
        let peerpods = install(&world).await;
        Self::of(world, peerpods, provider)
    }

    /// The same in a namespace of a server that has a definition of PeerPods.
    pub fn of(world: World, peerpods: Api<PeerPod>, provider: &'static str) -> Self {
        Self {
            peerpods,
            world,
            metrics: Arc::default(),
            requests: Arc::default(),
            provider,
            controller: None,
        }
    }

    /// Writes an object of the cloud-api-adaptor.
    pub async fn write(&self, kind: &str, name: &str, field: &str, data: Value) {
        let object =
            json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, field: data});
        self.world.apply(&object, false).await.unwrap();
    }

    /// Starts the controller with the account and the permissions of `deploy/peerpod`.
    pub async fn operate(&mut self, providers: Providers) {
        let settings = PeerPodSettings {
            providers,
            sweep: Sweep::Off,
            ..PeerPodSettings::default()
        };
        let controller = self.controller(settings, instant).await;
        self.run(controller);
    }

    /// Runs the controller instead of the last one.
    pub fn run(&mut self, controller: Arc<PeerPodController>) {
        let (changes, mut tasks) = (controller.watch(), Tasks::default());
        tasks.spawn("calls".to_owned(), controller.clone().call_providers());
        tasks.spawn("sweep".to_owned(), controller.clone().sweep_instances());
        if let Some(last) = self.controller.replace(started(controller, changes, tasks)) {
            last.task.abort();
        }
    }

    /// A controller with the account and the permissions of `deploy/peerpod`.
    pub async fn controller(
        &self,
        settings: PeerPodSettings,
        instant: fn() -> Instant,
    ) -> Arc<PeerPodController> {
        let namespace = self.world.namespace.clone();
        for object in self.world.kustomize("deploy/peerpod") {
            if object["kind"] != "ConfigMap" {
                self.permit(object).await;
            }
        }
        let mut cluster = Cluster::new(self.client(), MANAGER);
        cluster.instant = instant;
        cluster.metrics = self.metrics.clone();
        let namespaces = vec![namespace.clone()];
        let settings = PeerPodSettings {
            namespaces: namespaces.clone(),
            virtual_machine: VirtualMachineProvider { namespaces },
            ..settings
        };
        let controller = PeerPodController::new(cluster, namespace, settings, HashMap::new());
        Arc::new(controller)
    }

    /// Applies an object of the controller's account in the namespace of this world.
    async fn permit(&self, mut object: Value) {
        let namespace = &self.world.namespace;
        let metadata = object["metadata"].as_object_mut().unwrap();
        metadata.remove("namespace");
        if object["subjects"].is_array() {
            object["subjects"][0]["namespace"] = namespace.clone().into();
        }
        if object["kind"] == "ClusterRoleBinding" {
            object["metadata"]["name"] = namespace.clone().into();
        }
        self.world.apply(&object, false).await.unwrap();
    }

    /// Gives the controller the permissions of the overlay about VirtualMachines. Their Role has the name of the controller's own one.
    pub async fn permit_virtual_machines(&self) {
        for (file, field) in [("role", "metadata"), ("role-binding", "roleRef")] {
            let file = format!("deploy/overlays/peerpod-local/{file}.yaml");
            let text = std::fs::read_to_string(root().join(file)).unwrap();
            let mut object: Value = serde_saphyr::from_str(&text).unwrap();
            object["metadata"]["name"] = "virtual-machines".into();
            object[field]["name"] = "virtual-machines".into();
            self.permit(object).await;
        }
    }

    /// A client with the account of the controller, which records the requests.
    pub fn client(&self) -> Client {
        let mut config = self.world.config.clone();
        config.auth_info.impersonate = Some(format!(
            "system:serviceaccount:{}:vm-operator-peerpod",
            self.world.namespace
        ));
        let requests = self.requests.clone();
        let layer = tower::util::MapRequestLayer::new(move |request: http::Request<Body>| {
            let right = right_of(names::MANAGER, &request);
            requests.lock().unwrap().insert((right, true));
            request
        });
        let builder = ClientBuilder::try_from(config).unwrap();
        builder.with_layer(&layer).build()
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.world.client.clone(), &self.world.namespace)
    }

    /// Creates a pod, and the `PeerPod` that the cloud-api-adaptor would write.
    pub async fn pod(&self, name: &str, instance: &str, annotations: Value) {
        let uid = self.pod_alone(name).await;
        self.record(name, (name, &uid), (self.provider, instance), annotations)
            .await;
    }

    /// Creates a pod. Returns its UID.
    pub async fn pod_alone(&self, name: &str) -> String {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "main", "image": "main",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
        }});
        let pod = serde_json::from_value(pod).unwrap();
        let (pods, params) = (self.pods(), PostParams::default());
        pods.create(&params, &pod).await.unwrap().uid().unwrap()
    }

    /// Creates the `PeerPod` that the cloud-api-adaptor would write for the instance of the pod with that name and UID.
    pub async fn record(
        &self,
        name: &str,
        pod: (&str, &str),
        instance: (&str, &str),
        annotations: Value,
    ) {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod.0, "uid": pod.1, "controller": true, "blockOwnerDeletion": true});
        let peerpod = json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
            "metadata": {"name": name, "finalizers": ["peer.pod/finalizer"], "ownerReferences": [owner], "annotations": annotations},
            "spec": {"cloudProvider": instance.0, "instanceID": instance.1},
        });
        let peerpod = serde_json::from_value(peerpod).unwrap();
        self.peerpods
            .create(&PostParams::default(), &peerpod)
            .await
            .unwrap();
    }

    /// Creates a pod, and the VirtualMachine that is its instance, both with that name. A finalizer retains the VM. Returns the UID of
    /// the pod and the identifier of the instance.
    pub async fn pod_with_vm(&self, name: &str) -> (String, String) {
        let (uid, namespace) = (self.pod_alone(name).await, &self.world.namespace);
        let namespaces = Api::<Namespace>::all(self.world.client.clone());
        let cluster = namespaces.get("kube-system").await.unwrap().uid().unwrap();
        let mut vm = machine(name, json!({"vm": {"state": "Running", "networks": []}}));
        let metadata = json!({
            "name": name, "finalizers": ["test/retain"], "labels": {names::LABEL_CLUSTER: cluster},
            "annotations": {names::ANNOTATION_POD: format!("{namespace}/{name}/{uid}")},
        });
        vm.metadata = serde_json::from_value(metadata).unwrap();
        let vms = self.world.vms();
        let vm = vms.create(&PostParams::default(), &vm).await.unwrap();
        let id = format!("{namespace}/{name}/{}", vm.uid().unwrap());
        (uid, id)
    }

    /// Lets the VM go that a finalizer retains.
    pub async fn let_vm_go(&self, name: &str) {
        let patch = json!({"metadata": {"finalizers": null}});
        let vms = self.world.vms();
        vms.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    /// Changes an annotation of the `PeerPod`, which begins a reconcile.
    pub async fn annotate(&self, name: &str, annotation: &str, value: &str) {
        let patch = json!({"metadata": {"annotations": {annotation: value}}});
        self.peerpods
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    /// The notes of the events with that reason on an object of that kind. An empty name is that of each object.
    pub async fn notes(&self, kind: &str, name: &str, reason: &str) -> Vec<String> {
        let events = Api::<Event>::namespaced(self.world.client.clone(), &self.world.namespace);
        let events = events.list(&ListParams::default()).await.unwrap();
        let events = events.into_iter().filter(|it| {
            let on = it.regarding.clone().unwrap_or_default();
            it.reason.as_deref() == Some(reason)
                && on.kind.as_deref() == Some(kind)
                && (name.is_empty() || on.name.as_deref() == Some(name))
        });
        events.map(|it| it.note.unwrap_or_default()).collect()
    }

    /// Waits until an event of the `PeerPod` has that reason.
    pub async fn says(&self, name: &str, reason: &str, part: &str) {
        eventually(
            &format!("an event of {name} has the reason {reason} with {part}"),
            async || {
                AHEAD.fetch_add(1, Ordering::Relaxed);
                let notes = self.notes("PeerPod", name, reason).await;
                notes.iter().any(|it| it.contains(part))
            },
        )
        .await;
    }

    pub async fn end(&self, name: &str) {
        self.pods()
            .delete(name, &DeleteParams::default().grace_period(0))
            .await
            .unwrap();
    }

    /// Waits until the `PeerPod` has that reason.
    pub async fn reports(&self, name: &str, reason: &str, part: &str) {
        eventually(
            &format!("{name} has the reason {reason} with {part}"),
            async || {
                AHEAD.fetch_add(1, Ordering::Relaxed);
                let peerpod = self.peerpods.get_opt(name).await.unwrap();
                let conditions = peerpod
                    .and_then(|it| it.status)
                    .unwrap_or_default()
                    .conditions;
                conditions
                    .iter()
                    .any(|it| it.reason == reason && it.message.contains(part))
            },
        )
        .await;
    }

    pub async fn is_released(&self, name: &str) -> bool {
        self.peerpods.get_opt(name).await.unwrap().is_none()
    }

    pub async fn released(&self, name: &str) {
        eventually(&format!("{name} is released"), async || {
            AHEAD.fetch_add(1, Ordering::Relaxed);
            self.is_released(name).await
        })
        .await;
    }

    /// Asserts that log, metrics, events and PeerPods have no secret. The first three report that reason, each at
    /// its own time after the status.
    pub async fn hides(&self, log: &Log, reason: &str, secrets: &[&str]) {
        let events = Api::<Event>::namespaced(self.world.client.clone(), &self.world.namespace);
        let peerpods = self.peerpods.list(&ListParams::default()).await.unwrap();
        eventually(
            &format!("log, metrics and events have {reason}"),
            async || {
                let events = events.list(&ListParams::default()).await.unwrap();
                let reports = [log.text(), self.metrics.text(), json!(events).to_string()];
                for text in reports.iter().chain([&json!(peerpods).to_string()]) {
                    let found = secrets.iter().find(|it| text.contains(**it));
                    assert_eq!(found, None, "{text}");
                }
                reports.iter().all(|it| it.contains(reason))
            },
        )
        .await;
    }

    pub async fn noted(&self, name: &str) {
        eventually(&format!("the instance of {name} is noted"), async || {
            self.peerpods
                .get(name)
                .await
                .unwrap()
                .annotations()
                .contains_key(SEEN)
        })
        .await;
    }
}
