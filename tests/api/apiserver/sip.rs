//! The definition of `SIPClusters`, and their controller, on a real API server. No controller of Deployments runs.
//!
//! | file | content |
//! |---|---|
//! | `hosts` | hosts that the Airship SIP operator has labelled, a taken node port, and three definitions of hosts |
//! | `elsewhere` | hosts of another namespace |
//! | `rights` | the permissions of `deploy/sip` are those that the controller uses |

mod elsewhere;
mod hosts;
mod rights;

use crate::apiserver::world::World;
use crate::apiserver::world::eventually;
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use serde_json::{Value, json};
use vm_operator::api::SIPCluster;
use vm_operator::api::conditions::find;
use vm_operator::api::metal3::BareMetalHost;
use vm_operator::api::sip::READY;

/// Installs the definitions, and returns the clusters of the namespace.
pub async fn install(world: &World) -> Api<SIPCluster> {
    world
        .define("crds/sip/sipclusters.airship.airshipit.org.yaml")
        .await;
    world
        .define("tests/metal3/baremetalhosts.metal3.io.yaml")
        .await;
    Api::namespaced(world.client.clone(), &world.namespace)
}

/// The same status in each definition of `BareMetalHost`.
fn available() -> Value {
    json!({"status": {
        "provisioning": {"state": "available", "ID": ""}, "operationalStatus": "OK", "errorMessage": "", "errorCount": 0,
        "poweredOn": true, "provisioningFailCount": 0,
    }})
}

/// Creates an available host with these labels, its network data, and the credentials of its BMC.
async fn create_host(world: &World, name: &str, address: &str, labels: Value) {
    let networks = json!({"networks": [{"id": "oam-ipv4", "type": "ipv4", "ip_address": address}]});
    let secret = |suffix: &str, data: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{name}-{suffix}")}, "stringData": data});
    let host = json!({
        "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": name, "labels": labels},
        "spec": {
            "online": true, "networkData": {"name": format!("{name}-network")},
            "bmc": {"address": "redfish://10.1.0.1/redfish/v1/Systems/1", "credentialsName": format!("{name}-bmc")},
        },
    });
    for object in [
        secret("network", json!({"networkData": networks.to_string()})),
        secret("bmc", json!({"username": "admin", "password": "qwertz"})),
        host,
    ] {
        world.apply(&object, false).await.unwrap();
    }
    let status = Patch::Merge(available());
    let (hosts, params) = (hosts_of(world), PatchParams::default());
    hosts.patch_status(name, &params, &status).await.unwrap();
}

/// Changes the spec of the cluster `tenant`.
async fn change(world: &World, spec: Value) {
    let clusters = Api::<SIPCluster>::namespaced(world.client.clone(), &world.namespace);
    let (params, patch) = (PatchParams::default(), Patch::Merge(json!({"spec": spec})));
    clusters.patch("tenant", &params, &patch).await.unwrap();
}

fn hosts_of(world: &World) -> Api<BareMetalHost> {
    Api::namespaced(world.client.clone(), &world.namespace)
}

/// Reports that the pods of all Deployments run, as the controller of Deployments would.
async fn run_deployments(world: &World) {
    let deployments = Api::<Deployment>::namespaced(world.client.clone(), &world.namespace);
    for deployment in deployments.list(&ListParams::default()).await.unwrap() {
        let replicas = deployment.spec.as_ref().unwrap().replicas;
        let status = json!({"status": {
            "observedGeneration": deployment.metadata.generation, "replicas": replicas, "updatedReplicas": replicas,
            "availableReplicas": replicas, "readyReplicas": replicas,
        }});
        let (name, params) = (deployment.name_any(), PatchParams::default());
        let status = Patch::Merge(status);
        let written = deployments.patch_status(&name, &params, &status).await;
        written.unwrap();
    }
}

/// Waits until `Ready` of the cluster `tenant` has the reason, while the pods of all Deployments run. Returns its message.
async fn ready_is(world: &World, reason: &str) -> String {
    let clusters = Api::<SIPCluster>::namespaced(world.client.clone(), &world.namespace);
    let ready = async || {
        let status = clusters.get("tenant").await.unwrap().status;
        let status = status.unwrap_or_default();
        find(&status.conditions, READY).cloned()
    };
    eventually(reason, async || {
        run_deployments(world).await;
        ready().await.is_some_and(|ready| ready.reason == reason)
    })
    .await;
    ready().await.unwrap().message
}

/// A client whose requests `pass` can change, count and answer.
fn with_layer<F>(
    client: &kube::Client,
    pass: impl Fn(kube::Client, http::Request<Body>) -> F + Clone + Send + 'static,
) -> kube::Client
where
    F: Future<Output = Result<http::Response<Body>, kube::Error>> + Send + 'static,
{
    let inner = client.clone();
    let send = move |request| pass(inner.clone(), request);
    kube::Client::new(tower::service_fn(send), client.default_namespace())
}

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBFqvy0wEdKmEkGkXwLFKKzZhbZSFmqvDyTDEAyMbcdx";

