//! Hosts of another namespace, which the controller reads and labels with its account. It gets its Roles there by the commands in the status.

use super::{create_host, hosts_of, install};
use crate::apiserver::world::{World, eventually};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::sync::Arc;
use support::enumeration::{Started, started};
use vm_operator::api::SIPCluster;
use vm_operator::controllers::sip::{MANAGER, SipController};
use vm_operator::k8s::cluster::Cluster;
use vm_operator::k8s::tasks::Tasks;
use vm_operator::settings::sip::{HostNamespace, SipSettings};

const LABEL: &str = "sip.airshipit.org/cluster-name";

/// Starts the controller with the account and the permissions of `deploy/sip`.
async fn start(world: &World, settings: SipSettings) -> Started {
    for mut object in world.kustomize("deploy/sip") {
        if !["ServiceAccount", "Role", "RoleBinding"].contains(&object["kind"].as_str().unwrap()) {
            continue;
        }
        if object["subjects"].is_array() {
            object["subjects"][0]["namespace"] = world.namespace.clone().into();
        }
        world.apply(&object, false).await.unwrap();
    }
    let mut config = world.config.clone();
    let account = format!("system:serviceaccount:{}:vm-operator-sip", world.namespace);
    config.auth_info.impersonate = Some(account);
    let cluster = Cluster::new(Client::try_from(config).unwrap(), MANAGER);
    let controller = SipController::new(cluster, world.namespace.clone(), settings);
    let mut tasks = Tasks::default();
    let changes = controller.watch(&mut tasks);
    started(Arc::new(controller), changes, tasks)
}

#[tokio::test]
async fn hosts_of_another_namespace_join_after_the_commands_of_the_status() {
    let (world, racks) = (
        World::new("sip-tenants").await,
        World::new("sip-racks").await,
    );
    let clusters = install(&world).await;
    create_host(&racks, "a", "10.0.0.1", json!({})).await;
    let hosts = hosts_of(&racks);
    let settings = SipSettings {
        host_namespaces: vec![HostNamespace {
            name: racks.namespace.clone(),
            bmc: false,
        }],
        ..SipSettings::default()
    };
    let controller = start(&world, settings).await;
    let cluster = json!({
        "apiVersion": "airship.airshipit.org/v1", "kind": "SIPCluster", "metadata": {"name": "tenant"},
        "spec": {
            "nodes": {"ControlPlane": {"count": {"active": 1}}},
            "services": {
                "loadBalancerControlPlane": [{"image": "", "nodePort": 0, "nodeInterfaceId": "oam-ipv4"}],
                "jumpHost": [{"image": "", "nodePort": 0, "nodeInterfaceId": "oam-ipv4", "nodeSSHPrivateKeys": "", "bmc": {}}],
            },
        },
    });
    let cluster: SIPCluster = serde_json::from_value(cluster).unwrap();
    clusters
        .create(&PostParams::default(), &cluster)
        .await
        .unwrap();
    let status = async || {
        let cluster = clusters.get("tenant").await.unwrap();
        let status: Value = serde_json::to_value(cluster.status).unwrap();
        let message = status["conditions"][0]["message"].as_str();
        (message.unwrap_or_default().to_owned(), status)
    };
    for kind in ["baremetalhosts", "secrets"] {
        let forbidden = format!("may not list {kind} in namespace {}", racks.namespace);
        eventually(&forbidden, async || status().await.0.contains(&forbidden)).await;
        let (message, _) = status().await;
        let (_, commands) = message.split_once("run: ").unwrap();
        for command in commands.split("; ") {
            world.shell(command).unwrap();
        }
    }

    eventually("its BMC is not for jump hosts", async || {
        let rejected = &status().await.1["rejected"][0];
        rejected["namespace"] == racks.namespace.as_str() && rejected["reason"] == "BmcNotAllowed"
    })
    .await;
    let merge = async |patch: Value| {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        clusters.patch("tenant", &params, &patch).await.unwrap();
    };
    merge(json!({"spec": {"services": {"jumpHost": []}}})).await;
    eventually("the host is a member", async || {
        status().await.1["members"][0]["namespace"] == racks.namespace.as_str()
    })
    .await;
    let labelled = async || hosts.get("a").await.unwrap().labels().get(LABEL).cloned();
    assert_eq!(labelled().await.as_deref(), Some("tenant"));
    let config_maps = Api::<ConfigMap>::namespaced(world.client.clone(), &world.namespace);
    let server = format!("server a_{} 10.0.0.1:6443", racks.namespace);
    eventually("the load balancer has the host", async || {
        let balancer = config_maps
            .get_opt("loadbalancer-controlplane-tenant")
            .await;
        let data = balancer.unwrap().and_then(|it| it.data).unwrap_or_default();
        data.values().any(|text| text.contains(&server))
    })
    .await;

    let params = DeleteParams::default();
    clusters.delete("tenant", &params).await.unwrap();
    eventually("the host is free", async || labelled().await.is_none()).await;
    controller.task.abort();
}
