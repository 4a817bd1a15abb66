//! (pure) CPUs, memory and ports of a VM.

use crate::api::VirtualMachineSpec;
use crate::api::quantity::{Bytes, SizeError};
use crate::api::vm::diagnosis::Diagnosis;
use crate::api::vm::{
    CpuTopology, Forward, Machine, PCI_DEVICES_MAX, PageSize, Protocol, RAM_MAX, RAM_MIN,
};
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::plan::{Plan, invalid};
use crate::controllers::vm::pod::resources::recorded;
use crate::k8s::views::PodView;
use k8s_openapi::api::core::v1::ResourceRequirements;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Number of CPUs and size of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controllers::vm) struct Sizes {
    pub maximum_cpus: u32,
    pub current_cpus: u32,
    pub maximum_ram: Bytes,
    /// At most `maximum_ram`. None means all memory.
    pub current_ram: Option<Bytes>,
}

/// Checks that the PCI bus has a slot for each network and disk. A stored VM without a cloud-init seed can have one more.
pub(super) fn check_devices(machine: &Machine, has_seed: bool) -> Result<(), Diagnosis> {
    let disks = machine.disks.iter();
    let disks = disks.filter(|disk| disk.volume_claim_template.is_some());
    let count = machine.networks.len() + disks.count();
    if count > PCI_DEVICES_MAX + usize::from(!has_seed) {
        return invalid(
            "spec.vm",
            format!(
                "the VM has {count} networks and disks with PVCs, but at most {PCI_DEVICES_MAX} are possible"
            ),
            "remove networks or disks",
        );
    }
    Ok(())
}

/// The sizes of the machine. A stored machine may have sizes that the schema no longer admits.
pub(in crate::controllers::vm) fn sizes(machine: &Machine) -> Result<Sizes, Diagnosis> {
    let maximum_ram = size("spec.vm.maximumRam", &machine.maximum_ram)?;
    let current_ram = machine
        .current_ram
        .as_deref()
        .map(|text| size("spec.vm.currentRam", text))
        .transpose()?;
    check_whole_pages(machine, maximum_ram)?;
    let (maximum_cpus, current_cpus) = cpus(machine)?;
    Ok(Sizes {
        maximum_cpus,
        current_cpus,
        maximum_ram,
        // The schema admits no larger value. The Java VM-Operator stored larger values, and used all memory for them.
        current_ram: current_ram.map(|current| current.min(maximum_ram)),
    })
}

/// The sizes for the runner's configuration. The guest of a running pod gets more memory after the kubelet has allocated the memory to the
/// pod. Otherwise, the kernel of a node without this memory would kill pods.
pub(super) fn allocated(
    sizes: Sizes,
    resources: &ResourceRequirements,
    observed: &Observed,
) -> Sizes {
    match smaller_ram(sizes, observed) {
        Some(present) if waits_for_memory(resources, observed) => Sizes {
            current_ram: Some(present),
            ..sizes
        },
        _ => sizes,
    }
}

/// The memory in the runner's configuration, if it is less than the guest shall have.
fn smaller_ram(sizes: Sizes, observed: &Observed) -> Option<Bytes> {
    let wanted = sizes.current_ram.unwrap_or(sizes.maximum_ram);
    let present = observed.config_map.as_ref()?.config.current_ram?;
    (present < wanted).then_some(present)
}

/// The memory that the guest shall have, if the VM sets it or the runner's configuration has less.
pub fn wanted_ram(observed: &Observed) -> Option<Bytes> {
    let sizes = sizes(&observed.vm.spec.vm).ok()?;
    sizes
        .current_ram
        .or_else(|| smaller_ram(sizes, observed).map(|_| sizes.maximum_ram))
}

/// Whether the guest can get the memory that the plan withholds, because the kubelet has allocated it since.
pub fn can_grow(plan: &Plan, observed: &Observed) -> bool {
    let Ok(sizes) = sizes(&observed.vm.spec.vm) else {
        return false;
    };
    let planned = plan.config.vm.as_ref().and_then(|vm| vm.current_ram);
    planned != sizes.current_ram && !waits_for_memory(&plan.pod.resources, observed)
}

/// Whether the pod runs with less memory than it needs. `spec.resources` and huge pages do not depend on the guest's memory, and pods of
/// the Java VM-Operator are never resized. Some kubelets do not report the allocated memory.
fn waits_for_memory(resources: &ResourceRequirements, observed: &Observed) -> bool {
    let spec = &observed.vm.spec;
    let memory = |resources: &ResourceRequirements| {
        let memory = resources.requests.as_ref()?.get("memory")?;
        memory.0.parse::<Bytes>().ok()
    };
    let is_running = |pod: &&Arc<PodView>| pod.has_started() && !pod.has_ended();
    let allocated = observed.own_pod().filter(is_running).and_then(|pod| {
        let last = recorded(pod.annotations())?;
        let allocated = pod.container()?.allocated_memory?;
        // After a smaller request, the kubelet may not have reduced the allocated memory yet.
        Some(memory(&last).map_or(allocated, |last| last.min(allocated)))
    });
    let needed = memory(resources);
    spec.resources.is_none()
        && hugepages(&spec.vm).is_none()
        && allocated
            .zip(needed)
            .is_some_and(|(allocated, needed)| allocated < needed)
}

