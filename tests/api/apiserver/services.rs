//! The load balancer service and restart requests on a real API server, which sets defaults that the fake one does not.

use crate::apiserver::world::{World, eventually, machine};
use http::Request;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use vm_operator::api::VirtualMachine;
use vm_operator::settings::{LoadBalancerService, Settings};

fn with_services() -> Settings {
    let map = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let mut settings = Settings::default();
    settings.reconciler.load_balancer_service = LoadBalancerService::On {
        labels: map("team", "red"),
        annotations: map("pool", "public"),
    };
    settings
}

#[tokio::test]
async fn rejected_name_of_a_service_is_reported_as_the_name_of_the_vm() {
    let world = World::new("service-names").await;
    let _operator = world.start_operator_with(with_services()).await;
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    let vm = machine("1st-web", json!({"vm": {"state": "Running"}}));
    vms.create(&PostParams::default(), &vm).await.unwrap();
    eventually("the cause is named", || async {
        let status = vms.get("1st-web").await.unwrap().status.unwrap_or_default();
        let mut conditions = status.conditions.iter();
        conditions.any(|it| it.type_ == "ServiceInSync" && it.message.contains("name of the VM"))
    })
    .await;
}

async fn create(world: &World) -> Api<VirtualMachine> {
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    let spec = json!({"nodeSelector": {"no-such": "node"}, "vm": {"state": "Running"}});
    vms.create(&PostParams::default(), &machine("vm", spec))
        .await
        .unwrap();
    vms
}

async fn edit(vms: &Api<VirtualMachine>, spec: Value) {
    vms.patch(
        "vm",
        &PatchParams::default(),
        &Patch::Merge(&json!({"spec": spec})),
    )
    .await
    .unwrap();
}

async fn say(world: &World, service: Value) {
    let patch = json!([{"op": "add", "path": "/spec/loadBalancerService", "value": service}]);
    let path = format!(
        "/apis/vmoperator.jdrupes.org/v1/namespaces/{}/vms/vm",
        world.namespace
    );
    let request = Request::patch(path).header("Content-Type", "application/json-patch+json");
    let request = request.body(serde_json::to_vec(&patch).unwrap()).unwrap();
    world.client.request::<Value>(request).await.unwrap();
}

#[tokio::test]
async fn a_service_is_made_followed_and_taken_away() {
    let world = World::new("services").await;
    let operator = world.start_operator_with(with_services()).await;
    let services = Api::<Service>::namespaced(world.client.clone(), &world.namespace);
    let port = async || {
        services
            .get_opt("vm")
            .await
            .unwrap()
            .and_then(|service| service.spec?.ports?.into_iter().next())
    };
    let vms = create(&world).await;
    eventually("there is a service", || async {
        port().await.is_some_and(|port| port.port == 5900)
    })
    .await;
    let node_port = port().await.unwrap().node_port.unwrap();
    // Not by a merge patch, which would remove a field that is null.
    say(&world, json!({"labels": {"team": null, "mine": "1"}})).await;
    eventually("the VM's values override the defaults", || async {
        let labels = services.get("vm").await.unwrap().labels().clone();
        labels.get("mine").is_some_and(|value| value == "1") && !labels.contains_key("team")
    })
    .await;
    assert_eq!(port().await.unwrap().node_port, Some(node_port));
    edit(&vms, json!({"vm": {"display": {"spice": {"port": 5910}}}})).await;
    eventually("the port is followed", || async {
        port().await.is_some_and(|port| port.port == 5910)
    })
    .await;
    // Defaults of the server cause no further write.
    let patches = || {
        operator
            .writes()
            .iter()
            .filter(|write| write.ends_with("/services/vm"))
            .count()
    };
    assert_eq!(patches(), 2);
    say(&world, json!({})).await;
    eventually("the service is deleted", || async {
        services.get_opt("vm").await.unwrap().is_none()
    })
    .await;
    operator.stop().await;
}

#[tokio::test]
async fn a_restart_that_is_asked_for_makes_one_new_pod() {
    let world = World::new("restarts").await;
    let operator = world.start_operator().await;
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    let vms = create(&world).await;
    eventually("there is a pod", || async {
        pods.get_opt("vm").await.unwrap().is_some()
    })
    .await;
    let first = pods.get("vm").await.unwrap().uid();
    edit(&vms, json!({"vm": {"restartRequest": 1}})).await;
    eventually("the restart is carried out", || async {
        vms.get("vm")
            .await
            .unwrap()
            .status
            .unwrap()
            .observed_restart_request
            == Some(1)
    })
    .await;
    let second = pods.get("vm").await.unwrap().uid();
    assert!(second.is_some() && second != first);
    operator.stop().await;
    let operator = world.start_operator().await;
    edit(&vms, json!({"guestShutdownStops": true})).await;
    eventually("the new operator has looked at the VM", || async {
        let vm = vms.get("vm").await.unwrap();
        vm.status.unwrap().observed_generation == vm.metadata.generation
    })
    .await;
    assert_eq!(pods.get("vm").await.unwrap().uid(), second);
    operator.stop().await;
}
