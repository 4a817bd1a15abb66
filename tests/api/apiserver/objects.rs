//! The objects that the operator creates for a VM, and reconciles without differences, which write nothing.

use crate::apiserver::world::{World, eventually, machine};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use vm_operator::api::VirtualMachine;
use vm_operator::api::conditions::find;
use vm_operator::api::vm::conditions;

/// A VM with a pod that matches no node.
pub fn unschedulable_vm(state: &str) -> VirtualMachine {
    let template = json!({"metadata": {"name": "system"}, "spec": {"resources": {"requests": {"storage": "1Mi"}}}});
    let machine_spec = json!({"state": state, "disks": [{"volumeClaimTemplate": template}]});
    machine(
        "vm",
        json!({"nodeSelector": {"no-such": "node"}, "vm": machine_spec}),
    )
}

async fn count<K>(client: &Client, namespace: &str) -> usize
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let of_vm = ListParams::default().labels("app.kubernetes.io/instance=vm");
    Api::<K>::namespaced(client.clone(), namespace)
        .list(&of_vm)
        .await
        .unwrap()
        .items
        .len()
}

/// Waits until the status reports that no node matches. Then the VM is settled.
pub async fn explained_as_unschedulable(vms: &Api<VirtualMachine>) {
    eventually("the VM is explained as Unschedulable", || async {
        let status = vms.get("vm").await.unwrap().status.unwrap();
        find(&status.conditions, conditions::READY)
            .is_some_and(|ready| ready.reason == "Unschedulable")
    })
    .await;
}

#[tokio::test]
async fn a_vm_becomes_its_objects_and_leaves_only_its_claims() {
    let world = World::new("objects").await;
    let operator = world.start_operator().await;
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    vms.create(&PostParams::default(), &unschedulable_vm("Running"))
        .await
        .unwrap();

    explained_as_unschedulable(&vms).await;
    let pod = pods.get("vm").await.unwrap();
    assert!(pod.owner_references()[0].controller.unwrap());
    assert_eq!(
        count::<PersistentVolumeClaim>(&world.client, &world.namespace).await,
        2
    );

    let body = json!({"spec": {"vm": {"state": "Stopped"}}});
    vms.patch("vm", &PatchParams::default(), &Patch::Merge(&body))
        .await
        .unwrap();
    eventually("the pod is deleted", || async {
        pods.get_opt("vm").await.unwrap().is_none()
    })
    .await;
    eventually("the VM is stopped", || async {
        let status = vms.get("vm").await.unwrap().status.unwrap();
        find(&status.conditions, conditions::READY).is_some_and(|ready| ready.reason == "Stopped")
    })
    .await;
    let body = json!({"spec": {"vm": {"state": "Running"}}});
    vms.patch("vm", &PatchParams::default(), &Patch::Merge(&body))
        .await
        .unwrap();
    eventually("the pod is back", || async {
        pods.get_opt("vm").await.unwrap().is_some()
    })
    .await;

    vms.delete("vm", &DeleteParams::default()).await.unwrap();
    eventually("pod, ConfigMap and Secret are deleted", || async {
        let (client, namespace) = (&world.client, &world.namespace);
        count::<Pod>(client, namespace).await == 0
            && count::<ConfigMap>(client, namespace).await == 0
            && count::<Secret>(client, namespace).await == 0
    })
    .await;
    assert_eq!(
        count::<PersistentVolumeClaim>(&world.client, &world.namespace).await,
        2
    );
    operator.stop().await;
}

#[tokio::test]
async fn an_operator_that_starts_over_settled_vms_writes_nothing() {
    let world = World::new("restart").await;
    let operator = world.start_operator().await;
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    vms.create(&PostParams::default(), &unschedulable_vm("Running"))
        .await
        .unwrap();
    explained_as_unschedulable(&vms).await;
    operator.stop().await;
    let operator = world.start_operator().await;
    // A write of the new operator proves that it has reconciled all objects before.
    vms.create(
        &PostParams::default(),
        &machine("second", json!({"vm": {}})),
    )
    .await
    .unwrap();
    eventually("the second VM is seen", || async {
        let status = vms.get("second").await.unwrap().status.unwrap();
        find(&status.conditions, conditions::READY).is_some_and(|it| it.status != "Unknown")
    })
    .await;
    let writes = operator.writes();
    assert!(
        !writes.is_empty()
            && writes
                .iter()
                .all(|write| write.contains("second") || !write.contains("/vm")),
        "{writes:?}"
    );
    operator.stop().await;
}

#[tokio::test]
async fn the_pods_requests_follow_a_change_of_cpus() {
    let world = World::new("resize").await;
    let operator = world.start_operator().await;
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    let mut vm = unschedulable_vm("Running");
    (vm.spec.vm.maximum_cpus, vm.spec.vm.current_cpus) = (Some(2), Some(1));
    vms.create(&PostParams::default(), &vm).await.unwrap();
    let cpu = async |amount: &str| {
        let pod = pods.get_opt("vm").await.unwrap();
        let resources =
            pod.and_then(|pod| pod.spec?.containers.into_iter().next()?.resources?.requests);
        resources.is_some_and(|requests| requests["cpu"].0 == amount)
    };
    eventually("the pod asks for half a CPU", || cpu("500m")).await;
    let uid = pods.get("vm").await.unwrap().uid();
    let body = json!({"spec": {"vm": {"currentCpus": 2}}});
    vms.patch("vm", &PatchParams::default(), &Patch::Merge(&body))
        .await
        .unwrap();
    eventually("the pod asks for a whole one", || cpu("1")).await;
    assert_eq!(pods.get("vm").await.unwrap().uid(), uid);
    // A request that was sent is not repeated.
    eventually("the change is announced", || async {
        operator
            .writes()
            .iter()
            .any(|write| write.ends_with("/pods/vm"))
    })
    .await;
    assert_eq!(
        operator
            .writes()
            .iter()
            .filter(|write| write.ends_with("/resize"))
            .count(),
        1
    );
    let status = vms.get("vm").await.unwrap().status.unwrap();
    assert_eq!(
        find(&status.conditions, conditions::RESOURCES_IN_SYNC),
        None
    );
    operator.stop().await;
}
