//! The client beside which `make bench-scale` measures the operator makes the same writes.

use crate::apiserver::objects::unschedulable_vm;
use crate::apiserver::world::{World, eventually};
use kube::ResourceExt;
use kube::api::{ListParams, PostParams};
use std::collections::BTreeMap;
use support::replay::{Replay, Write, Writes, vm_name};
use vm_operator::api::conditions::find;
use vm_operator::api::vm::conditions;
use vm_operator::k8s::live::Version;
use vm_operator::settings::Settings;

const VMS: usize = 3;

impl World {
    /// Creates VMs without a node that fits. Returns their versions.
    async fn create_unschedulable(&self) -> BTreeMap<String, Version> {
        let mut versions = BTreeMap::new();
        for n in 0..VMS {
            let mut vm = unschedulable_vm("Running");
            vm.metadata.name = Some(vm_name(n));
            let vm = self.vms().create(&PostParams::default(), &vm).await;
            let vm = vm.unwrap();
            versions.insert(vm.name_any(), Version::of(&vm));
        }
        versions
    }

    /// Whether the status of each VM reports that no node fits.
    async fn all_unschedulable(&self) -> bool {
        let vms = self.vms().list(&ListParams::default()).await.unwrap();
        vms.iter().all(|vm| {
            let conditions = &vm.status.as_ref().unwrap().conditions;
            let ready = find(conditions, conditions::READY);
            ready.is_some_and(|ready| ready.reason == "Unschedulable")
        })
    }
}

/// The kinds of each VM's writes.
fn kinds(writes: &BTreeMap<String, Vec<Write>>) -> BTreeMap<&String, Vec<String>> {
    let kinds = |writes: &Vec<Write>| writes.iter().map(Write::kind).collect();
    let writes = writes.iter();
    writes.map(|(vm, writes)| (vm, kinds(writes))).collect()
}

#[tokio::test]
async fn replay_has_the_verbs_kinds_and_patch_types_of_the_operator() {
    let (world, other) = (World::new("recorded").await, World::new("repeated").await);
    let requests = Writes::default();
    requests.start();
    let client = requests.client(world.client.clone());
    let operator = world.start_operator_as(client, Settings::default()).await;
    let recorded = world.create_unschedulable().await;
    eventually("the VMs are settled", || world.all_unschedulable()).await;
    operator.stop().await;
    let of_operator = requests.stop();

    let present = other.create_unschedulable().await;
    let client = requests.client(other.client.clone());
    requests.start();
    let replay = Replay {
        client: &client,
        from: &world.namespace,
        to: &other.namespace,
    };
    for (vm, version) in present {
        let recorded = recorded[&vm].clone();
        replay.send(&of_operator[&vm], recorded, version).await;
    }
    let of_replay = requests.stop();
    assert_eq!(of_operator.len(), VMS);
    assert_eq!(kinds(&of_replay), kinds(&of_operator));
    for kind in [
        "POST pods ",
        "PATCH vms/status application/",
        "POST events ",
    ] {
        let kinds = kinds(&of_replay);
        let has = |writes: &Vec<String>| writes.iter().any(|write| write.starts_with(kind));
        assert!(kinds.values().all(has), "{kind}: {kinds:?}");
    }
    assert!(other.all_unschedulable().await);
}
