//! CPUs and memory.

use super::*;
use crate::controllers::vm::diagnose::memory_limit::too_low;
use crate::controllers::vm::fixtures::{pod, with_pod};
use std::sync::Arc;

#[test]
fn b12_a_topology_gives_the_maximum_of_cpus() {
    // B12: the Java VM-Operator gave such a VM a single CPU.
    let topology = json!({"cpuTopology": {"sockets": 2, "coresPerDie": 2, "threadsPerCore": 2}});
    let machine = planned(topology).unwrap().config.vm.unwrap();
    assert_eq!(
        (machine.maximum_cpus, machine.current_cpus),
        (Some(8), Some(8))
    );
    let machine = planned(json!({})).unwrap().config.vm.unwrap();
    assert_eq!(
        (machine.maximum_cpus, machine.current_cpus),
        (Some(1), Some(1))
    );
}

#[test]
fn a_maximum_below_the_wanted_number_of_cpus_is_raised() {
    let machine = planned(json!({"maximumCpus": 2, "currentCpus": 3}))
        .unwrap()
        .config
        .vm
        .unwrap();
    assert_eq!(
        (machine.maximum_cpus, machine.current_cpus),
        (Some(3), Some(3))
    );
}

#[test]
fn a_topology_with_an_open_part_grows_to_the_wanted_number_of_cpus() {
    // The Java VM-Operator passes the current number as the maximum, and QEMU chooses the unspecified part.
    let machine = planned(json!({"cpuTopology": {"sockets": 2}, "currentCpus": 6}))
        .unwrap()
        .config
        .vm
        .unwrap();
    assert_eq!(
        (machine.maximum_cpus, machine.sockets, machine.cores_per_die),
        (Some(6), 2, 0)
    );
    let closed = json!({"sockets": 2, "coresPerDie": 1, "threadsPerCore": 1});
    assert_eq!(
        invalid_field(json!({"cpuTopology": closed, "currentCpus": 6})),
        "spec.vm.currentCpus"
    );
}

#[test]
fn a_stored_balloon_above_the_memory_means_all_of_it() {
    // B39: the Java VM-Operator stored and ran such VMs.
    let machine = planned(json!({"maximumRam": "1Gi", "currentRam": "2Gi"}))
        .unwrap()
        .config
        .vm
        .unwrap();
    assert_eq!(machine.current_ram, Some(Bytes(1 << 30)));
}

#[test]
fn b43_requests_follow_the_current_size_and_leave_room_for_qemu() {
    let mut machine = json!({
        "maximumCpus": 4, "currentCpus": 3, "maximumRam": "8Gi", "currentRam": "5Gi", "display": {},
    });
    let requests = |machine| planned(machine).unwrap().pod.resources.requests.unwrap();
    let without_display = requests(machine.clone());
    assert_eq!(without_display["cpu"].0, "1500m");
    // 5 GiB / 1.25, and 76 MiB + 3 × 1 MiB + 8 GiB / 512.
    assert_eq!(
        without_display["memory"].0,
        ((4096u64 + 76 + 3 + 16) << 20).to_string()
    );
    machine["display"] = json!({"spice": {"port": 5910}});
    assert_eq!(
        requests(machine)["memory"].0,
        ((4096u64 + 76 + 3 + 16 + 28) << 20).to_string()
    );
}

#[test]
fn memory_limit_below_guest_and_reserve_is_reported() {
    let message = |limit: &str| {
        let mut vm = vm(json!({"maximumRam": "1Gi", "display": {}}));
        vm.spec.resources = serde_json::from_value(json!({"limits": {"memory": limit}})).unwrap();
        let plan = plan(&alone(vm), &settings::Reconciler::default()).unwrap();
        too_low(&plan.pod.resources, plan.pod.needed_memory).map(|condition| condition.message)
    };
    // 1 GiB, and 76 MiB + 1 MiB + 1 GiB / 512.
    assert_eq!(message("1103Mi"), None);
    let message = message("24Mi").unwrap();
    assert!(
        message.contains("is 24Mi, but the guest and QEMU need up to 1103Mi"),
        "{message}"
    );
}

