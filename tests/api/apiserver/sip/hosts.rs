//! Hosts and services of clusters: adoption, a taken node port, and patches under each definition of `BareMetalHost`.

use super::{available, change, create_host, full, hosts_of, install, ready_is, with_layer};
use crate::apiserver::world::{World, eventually};
use http::{Method, Request};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use support::enumeration::Started;
use support::real::Server;
use support::sip::operate;
use vm_operator::api::SIPCluster;
use vm_operator::controllers::sip::MANAGER;
use vm_operator::k8s::cluster::Cluster;

/// The labels of a host, as the Airship SIP operator writes them for the cluster `tenant`.
fn labelled(world: &World, role: &str) -> Value {
    json!({
        "sip.airshipit.org/cluster-namespace": world.namespace, "sip.airshipit.org/cluster-name": "tenant",
        "sip.airshipit.org/node-type": role,
    })
}

fn start(world: &World) -> Started {
    operate(
        Cluster::new(world.client.clone(), MANAGER),
        &world.namespace,
    )
}

fn clusters_of(world: &World) -> Api<SIPCluster> {
    Api::namespaced(world.client.clone(), &world.namespace)
}

async fn create_cluster(world: &World, spec: Value) {
    let object = json!({
        "apiVersion": "airship.airshipit.org/v1", "kind": "SIPCluster", "metadata": {"name": "tenant"}, "spec": spec,
    });
    let object = serde_json::from_value(object).unwrap();
    let created = clusters_of(world)
        .create(&PostParams::default(), &object)
        .await;
    created.unwrap();
}

#[tokio::test]
async fn sample_of_airship_is_admitted_unchanged_and_its_hosts_are_adopted_without_a_write() {
    let world = World::new("sip-adoption").await;
    install(&world).await;
    let hosts = hosts_of(&world);
    let adopted = [("cp-1", "ControlPlane"), ("cp-2", "ControlPlane")];
    for (n, (name, role)) in adopted.iter().enumerate() {
        create_host(&world, name, &format!("10.0.0.{n}"), labelled(&world, role)).await;
    }
    let free = json!({"vino.airshipit.org/flavor": "worker", "vino.airshipit.org/host": "node-9"});
    create_host(&world, "worker", "10.0.0.9", free).await;
    let versions = async || {
        let mut versions = Vec::new();
        for (name, _) in adopted {
            versions.push(hosts.get(name).await.unwrap().resource_version());
        }
        versions
    };
    let before = versions().await;
    let keys = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "private-keys"}, "stringData": {"id": "key"}});
    world.apply(&keys, false).await.unwrap();

    let mut sample = full("tenant");
    // The sample has no field of ours.
    let services = sample["spec"]["services"].as_object_mut().unwrap();
    services.remove("auth");
    let path = format!(
        "/apis/airship.airshipit.org/v1/namespaces/{}/sipclusters",
        world.namespace
    );
    let request = Request::post(format!("{path}?fieldValidation=Strict"));
    let request = request.header("Content-Type", "application/json");
    let request = request.body(sample.to_string().into_bytes()).unwrap();
    let created: Value = world.client.request(request).await.unwrap();
    assert_eq!(created["spec"], sample["spec"]);
    // The report of the Airship SIP operator. Without it, these labels would be those of an interrupted first claim.
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "ReconciliationSucceeded", "message": "", "lastTransitionTime": "2021-07-21T00:00:00Z",
    });
    let status = Patch::Merge(json!({"status": {"conditions": [ready]}}));
    let written = clusters_of(&world)
        .patch_status("tenant", &PatchParams::default(), &status)
        .await;
    written.unwrap();

    let controller = start(&world);
    // The report of the Airship SIP operator has the same reason.
    eventually("the hosts are members", async || {
        let message = ready_is(&world, "ReconciliationSucceeded").await;
        message.starts_with("3 of 3 hosts")
    })
    .await;
    assert_eq!(versions().await, before, "an adopted host was written");
    let claimed = hosts.get("worker").await.unwrap();
    let labels = serde_json::to_value(claimed.labels()).unwrap();
    for (name, value) in labelled(&world, "Worker").as_object().unwrap() {
        assert_eq!(labels[name], *value);
    }
    let config_maps = Api::<ConfigMap>::namespaced(world.client.clone(), &world.namespace);
    for (name, server) in [
        ("controlplane", "server cp-2 10.0.0.1:6443"),
        ("worker", "server worker 10.0.0.9:30002"),
    ] {
        let name = format!("loadbalancer-{name}-tenant");
        let text = &config_maps.get(&name).await.unwrap().data.unwrap()["haproxy.cfg"];
        assert!(text.contains(server), "{text}");
    }
    controller.task.abort();
}

