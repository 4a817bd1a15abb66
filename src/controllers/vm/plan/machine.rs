//! (pure) The machine's CPUs, memory and ports.

use crate::api::diagnosis::Diagnosis;
use crate::api::quantity::Bytes;
use crate::api::vm::{CpuTopology, Forward, Machine, PageSize, Protocol};
use crate::controllers::vm::plan::invalid;
use std::collections::BTreeSet;

/// What an x86 machine can address.
const LARGEST: Bytes = Bytes(1 << 52);

pub(super) fn size(field: &str, text: &str) -> Result<Bytes, Diagnosis> {
    let bytes = text
        .parse::<Bytes>()
        .or_else(|e| invalid(field, e.to_string(), "correct the size"))?;
    if bytes.0 < 1 << 20 {
        return invalid(
            field,
            format!("{text:?} is less than 1 MiB"),
            "give a size such as 512Mi or 4Gi",
        );
    }
    if bytes > LARGEST {
        return invalid(
            field,
            format!("{text:?} is more than any machine has"),
            "give at most 4Pi, which is 4096 TiB",
        );
    }
    Ok(bytes)
}

/// Memory of the machine: maximum, and the current one if it is given. One above the maximum cannot be admitted any
/// more; where it was stored before, it means all there is, as it did then.
pub(super) fn memory(machine: &Machine) -> Result<(Bytes, Option<Bytes>), Diagnosis> {
    let maximum = size("spec.vm.maximumRam", &machine.maximum_ram)?;
    let current = machine
        .current_ram
        .as_deref()
        .map(|text| size("spec.vm.currentRam", text))
        .transpose()?;
    if let Some(size) = hugepages(machine)
        && !whole_mebibytes(maximum).0.is_multiple_of(size.bytes())
    {
        let (text, pages) = (&machine.maximum_ram, size.as_str());
        let next = Bytes(maximum.0.next_multiple_of(size.bytes())).to_quantity();
        let why = format!(
            "{text:?} is no whole number of the huge pages of {pages} (spec.vm.memory.hugepages)"
        );
        return invalid(
            "spec.vm.maximumRam",
            why,
            format!("give a multiple of {pages}, such as {next}"),
        );
    }
    Ok((maximum, current.map(|current| current.min(maximum))))
}

/// The size of the huge pages that the memory is made of, if it is.
pub(super) fn hugepages(machine: &Machine) -> Option<PageSize> {
    Some(machine.memory.as_ref()?.hugepages.as_ref()?.page_size)
}

/// The memory as the runner takes it.
pub(super) fn whole_mebibytes(ram: Bytes) -> Bytes {
    Bytes(ram.0 >> 20 << 20)
}

/// CPUs of the machine: maximum and current.
pub(super) fn cpus(machine: &Machine) -> Result<(u32, u32), Diagnosis> {
    let at_least_one = |n: i64| u32::try_from(n.max(1)).unwrap_or(u32::MAX);
    let maximum = match (&machine.cpu_topology, machine.maximum_cpus) {
        (Some(t), _) => [
            t.sockets,
            t.dies_per_socket,
            t.cores_per_die,
            t.threads_per_core,
        ]
        .map(at_least_one)
        .iter()
        .fold(1u32, |product, n| product.saturating_mul(*n)),
        (None, Some(n)) => at_least_one(n),
        (None, None) => machine.current_cpus.map_or(1, at_least_one),
    };
    let current = machine.current_cpus.map_or(maximum, at_least_one);
    // QEMU chooses the parts that are not given, in whole numbers.
    let fits = |t: &CpuTopology| {
        let open = t.sockets < 1 || t.cores_per_die < 1 || t.threads_per_core < 1;
        current <= maximum || open && current.is_multiple_of(maximum)
    };
    if !machine.cpu_topology.as_ref().is_none_or(fits) {
        let why =
            format!("{current} is more than the {maximum} CPUs that spec.vm.cpuTopology allows");
        return invalid(
            "spec.vm.currentCpus",
            why,
            "lower it, or enlarge the topology",
        );
    }
    // As in the reference, the maximum gives way.
    Ok((maximum.max(current), current))
}

/// Ports that lead into the guest; each port of the pod can be used once.
pub(super) fn forwards(
    machine: &Machine,
    spice_port: Option<i64>,
    metrics_port: Option<i64>,
) -> Result<Vec<Forward>, Diagnosis> {
    let mut taken: BTreeSet<(i64, &str)> =
        spice_port.map(|port| (port, "TCP")).into_iter().collect();
    if let Some(port) = metrics_port.filter(|port| !taken.insert((*port, "TCP"))) {
        return invalid(
            "spec.metricsPort",
            format!("{port} is the display's port"),
            "choose another port",
        );
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
                    format!("{} is used twice in the pod", forward.port),
                    "choose another port",
                );
            }
            forwards.push(forward.clone());
        }
    }
    Ok(forwards)
}

/// The protocol's name in Kubernetes.
#[must_use]
pub fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::TCP => "TCP",
        Protocol::UDP => "UDP",
    }
}