#[test]
fn guest_grows_after_the_kubelet_has_allocated_the_memory() {
    let current = |allocated: Value, annotation: &str| {
        let machine = json!({"state": "Running", "maximumRam": "8Gi", "currentRam": "5Gi"});
        let container = json!({"name": "vm", "resources": {"requests": {"memory": allocated}}});
        let mut pod = pod(json!({"phase": "Running", "containerStatuses": [container]}));
        let annotation = (annotation.to_owned(), "{}".to_owned());
        pod.metadata.annotations = [annotation].into_iter().collect();
        let mut observed = with_pod(vm(machine), pod);
        let config = json!({"/Runner": {"vm": {"currentRam": "2 GiB"}}}).to_string();
        let config_map = json!({"metadata": {}, "data": {"config.yaml": config}});
        observed.config_map = serde_json::from_value(config_map).ok().map(Arc::new);
        let plan = plan(&observed, &settings::Reconciler::default()).unwrap();
        plan.config.vm.unwrap().current_ram
    };
    let resources = names::ANNOTATION_RESOURCES;
    assert_eq!(current(json!("2Gi"), resources), Some(Bytes(2 << 30)));
    assert_eq!(current(json!("8Gi"), resources), Some(Bytes(5 << 30)));
    // A kubelet that does not report the memory, and a pod of the Java VM-Operator, which is never resized.
    assert_eq!(current(json!(null), resources), Some(Bytes(5 << 30)));
    assert_eq!(current(json!("2Gi"), "other"), Some(Bytes(5 << 30)));
}

#[test]
fn huge_pages_are_asked_for_apart_and_the_memory_must_be_a_whole_number_of_them() {
    let machine = |ram: &str, size: &str| json!({"maximumRam": ram, "memory": {"hugepages": {"pageSize": size}}});
    let (ordinary, huge) = (
        planned(json!({"maximumRam": "4Gi"})).unwrap(),
        planned(machine("4Gi", "2Mi")).unwrap(),
    );
    let amount = |amounts: &Option<BTreeMap<String, Quantity>>, name: &str| {
        amounts
            .as_ref()
            .and_then(|amounts| amounts.get(name))
            .map(|amount| amount.0.clone())
    };
    for amounts in [&huge.pod.resources.requests, &huge.pod.resources.limits] {
        assert_eq!(amount(amounts, "hugepages-2Mi").as_deref(), Some("4Gi"));
    }
    assert_eq!(amount(&huge.pod.resources.limits, "memory"), None);
    let memory = |plan: &Plan| {
        amount(&plan.pod.resources.requests, "memory")
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    assert!(memory(&ordinary) > 3 << 30 && memory(&huge) < 256 << 20);
    let vm = huge.config.vm.unwrap();
    assert_eq!(
        (vm.hugepages, vm.shared_memory),
        (Some(PageSize::Large), false)
    );
    let invalid = planned(machine("1536Mi", "1Gi")).unwrap_err();
    assert_eq!(
        (invalid.subject.as_str(), invalid.next_step.as_str()),
        ("spec.vm.maximumRam", "use a multiple of 1Gi, such as 2Gi")
    );
    // Also if it is not in whole MiB.
    assert!(
        planned(machine("1G", "2Mi"))
            .unwrap_err()
            .problem
            .contains("\"1G\"")
    );
}

#[test]
fn stored_vm_with_more_disks_than_pci_slots_is_invalid() {
    let disks = |n: usize| vec![json!({"volumeClaimTemplate": {}}); n];
    let networks = json!([{"user": {}}]);
    assert!(planned(json!({"disks": disks(23), "networks": networks})).is_ok());
    let too_many = json!({"disks": disks(24), "networks": networks});
    assert_eq!(invalid_field(too_many), "spec.vm");
}