#[tokio::test]
async fn taken_node_port_is_reported_with_the_text_of_the_server_and_hosts_keep_their_labels() {
    let world = World::new("sip-node-port").await;
    install(&world).await;
    create_host(&world, "a", "10.0.0.1", json!({})).await;
    let ports = json!([{"port": 1, "nodePort": 30044}]);
    let other = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "other"}, "spec": {"type": "NodePort", "ports": ports}});
    world.apply(&other, false).await.unwrap();
    let controller = start(&world);
    let balancer = json!({"image": "", "nodePort": 30044, "nodeInterfaceId": "oam-ipv4"});
    let nodes = json!({"ControlPlane": {"count": {"active": 1}}});
    create_cluster(
        &world,
        json!({"nodes": nodes, "services": {"loadBalancerControlPlane": [balancer]}}),
    )
    .await;
    let message = ready_is(&world, "InfraServiceFailure").await;
    assert!(
        message.contains("30044") && message.contains("already allocated"),
        "{message}"
    );
    let host = hosts_of(&world).get("a").await.unwrap();
    assert_eq!(host.labels()["sip.airshipit.org/cluster-name"], "tenant");
    // The port is corrected in the spec, which is tried at once.
    let balancer = json!({"image": "", "nodePort": 0, "nodeInterfaceId": "oam-ipv4"});
    change(
        &world,
        json!({"services": {"loadBalancerControlPlane": [balancer]}}),
    )
    .await;
    ready_is(&world, "ReconciliationSucceeded").await;
    controller.task.abort();
}

/// The definitions of `BareMetalHost`. The second one adds `spec.inspectionMode`, and the third one `status.provisioningFailCount`.
const DEFINITIONS: [&str; 3] = [
    "baremetalhosts-v0.11.7",
    "baremetalhosts-v0.13.2",
    "baremetalhosts.metal3.io",
];

/// Writes an object, and rejects unknown fields.
async fn write_strictly(
    world: &World,
    method: &str,
    path: &str,
    object: &Value,
) -> Result<Value, kube::Error> {
    let hosts = format!("namespaces/{}/baremetalhosts", world.namespace);
    let path = format!("/apis/metal3.io/v1alpha1/{hosts}{path}?fieldValidation=Strict");
    let type_ = match method {
        "POST" => "application/json",
        _ => "application/merge-patch+json",
    };
    let request = Request::builder().method(method).uri(path);
    let request = request.header("Content-Type", type_);
    let request = request.body(object.to_string().into_bytes()).unwrap();
    world.client.request(request).await
}

#[tokio::test]
async fn labels_are_written_and_removed_strictly_under_each_definition_of_hosts() {
    let server: &'static Server = Box::leak(Box::new(Server::start()));
    server.client().await;
    let world = World::on(server, "sip-metal3").await;
    world
        .define("crds/sip/sipclusters.airship.airshipit.org.yaml")
        .await;
    let patches = Arc::new(Mutex::new(Vec::new()));
    let log = patches.clone();
    let strict = with_layer(&world.client, move |client, mut request| {
        let log = log.clone();
        async move {
            let is_meant = request.method() == Method::PATCH
                && request.uri().path().contains("/baremetalhosts/");
            if is_meant {
                let strict = request
                    .uri()
                    .to_string()
                    .replacen('?', "?fieldValidation=Strict&", 1);
                *request.uri_mut() = strict.parse().unwrap();
            }
            let answer = client.send(request).await?;
            if is_meant {
                log.lock().unwrap().push((
                    answer.status().as_u16(),
                    answer.headers().contains_key("warning"),
                ));
            }
            Ok(answer)
        }
    });
    let mut controller = None;
    for (n, file) in DEFINITIONS.into_iter().enumerate() {
        world.define(&format!("tests/metal3/{file}.yaml")).await;
        let (mut spec, mut reported) = (json!({"online": true}), available());
        if n > 0 {
            spec["inspectionMode"] = "disabled".into();
        }
        if n < 2 {
            let status = reported["status"].as_object_mut().unwrap();
            status.remove("provisioningFailCount");
        }
        let host = json!({
            "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": format!("host-{n}")}, "spec": spec,
        });
        eventually("the API server has the definition", async || {
            write_strictly(&world, "POST", "", &host).await.is_ok()
        })
        .await;
        let path = format!("/host-{n}/status");
        eventually("the API server has the status", async || {
            write_strictly(&world, "PATCH", &path, &reported)
                .await
                .is_ok()
        })
        .await;
        let nodes = json!({"r": {"count": {"active": n + 1}}});
        if n == 0 {
            let cluster = Cluster::new(strict.clone(), MANAGER);
            controller = Some(operate(cluster, &world.namespace));
            create_cluster(&world, json!({"nodes": nodes, "services": {}})).await;
        } else {
            change(&world, json!({"nodes": nodes})).await;
        }
        let all = format!("{0} of {0} hosts", n + 1);
        eventually("the host joins", async || {
            ready_is(&world, "ReconciliationSucceeded")
                .await
                .starts_with(&all)
        })
        .await;
    }
    clusters_of(&world)
        .delete("tenant", &DeleteParams::default())
        .await
        .unwrap();
    eventually("the cluster is gone", async || {
        clusters_of(&world)
            .get_opt("tenant")
            .await
            .unwrap()
            .is_none()
    })
    .await;
    for n in 0..DEFINITIONS.len() {
        let host = hosts_of(&world).get(&format!("host-{n}")).await.unwrap();
        assert!(host.labels().is_empty(), "{:?}", host.labels());
    }
    let patches = patches.lock().unwrap().clone();
    assert_eq!(patches, [(200, false); 6]);
    controller.unwrap().task.abort();
}
