//! Figures that a runner serves about its machine at `/metrics`, for Prometheus: with KubeVirt's names where the meaning is the
//! same.

use prometheus_client::metrics::MetricType;

/// A figure.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name.
    pub name: &'static str,
    /// Whether it only grows (a counter) or goes up and down (a gauge).
    pub kind: MetricType,
    /// Labels that its samples have besides [`LABELS`].
    pub labels: &'static str,
    /// What it says, with the unit.
    pub what: &'static str,
}

const fn counter(name: &'static str, labels: &'static str, what: &'static str) -> Figure {
    Figure {
        name,
        kind: MetricType::Counter,
        labels,
        what,
    }
}

const fn gauge(name: &'static str, labels: &'static str, what: &'static str) -> Figure {
    Figure {
        name,
        kind: MetricType::Gauge,
        labels,
        what,
    }
}

/// Labels of every sample: the VM, and where it is.
pub const LABELS: [&str; 3] = ["node", "namespace", "name"];

/// All of them.
pub const ALL: &[Figure] = &[
    gauge(
        "vmoperator_qemu_answers",
        "",
        "1 if QEMU's monitor has answered in time, else 0.",
    ),
    gauge(
        "vmoperator_accelerated",
        "",
        "1 if the processor runs the guest, 0 if it is emulated.",
    ),
    counter(
        "kubevirt_vmi_cpu_usage_seconds_total",
        "",
        "CPU time of QEMU, in seconds.",
    ),
    counter(
        "kubevirt_vmi_cpu_user_usage_seconds_total",
        "",
        "CPU time of QEMU in user mode, in seconds.",
    ),
    counter(
        "kubevirt_vmi_cpu_system_usage_seconds_total",
        "",
        "CPU time of QEMU in the kernel, in seconds.",
    ),
    counter(
        "kubevirt_vmi_vcpu_seconds_total",
        "id",
        "CPU time of each of the guest's CPUs, in seconds.",
    ),
    counter(
        "kubevirt_vmi_vcpu_delay_seconds_total",
        "id",
        "Time that each of the guest's CPUs has waited for one of the host, in seconds.",
    ),
    gauge(
        "kubevirt_vmi_memory_domain_bytes",
        "",
        "Memory that the machine was started with.",
    ),
    gauge(
        "kubevirt_vmi_memory_resident_bytes",
        "",
        "Memory of QEMU that is in the host's.",
    ),
    gauge(
        "kubevirt_vmi_memory_actual_balloon_bytes",
        "",
        "Memory that the balloon leaves to the guest.",
    ),
    gauge(
        "kubevirt_vmi_memory_available_bytes",
        "",
        "Memory that the guest sees.",
    ),
    gauge(
        "kubevirt_vmi_memory_unused_bytes",
        "",
        "Memory that the guest does not use.",
    ),
    gauge(
        "kubevirt_vmi_memory_usable_bytes",
        "",
        "Memory that the guest could use without swapping.",
    ),
    gauge(
        "kubevirt_vmi_memory_cached_bytes",
        "",
        "Memory that the guest uses for caches of disks.",
    ),
    counter(
        "kubevirt_vmi_memory_swap_in_traffic_bytes",
        "",
        "What the guest has swapped in.",
    ),
    counter(
        "kubevirt_vmi_memory_swap_out_traffic_bytes",
        "",
        "What the guest has swapped out.",
    ),
    counter(
        "kubevirt_vmi_memory_pgmajfault_total",
        "",
        "Page faults in the guest that needed a disk.",
    ),
    counter(
        "kubevirt_vmi_memory_pgminfault_total",
        "",
        "Page faults in the guest that needed none.",
    ),
    gauge(
        "vmoperator_disk_aio_info",
        "drive, aio",
        "With what each disk is read and written.",
    ),
    counter("kubevirt_vmi_storage_iops_read_total", "drive", "Reads."),
    counter("kubevirt_vmi_storage_iops_write_total", "drive", "Writes."),
    counter(
        "kubevirt_vmi_storage_read_traffic_bytes_total",
        "drive",
        "Bytes read.",
    ),
    counter(
        "kubevirt_vmi_storage_write_traffic_bytes_total",
        "drive",
        "Bytes written.",
    ),
    counter(
        "kubevirt_vmi_storage_read_times_seconds_total",
        "drive",
        "Time spent with reads, in seconds.",
    ),
    counter(
        "kubevirt_vmi_storage_write_times_seconds_total",
        "drive",
        "Time spent with writes, in seconds.",
    ),
    counter(
        "kubevirt_vmi_storage_flush_requests_total",
        "drive",
        "Flushes.",
    ),
    counter(
        "kubevirt_vmi_storage_flush_times_seconds_total",
        "drive",
        "Time spent with flushes, in seconds.",
    ),
    counter(
        "kubevirt_vmi_network_receive_bytes_total",
        "interface",
        "Bytes that the guest has received on a tap.",
    ),
    counter(
        "kubevirt_vmi_network_receive_packets_total",
        "interface",
        "Packets that the guest has received on a tap.",
    ),
    counter(
        "kubevirt_vmi_network_receive_errors_total",
        "interface",
        "Those among them with errors.",
    ),
    counter(
        "kubevirt_vmi_network_receive_packets_dropped_total",
        "interface",
        "Packets for the guest that were dropped.",
    ),
    counter(
        "kubevirt_vmi_network_transmit_bytes_total",
        "interface",
        "Bytes that the guest has sent on a tap.",
    ),
    counter(
        "kubevirt_vmi_network_transmit_packets_total",
        "interface",
        "Packets that the guest has sent on a tap.",
    ),
    counter(
        "kubevirt_vmi_network_transmit_errors_total",
        "interface",
        "Those among them with errors.",
    ),
    counter(
        "kubevirt_vmi_network_transmit_packets_dropped_total",
        "interface",
        "Packets of the guest that were dropped.",
    ),
];

/// The figure of that name.
#[must_use]
pub fn figure(name: &str) -> Option<&'static Figure> {
    ALL.iter().find(|figure| figure.name == name)
}
