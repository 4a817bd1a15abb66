//! Two operators for one kind: one loses leadership, and the other continues.

use super::kinds::{self, Kind, Note, Site};
use super::{Copier, MANAGER};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use support::components::{self, Cluster as Components, Kind as SimulatedKind};
use support::enumeration::{self, simulated::NAMESPACE};
use support::memory::Server;
use support::timings;
use tower::Layer as _;
use vm_operator::k8s::client::gate;
use vm_operator::k8s::cluster::Cluster;
use vm_operator::k8s::leader::{Candidate, Leadership};

/// An operator with leader election.
struct Operator {
    cluster: Cluster,
    task: tokio::task::JoinHandle<()>,
}

impl Operator {
    fn start<K: Kind>(server: &Server, identity: &str) -> Self {
        let leadership = Leadership::waiting();
        let leases = Api::namespaced(server.client(NAMESPACE), NAMESPACE);
        let mut candidate = Candidate::new(leases, "copier", identity, leadership.clone());
        let gate = gate::layer(Arc::default(), leadership.clone());
        let server = server.client(NAMESPACE);
        let send = move |request| {
            let server = server.clone();
            async move { server.send(request).await }
        };
        let client = kube::Client::new(gate.layer(tower::service_fn(send)), NAMESPACE);
        let mut cluster = Cluster::new(client, MANAGER);
        (cluster.now, cluster.instant) = (timings::now, timings::instant);
        cluster.leadership = leadership;
        let copier = Copier::<K>::new(cluster.clone());
        // An operator stops when it loses leadership.
        let task = tokio::spawn(async move {
            tokio::select! {
                _ = candidate.run() => {}
                () = copier.operate() => {}
            }
        });
        Self { cluster, task }
    }
}

async fn text_becomes(cluster: &Components, copy: &str, text: &str) {
    for _ in 0..600 {
        let copy = cluster.get(NAMESPACE, "ConfigMap", copy);
        if copy.is_some_and(|copy| copy["data"]["text"] == text) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{copy} does not become {text:?} within a minute");
}

async fn a_new_leader_goes_on<K: Kind>(simulated: SimulatedKind, spec: Value, copy: &str) {
    let kind = simulated.kind;
    let server = Server::new(1);
    timings::follow_virtual_clock(server.now());
    server.install_crd(&serde_json::to_string(&K::crd()).unwrap());
    let client = server.client(NAMESPACE);
    enumeration::create_namespace(&client, NAMESPACE).await;
    enumeration::create_namespace(&client, kinds::SECOND).await;
    let components = Components::start_single(client.clone(), NAMESPACE, &[simulated]).await;
    let first = Operator::start::<K>(&server, "first");
    let object = json!({"apiVersion": "example.org/v1", "kind": kind, "metadata": {"name": "a"}, "spec": spec});
    components.make(NAMESPACE, kind, object).await;
    text_becomes(&components, copy, "one").await;

    // Another program takes over the Lease, and writes nothing.
    let leases = Api::<Lease>::namespaced(client, NAMESPACE);
    let taken = json!({"spec": {"holderIdentity": "another"}});
    let patch = Patch::Merge(&taken);
    leases
        .patch("copier", &PatchParams::default(), &patch)
        .await
        .unwrap();
    tokio::time::timeout(Duration::from_secs(10), first.task)
        .await
        .expect("the first operator notices")
        .unwrap();
    assert!(!first.cluster.leadership.leads());
    let change = json!({"spec": {"text": "two"}});
    components
        .merge(kind, NAMESPACE, "a", "", change)
        .await
        .unwrap();

    let second = Operator::start::<K>(&server, "second");
    text_becomes(&components, copy, "two").await;
    let metrics = second.cluster.metrics.text();
    assert!(
        metrics.contains(&format!("controller=\"{}\"", K::RESOURCE)),
        "{metrics}"
    );
    second.task.abort();
    let objects = components::api(&server.client(NAMESPACE), "ConfigMap", None);
    let copies = objects
        .list(&kube::api::ListParams::default())
        .await
        .unwrap();
    assert_eq!(copies.items.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_of_a_namespaced_kind_goes_on() {
    a_new_leader_goes_on::<Note>(super::NOTE, json!({"text": "one"}), "a").await;
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_of_a_cluster_scoped_kind_goes_on() {
    let spec = json!({"text": "one", "namespace": kinds::SECOND});
    a_new_leader_goes_on::<Site>(super::SITE, spec, "second/a").await;
}
