//! Metrics of a VM, which its runner serves at `/metrics`. They have the names of KubeVirt's metrics if the meaning is the same.

use prometheus_client::metrics::MetricType;

/// A metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name of the metric.
    pub name: &'static str,
    /// Counter or gauge.
    pub kind: MetricType,
    /// Labels of its samples in addition to [`LABELS`], separated by commas.
    pub labels: &'static str,
    /// Help text, with the unit.
    pub what: &'static str,
}

const fn counter(name: &'static str, labels: &'static str, what: &'static str) -> Metric {
    Metric {
        name,
        kind: MetricType::Counter,
        labels,
        what,
    }
}

const fn gauge(name: &'static str, labels: &'static str, what: &'static str) -> Metric {
    Metric {
        name,
        kind: MetricType::Gauge,
        labels,
        what,
    }
}

/// Labels of all samples: node, namespace and name of the VM.
pub const LABELS: [&str; 3] = ["node", "namespace", "name"];

/// The metrics of a VM.
pub const ALL: &[Metric] = &[
    gauge(
        "vmoperator_qemu_answers",
        "",
        "Responsiveness of QEMU: 1 if QEMU has answered over QMP in time, else 0.",
    ),
    gauge(
        "vmoperator_accelerated",
        "",
        "Acceleration: 1 if the guest runs with hardware acceleration, 0 if the guest is emulated.",
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
        "CPU time of each guest CPU, in seconds.",
    ),
    counter(
        "kubevirt_vmi_vcpu_delay_seconds_total",
        "id",
        "Time that each guest CPU has waited for a CPU of the host, in seconds.",
    ),
    gauge(
        "kubevirt_vmi_memory_domain_bytes",
        "",
        "Maximum memory of the guest, in bytes.",
    ),
    gauge(
        "kubevirt_vmi_memory_resident_bytes",
        "",
        "Resident memory of QEMU on the host, in bytes.",
    ),
    gauge(
        "kubevirt_vmi_memory_actual_balloon_bytes",
        "",
        "Memory that the balloon device leaves to the guest, in bytes.",
    ),
    gauge(
        "kubevirt_vmi_memory_available_bytes",
        "",
        "Total memory as the operating system in the guest reports it, in bytes.",
    ),
    gauge(
        "kubevirt_vmi_memory_unused_bytes",
        "",
        "Memory that the guest does not use, in bytes.",
    ),
    gauge(
        "kubevirt_vmi_memory_usable_bytes",
        "",
        "Memory that the guest can use without swapping, in bytes.",
    ),
    gauge(
        "kubevirt_vmi_memory_cached_bytes",
        "",
        "Memory that the guest uses for disk caches, in bytes.",
    ),
    counter(
        "kubevirt_vmi_memory_swap_in_traffic_bytes",
        "",
        "Memory that the guest has swapped in, in bytes.",
    ),
    counter(
        "kubevirt_vmi_memory_swap_out_traffic_bytes",
        "",
        "Memory that the guest has swapped out, in bytes.",
    ),
    counter(
        "kubevirt_vmi_memory_pgmajfault_total",
        "",
        "Page faults in the guest that needed disk I/O.",
    ),
    counter(
        "kubevirt_vmi_memory_pgminfault_total",
        "",
        "Page faults in the guest that needed no disk I/O.",
    ),
    gauge(
        "vmoperator_disk_aio_info",
        "drive, aio",
        "Backend for asynchronous I/O of each disk, in the label aio; the value is always 1.",
    ),
    counter(
        "kubevirt_vmi_storage_iops_read_total",
        "drive",
        "Read operations of each drive.",
    ),
    counter(
        "kubevirt_vmi_storage_iops_write_total",
        "drive",
        "Write operations of each drive.",
    ),
    counter(
        "kubevirt_vmi_storage_read_traffic_bytes_total",
        "drive",
        "Bytes read from each drive.",
    ),
    counter(
        "kubevirt_vmi_storage_write_traffic_bytes_total",
        "drive",
        "Bytes written to each drive.",
    ),
    counter(
        "kubevirt_vmi_storage_read_times_seconds_total",
        "drive",
        "Duration of read operations of each drive, in seconds.",
    ),
    counter(
        "kubevirt_vmi_storage_write_times_seconds_total",
        "drive",
        "Duration of write operations of each drive, in seconds.",
    ),
    counter(
        "kubevirt_vmi_storage_flush_requests_total",
        "drive",
        "Flush operations of each drive.",
    ),
    counter(
        "kubevirt_vmi_storage_flush_times_seconds_total",
        "drive",
        "Duration of flush operations of each drive, in seconds.",
    ),
    counter(
        "kubevirt_vmi_network_receive_bytes_total",
        "interface",
        "Bytes that the guest has received, for each tap interface.",
    ),
    counter(
        "kubevirt_vmi_network_receive_packets_total",
        "interface",
        "Packets that the guest has received, for each tap interface.",
    ),
    counter(
        "kubevirt_vmi_network_receive_errors_total",
        "interface",
        "Packets to the guest that had errors, for each tap interface.",
    ),
    counter(
        "kubevirt_vmi_network_receive_packets_dropped_total",
        "interface",
        "Packets to the guest that were dropped, for each tap interface.",
    ),
    counter(
        "kubevirt_vmi_network_transmit_bytes_total",
        "interface",
        "Bytes that the guest has sent, for each tap interface.",
    ),
    counter(
        "kubevirt_vmi_network_transmit_packets_total",
        "interface",
        "Packets that the guest has sent, for each tap interface.",
    ),
    counter(
        "kubevirt_vmi_network_transmit_errors_total",
        "interface",
        "Packets from the guest that had errors, for each tap interface.",
    ),
    counter(
        "kubevirt_vmi_network_transmit_packets_dropped_total",
        "interface",
        "Packets from the guest that were dropped, for each tap interface.",
    ),
];

/// The metric with a name.
#[must_use]
pub fn metric(name: &str) -> Option<&'static Metric> {
    ALL.iter().find(|metric| metric.name == name)
}
