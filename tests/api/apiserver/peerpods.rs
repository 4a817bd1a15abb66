//! The definition of PeerPods on a real API server.

mod aws;
mod foreign;
mod libvirt;
mod life;
mod log;
mod scale;
mod virtual_machine;

use crate::apiserver::world::World;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use vm_operator::api::PeerPod;

/// The object as the cloud-api-adaptor creates it.
fn peerpod(name: &str, instance: &str) -> PeerPod {
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u", "controller": true, "blockOwnerDeletion": true});
    let object = json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
        "metadata": {"name": name, "finalizers": ["peer.pod/finalizer"], "ownerReferences": [owner]},
        "spec": {"cloudProvider": "aws", "instanceID": instance},
    });
    serde_json::from_value(object).unwrap()
}

/// Installs the definition, and returns the PeerPods of the namespace.
pub async fn install(world: &World) -> Api<PeerPod> {
    world
        .define("crds/peerpod/peerpods.confidentialcontainers.org.yaml")
        .await;
    Api::namespaced(world.client.clone(), &world.namespace)
}

#[tokio::test]
async fn objects_of_the_adaptor_are_admitted_and_keep_their_instance() {
    let world = World::new("peerpods").await;
    let peerpods = install(&world).await;
    for (name, instance) in [("a", "i-12345678"), ("b", "")] {
        let object = peerpod(name, instance);
        peerpods
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
    }
    let change = async |name: &str, spec: Value| {
        let patch = json!({"spec": spec});
        let params = PatchParams::default();
        peerpods.patch(name, &params, &Patch::Merge(&patch)).await
    };
    change("b", json!({"instanceID": "i-1"})).await.unwrap();
    for spec in [
        json!({"instanceID": "i-2"}),
        json!({"instanceID": null}),
        json!({"cloudProvider": "azure"}),
    ] {
        let error = change("a", spec.clone()).await.unwrap_err().to_string();
        assert!(error.contains("cannot be changed"), "{spec}: {error}");
    }
    // The finalizer can be removed, as the adaptor does.
    let released = json!({"metadata": {"finalizers": null}});
    let params = PatchParams::default();
    peerpods
        .patch("a", &params, &Patch::Merge(&released))
        .await
        .unwrap();
}
