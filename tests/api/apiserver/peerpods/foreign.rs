//! A server with the definition of PeerPods of confidential containers, which removes conditions. At first it does not know VirtualMachines.

use crate::apiserver::peerpods::life::Life;
use crate::apiserver::peerpods::virtual_machine;
use crate::apiserver::world::{World, eventually};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, DeleteParams};
use serde_json::json;
use support::real::Server;
use tokio::sync::OnceCell;
use vm_operator::api::peerpod::names;
use vm_operator::settings::peerpod::Providers;

static SERVER: OnceCell<&'static Server> = OnceCell::const_new();

async fn start() -> &'static Server {
    let server: &'static Server = Box::leak(Box::new(Server::start_for_controllers()));
    drop(server.client().await);
    let world = World::on(server, "definition").await;
    world
        .define("tests/peerpod/peerpods.confidentialcontainers.org.yaml")
        .await;
    server.start_controllers();
    let accounts = Api::<ServiceAccount>::namespaced(world.client.clone(), &world.namespace);
    eventually("namespaces get the account that pods need", async || {
        accounts.get_opt("default").await.unwrap().is_some()
    })
    .await;
    server
}

/// A namespace of that server.
pub async fn life(name: &str, provider: &'static str) -> Life {
    let world = World::on(SERVER.get_or_init(start).await, name).await;
    let peerpods = Api::namespaced(world.client.clone(), &world.namespace);
    Life::of(world, peerpods, provider)
}

/// An answer about a missing kind does not say that the instance is gone.
#[tokio::test(flavor = "multi_thread")]
async fn missing_definition_of_virtual_machines_and_missing_objects_of_the_adaptor_release_nothing()
{
    let mut life = life("missing", names::PROVIDER_VIRTUAL_MACHINE).await;
    life.permit_virtual_machines().await;
    life.operate(Providers::default()).await;
    let vm = format!(
        "{}/a/11111111-2222-3333-4444-555555555555",
        life.world.namespace
    );
    let instances = [
        (
            "a",
            names::PROVIDER_VIRTUAL_MACHINE,
            &*vm,
            "install the definition",
        ),
        ("b", names::PROVIDER_AWS, "i-12345678", names::KEY_REGION),
        (
            "c",
            names::PROVIDER_LIBVIRT,
            "99999999-2222-3333-4444-555555555555",
            "id_rsa",
        ),
    ];
    for (name, provider, id, _) in instances {
        let pod = life.pod_alone(name).await;
        life.record(name, (name, &pod), (provider, id), json!({}))
            .await;
        life.end(name).await;
    }
    for (name, _, _, missing) in instances {
        life.says(name, "ConfigMissing", missing).await;
        assert!(!life.is_released(name).await, "{name}");
    }
    life.world
        .define("crds/vms.vmoperator.jdrupes.org.yaml")
        .await;
    life.annotate("a", "test", "defined").await;
    life.released("a").await;
    for name in ["b", "c"] {
        assert!(!life.is_released(name).await, "{name}");
    }

    virtual_machine::ends_with_its_pod(&life).await;

    // This definition requires no spec.
    let without_spec = json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
        "metadata": {"name": "d", "finalizers": [names::FINALIZER]},
    });
    life.world.apply(&without_spec, false).await.unwrap();
    let params = DeleteParams::default();
    drop(life.peerpods.delete("d", &params).await.unwrap());
    life.released("d").await;
    life.says("d", "NothingToDelete", "").await;

    // A person gives up an instance.
    life.annotate("b", names::ANNOTATION_ABANDON, "i-12345678")
        .await;
    life.released("b").await;
    life.says("b", "InstanceAbandoned", "i-12345678").await;
    let notes = life.notes("Deployment", "", "InstanceAbandoned").await;
    assert!(
        notes[0].contains("/b is released without a proof"),
        "{notes:?}"
    );
    let metrics = life.metrics.text();
    let count = "peerpod_released_total{outcome=\"Abandoned\"} 1";
    assert!(metrics.contains(count), "{metrics}");
}