/// A service with further fields.
fn extended(service: &Value, own: Value) -> Value {
    let mut service = service.clone();
    service
        .as_object_mut()
        .unwrap()
        .extend(own.as_object().unwrap().clone());
    service
}

/// A cluster with each field of the original definition.
fn full(name: &str) -> Value {
    let service = json!({
        "image": "haproxy:2.3.2", "nodeLabels": {"kubernetes.io/os": "linux"}, "nodeInterfaceId": "oam-ipv4", "clusterIP": "10.0.0.1",
    });
    let with = |own| extended(&service, own);
    json!({
        "apiVersion": "airship.airshipit.org/v1", "kind": "SIPCluster",
        "metadata": {"name": name, "finalizers": ["sip.airship.airshipit.org/finalizer"]},
        "spec": {
            "nodes": {
                "ControlPlane": {
                    "labelSelector": {"matchLabels": {"vino.airshipit.org/flavor": "control-plane"}},
                    "topologyKey": "vino.airshipit.org/host",
                    "count": {"active": 1, "standby": 1},
                },
                "Worker": {"count": {"active": 1, "standby": 0}},
                "Storage": {},
            },
            "services": {
                "loadBalancerControlPlane": [with(json!({"nodePort": 30000}))],
                "loadBalancerWorker": [with(json!({"nodePortRange": {"start": 30001, "end": 30002}}))],
                "jumpHost": [with(json!({
                    "nodePort": 30011, "bmc": {"proxy": false}, "sshAuthorizedKeys": [KEY],
                    "nodeSSHPrivateKeys": "private-keys",
                }))],
                "auth": [with(json!({
                    "image": "dex", "nodePort": 30012, "args": ["serve"], "configSecret": "config", "tlsSecret": "tls",
                    "port": 8443,
                }))],
            },
        },
    })
}

#[tokio::test]
async fn clusters_are_admitted_unchanged_and_values_that_cannot_work_are_refused() {
    let world = World::new("sip").await;
    let clusters = install(&world).await;
    let create = async |object: &Value| {
        let cluster: SIPCluster = serde_json::from_value(object.clone()).unwrap();
        clusters.create(&PostParams::default(), &cluster).await
    };
    let object = full(&"a".repeat(37));
    let created = create(&object).await.unwrap();
    assert_eq!(serde_json::to_value(&created.spec).unwrap(), object["spec"]);
    let smallest = json!({
        "apiVersion": "airship.airshipit.org/v1", "kind": "SIPCluster", "metadata": {"name": "smallest"}, "spec": {"services": {}},
    });
    create(&smallest).await.unwrap();

    let changed = |pointer: &str, value: Value| {
        let mut object = full("b");
        *object.pointer_mut(pointer).unwrap() = value;
        object
    };
    let balancers = "/spec/services/loadBalancerControlPlane";
    let two = json!([{"image": "", "nodePort": 30000}, {"image": "", "nodePort": 30000}]);
    for (object, message) in [
        (full(&"a".repeat(38)), "at most 37 characters"),
        (
            changed("/spec/nodes/ControlPlane/count/active", json!(-1)),
            "greater than or equal to 0",
        ),
        (
            changed("/spec/nodes/ControlPlane/count/standby", json!(1000)),
            "sum of at most 1000",
        ),
        (
            changed("/spec/nodes", json!({"not a role": {}})),
            "value of a label",
        ),
        (
            changed(&format!("{balancers}/0/nodePort"), json!(70000)),
            "less than or equal to 65535",
        ),
        (changed(balancers, two), "another nodePort for each entry"),
        (
            changed(
                "/spec/services/loadBalancerWorker/0/nodePortRange/start",
                json!(30003),
            ),
            "start <= end",
        ),
        (
            changed(
                "/spec/services/loadBalancerWorker/0/nodePortRange/start",
                json!(29000),
            ),
            "at most 100 ports",
        ),
        (
            changed(
                "/spec/services/loadBalancerControlPlane/0/nodePort",
                json!(30001),
            ),
            "that is in no nodePortRange",
        ),
        (
            changed("/spec/services/jumpHost/0/nodePort", json!(30000)),
            "that no other entry and no load balancer has",
        ),
        (
            changed("/spec/services/jumpHost/0/nodePort", json!(30002)),
            "that no other entry and no load balancer has",
        ),
        (
            changed("/spec/services/auth/0/nodePort", json!(30011)),
            "auth: use a nodePort",
        ),
        (
            changed("/spec/services/auth/0/image", json!("")),
            "auth: name the image",
        ),
        (
            changed(
                "/spec/services/jumpHost/0/sshAuthorizedKeys",
                json!(vec!["a"; 65]),
            ),
            "at most 64 items",
        ),
    ] {
        let error = create(&object).await.unwrap_err().to_string();
        assert!(error.contains(message), "{object}: {error}");
    }
}