fn size(field: &str, text: &str) -> Result<Bytes, Diagnosis> {
    let size = text
        .parse::<Bytes>()
        .or_else(|error: SizeError| invalid(field, error.to_string(), "correct the size"))?;
    if size < RAM_MIN {
        return invalid(
            field,
            format!("the memory {text:?} is less than the minimum of {RAM_MIN}"),
            "use a size such as 512Mi or 4Gi",
        );
    }
    if size > RAM_MAX {
        return invalid(
            field,
            format!("the memory {text:?} is more than the maximum of {RAM_MAX}"),
            "lower the memory",
        );
    }
    Ok(size)
}

/// Checks that the memory is a whole number of huge pages, if it consists of them.
fn check_whole_pages(machine: &Machine, maximum: Bytes) -> Result<(), Diagnosis> {
    let rest = |size: &PageSize| whole_mebibytes(maximum).0 % size.bytes();
    let Some(size) = hugepages(machine).filter(|size| rest(size) != 0) else {
        return Ok(());
    };
    let (text, pages) = (&machine.maximum_ram, size.as_str());
    let next = Bytes((maximum.0 / size.bytes() + 1).saturating_mul(size.bytes())).to_quantity();
    invalid(
        "spec.vm.maximumRam",
        format!(
            "the memory {text:?} is not a multiple of the huge page size {pages} (spec.vm.memory.hugepages)"
        ),
        format!("use a multiple of {pages}, such as {next}"),
    )
}

/// The size of the huge pages of the guest's memory, if it consists of huge pages.
pub(super) fn hugepages(machine: &Machine) -> Option<PageSize> {
    Some(machine.memory.as_ref()?.hugepages.as_ref()?.page_size)
}

/// The size that the runner gives the guest.
pub(super) fn whole_mebibytes(ram: Bytes) -> Bytes {
    Bytes(ram.0 >> 20 << 20)
}

/// Maximum and current number of CPUs.
fn cpus(machine: &Machine) -> Result<(u32, u32), Diagnosis> {
    let at_least_one = |n: i64| u32::try_from(n.max(1)).unwrap_or(u32::MAX);
    let maximum = match (&machine.cpu_topology, machine.maximum_cpus) {
        (Some(topology), _) => topology.cpus(),
        (None, Some(n)) => at_least_one(n),
        (None, None) => machine.current_cpus.map_or(1, at_least_one),
    };
    let current = machine.current_cpus.map_or(maximum, at_least_one);
    // QEMU chooses unspecified parts of the topology, as whole numbers.
    let fits = |t: &CpuTopology| {
        let is_open = t.sockets < 1 || t.cores_per_die < 1 || t.threads_per_core < 1;
        current <= maximum || is_open && current.is_multiple_of(maximum)
    };
    if !machine.cpu_topology.as_ref().is_none_or(fits) {
        return invalid(
            "spec.vm.currentCpus",
            format!(
                "{current} current CPUs are more than the {maximum} CPUs of spec.vm.cpuTopology"
            ),
            "lower currentCpus, or enlarge cpuTopology",
        );
    }
    // As in the Java VM-Operator, a larger current number raises the maximum.
    Ok((maximum.max(current), current))
}

/// The configured port of the display.
pub(super) fn spice_port(machine: &Machine) -> Option<i64> {
    machine.display.spice.as_ref().map(|spice| spice.port)
}

/// Ports of the pod that are forwarded to the guest. Each port of the pod has one use.
pub(super) fn forwards(spec: &VirtualMachineSpec) -> Result<Vec<Forward>, Diagnosis> {
    let machine = &spec.vm;
    let spice_port = spice_port(machine).map(|port| (port, "TCP"));
    let mut taken: BTreeSet<(i64, &str)> = spice_port.into_iter().collect();
    for (field, port, others) in [
        (
            "spec.metricsPort",
            spec.metrics_port,
            "the display of the VM already uses",
        ),
        (
            "spec.consolePort",
            spec.console_port,
            "the display of the VM or spec.metricsPort already uses",
        ),
    ] {
        if let Some(port) = port.filter(|port| !taken.insert((*port, "TCP"))) {
            return invalid(
                field,
                format!("{others} port {port} of the pod"),
                "choose another port",
            );
        }
    }
    let mut forwards = Vec::new();
    for (i, network) in machine.networks.iter().enumerate() {
        for (j, forward) in network
            .user
            .iter()
            .flat_map(|user| &user.forward)
            .enumerate()
        {
            if !taken.insert((forward.port.into(), protocol(forward.protocol))) {
                let field = format!("spec.vm.networks[{i}].user.forward[{j}].port");
                return invalid(
                    field,
                    format!(
                        "port {} of the pod is already in use by the display, by spec.metricsPort, by spec.consolePort or by another port forward",
                        forward.port
                    ),
                    "choose another port",
                );
            }
            forwards.push(forward.clone());
        }
    }
    Ok(forwards)
}

/// The name of the protocol in Kubernetes.
#[must_use]
pub fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::TCP => "TCP",
        Protocol::UDP => "UDP",
    }
}
