//! `make bench-sip`: the memory of the controller of SIPClusters, and its writes after a restart.
//!
//! Each cluster has ten hosts, a load balancer and a jump host. The bench writes the status of hosts and Deployments, because neither a
//! baremetal-operator nor a controller of Deployments runs.

use super::operator::Operator;
use super::{Bench, CLIENTS, NAMESPACE, proxy, row};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;
use std::time::{Duration, Instant};
use vm_operator::api::SIPCluster;
use vm_operator::api::conditions::is_true;
use vm_operator::api::sip::READY;

/// Hosts of each cluster.
const HOSTS: usize = 10;
/// The time limit until all clusters are ready.
const READY_TIMEOUT: Duration = Duration::from_secs(600);
/// The operator returns freed memory to the system every 30 s.
const SETTLE_TIME: Duration = Duration::from_secs(40);

impl Bench {
    pub(super) async fn measure_sip(&self, clusters: usize) {
        self.define("crds/sip/sipclusters.airship.airshipit.org.yaml")
            .await;
        self.define("tests/metal3/baremetalhosts.metal3.io.yaml")
            .await;
        let (params, hosts) = (ListParams::default(), self.hosts());
        while hosts.list(&params).await.is_err() || self.clusters().list(&params).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let operator = self.sip_operator().await;
        let print_memory = async |title: &str| {
            tokio::time::sleep(SETTLE_TIME).await;
            row(title, &format!("{:.1} MiB", operator.memory()));
        };
        print_memory("operator's memory without clusters and hosts").await;
        let created = futures::stream::iter(0..clusters * HOSTS);
        let created = created.for_each_concurrent(CLIENTS, |n| self.create_host(n));
        created.await;
        print_memory("with the free hosts").await;
        let began = Instant::now();
        let created = futures::stream::iter(0..clusters);
        let created = created.for_each_concurrent(CLIENTS, |n| self.create_cluster(n));
        created.await;
        self.wait_until_clusters_are_ready(clusters).await;
        row(
            &format!("time until {clusters} clusters of {HOSTS} hosts are ready"),
            &format!("{:.1} s", began.elapsed().as_secs_f64()),
        );
        print_memory("operator's memory with the clusters").await;
        operator.stop().await;
        self.record.forget();
        let operator = self.sip_operator().await;
        // The operator leads and has reconciled all clusters by then. A write would follow immediately.
        tokio::time::sleep(SETTLE_TIME).await;
        row("restart: writes", &format!("{:?}", self.record.writes()));
        row("restart: memory", &format!("{:.1} MiB", operator.memory()));
        operator.stop().await;
    }

    async fn sip_operator(&self) -> Operator {
        let config = format!("sip: {{namespace: {NAMESPACE}}}\n");
        let kubeconfig = proxy::kubeconfig(self.proxy);
        Operator::start_with(&kubeconfig, &["--controllers=sip"], config).await
    }

    fn clusters(&self) -> Api<SIPCluster> {
        self.api(NAMESPACE)
    }

    /// The type of this project lacks required fields.
    fn hosts(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("metal3.io", "v1alpha1", "BareMetalHost");
        let resource = ApiResource::from_gvk(&kind);
        Api::namespaced_with(self.client.clone(), NAMESPACE, &resource)
    }

    /// Creates an available host with its network data.
    async fn create_host(&self, n: usize) {
        let (name, params) = (format!("host-{n:05}"), PostParams::default());
        let address = format!("10.1.{}.{}", n / 250, n % 250);
        let networks = json!({"networks": [{"id": "oam", "type": "ipv4", "ip_address": address}]});
        let secret = json!({
            "metadata": {"name": format!("{name}-network")}, "stringData": {"networkData": networks.to_string()},
        });
        let secret = serde_json::from_value(secret).unwrap();
        let secrets: Api<Secret> = self.api(NAMESPACE);
        secrets.create(&params, &secret).await.unwrap();
        let host = json!({
            "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": name},
            "spec": {"online": true, "networkData": {"name": format!("{name}-network")}},
        });
        let host = serde_json::from_value(host).unwrap();
        self.hosts().create(&params, &host).await.unwrap();
        let status = json!({"status": {
            "provisioning": {"state": "available", "ID": ""}, "operationalStatus": "OK", "errorMessage": "", "errorCount": 0,
            "poweredOn": true, "provisioningFailCount": 0,
        }});
        let (hosts, params, status) = (self.hosts(), PatchParams::default(), Patch::Merge(status));
        hosts.patch_status(&name, &params, &status).await.unwrap();
    }

    async fn create_cluster(&self, n: usize) {
        let service =
            json!({"image": "", "nodePort": 0, "nodeInterfaceId": "oam", "nodeSSHPrivateKeys": ""});
        let object = json!({
            "apiVersion": "airship.airshipit.org/v1", "kind": "SIPCluster", "metadata": {"name": format!("tenant-{n:03}")},
            "spec": {
                "nodes": {"ControlPlane": {"count": {"active": 3}}, "Worker": {"count": {"active": HOSTS - 3}}},
                "services": {"loadBalancerControlPlane": [service], "jumpHost": [service]},
            },
        });
        let object = serde_json::from_value(object).unwrap();
        let params = PostParams::default();
        self.clusters().create(&params, &object).await.unwrap();
    }

    async fn wait_until_clusters_are_ready(&self, count: usize) {
        let is_ready = |cluster: &SIPCluster| {
            let status = cluster.status.as_ref();
            status.is_some_and(|status| is_true(&status.conditions, READY))
        };
        let began = Instant::now();
        loop {
            self.run_deployments().await;
            let clusters = self.clusters().list(&ListParams::default()).await.unwrap();
            if clusters.iter().filter(|it| is_ready(it)).count() == count {
                return;
            }
            assert!(
                began.elapsed() < READY_TIMEOUT,
                "not {count} clusters are ready"
            );
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Reports that the pods of all Deployments run.
    async fn run_deployments(&self) {
        let deployments: Api<Deployment> = self.api(NAMESPACE);
        for deployment in deployments.list(&ListParams::default()).await.unwrap() {
            let status = deployment.status.as_ref();
            let generation = deployment.metadata.generation;
            if status.is_some_and(|status| status.observed_generation == generation) {
                continue;
            }
            let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
            let status = json!({"status": {
                "observedGeneration": generation, "replicas": replicas, "updatedReplicas": replicas,
                "availableReplicas": replicas, "readyReplicas": replicas,
            }});
            let (params, status) = (PatchParams::default(), Patch::Merge(status));
            let name = deployment.name_any();
            let written = deployments.patch_status(&name, &params, &status);
            written.await.unwrap();
        }
    }
}
