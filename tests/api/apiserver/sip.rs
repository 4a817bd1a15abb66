//! The definition of `SIPClusters` on a real API server.

use crate::apiserver::world::World;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use vm_operator::api::SIPCluster;

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

/// A cluster with each field of the original definition.
fn full(name: &str) -> Value {
    let service = json!({
        "image": "haproxy:2.3.2", "nodeLabels": {"kubernetes.io/os": "linux"}, "nodeInterfaceId": "oam-ipv4", "clusterIP": "10.0.0.1",
    });
    let with = |own: Value| {
        let mut service = service.clone();
        service
            .as_object_mut()
            .unwrap()
            .extend(own.as_object().unwrap().clone());
        service
    };
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
                    "nodePort": 30011, "bmc": {"proxy": false}, "sshAuthorizedKeys": ["ssh-ed25519 AAAA a"],
                    "nodeSSHPrivateKeys": "private-keys",
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
    ] {
        let error = create(&object).await.unwrap_err().to_string();
        assert!(error.contains(message), "{object}: {error}");
    }
}
