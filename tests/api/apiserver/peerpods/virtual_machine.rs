//! Instances that are VirtualMachines. No operator runs them, so a finalizer of the test takes the place of their children.

use crate::apiserver::peerpods::life::Life;
use crate::apiserver::world::eventually;
use serde_json::json;
use std::time::{Duration, Instant};
use vm_operator::api::peerpod::names;
use vm_operator::settings::peerpod::{PeerPodSettings, Sweep};

/// A pod ends, and then its VM does. Returns the time between the end of the pod and the deletion of the VM.
pub async fn ends_with_its_pod(life: &Life) -> Duration {
    let (pod, id) = life.pod_with_vm("vm").await;
    let instance = (names::PROVIDER_VIRTUAL_MACHINE, &*id);
    life.record("vm", ("vm", &pod), instance, json!({})).await;
    let began = Instant::now();
    life.end("vm").await;
    let vms = life.world.vms();
    eventually("the VM is deleted", async || {
        let vm = vms.get("vm").await.unwrap();
        vm.metadata.deletion_timestamp.is_some()
    })
    .await;
    let waited = began.elapsed();
    life.says("vm", "Deleting", "is being deleted").await;
    assert!(!life.is_released("vm").await);
    assert!(
        life.notes("PeerPod", "vm", "InstanceDeleted")
            .await
            .is_empty()
    );
    life.let_vm_go("vm").await;
    life.released("vm").await;
    life.says("vm", "InstanceDeleted", &id).await;
    waited
}

#[tokio::test(flavor = "multi_thread")]
async fn virtual_machine_is_deleted_10_s_after_its_pod_and_its_peerpod_is_released_when_it_is_gone()
{
    let mut life = Life::start("vm-life", names::PROVIDER_VIRTUAL_MACHINE).await;
    life.permit_virtual_machines().await;
    let settings = PeerPodSettings {
        sweep: Sweep::Off,
        ..PeerPodSettings::default()
    };
    let controller = life.controller(settings, Instant::now).await;
    life.run(controller);
    let waited = ends_with_its_pod(&life).await;
    assert!(waited >= Duration::from_secs(10), "{waited:?}");
}
