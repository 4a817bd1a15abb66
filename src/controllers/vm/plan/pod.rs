//! (pure) What the pod is made of besides the machine: image, placement, metadata, resources.

use crate::api::quantity::Bytes;
use crate::api::vm::{Image, Machine, PullPolicy, names};
use crate::api::{VirtualMachine, VirtualMachineSpec};
use crate::controllers::vm::plan::machine::{hugepages, whole_mebibytes};
use crate::settings;
use k8s_openapi::api::core::v1::{
    Affinity, ResourceRequirements, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// Where a pod may run, and before whom.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// The only node.
    pub node_name: Option<String>,
    /// Labels of the node.
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Affinity.
    pub affinity: Option<Affinity>,
    /// Taints that do not keep it away.
    pub tolerations: Option<Vec<Toleration>>,
    /// How it is spread among others.
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    /// Priority class.
    pub priority_class_name: Option<String>,
    /// Runtime class.
    pub runtime_class_name: Option<String>,
}

impl Placement {
    /// What the VM says, else the settings.
    pub(super) fn of(spec: &VirtualMachineSpec, defaults: &settings::PodDefaults) -> Self {
        Self {
            node_name: spec.node_name.clone(),
            node_selector: spec
                .node_selector
                .clone()
                .or_else(|| defaults.node_selector.clone()),
            affinity: spec.affinity.clone(),
            tolerations: spec
                .tolerations
                .clone()
                .or_else(|| defaults.tolerations.clone()),
            topology_spread_constraints: spec.topology_spread_constraints.clone(),
            priority_class_name: spec
                .priority_class_name
                .clone()
                .or_else(|| defaults.priority_class_name.clone()),
            runtime_class_name: spec.runtime_class_name.clone(),
        }
    }
}

/// The resources with one each of those that stand for devices.
pub(super) fn with_devices<'a>(
    mut resources: ResourceRequirements,
    devices: impl Iterator<Item = &'a str>,
) -> ResourceRequirements {
    for device in devices {
        for amounts in [&mut resources.limits, &mut resources.requests] {
            amounts
                .get_or_insert_default()
                .entry(device.to_owned())
                .or_insert_with(|| Quantity("1".to_owned()));
        }
    }
    resources
}

/// The resources with the huge pages of the machine's memory: Kubernetes wants as many requested as the limit is.
pub(super) fn with_hugepages(
    mut resources: ResourceRequirements,
    machine: &Machine,
    maximum: Bytes,
) -> ResourceRequirements {
    if let Some(size) = hugepages(machine) {
        for amounts in [&mut resources.limits, &mut resources.requests] {
            let amount = Quantity(whole_mebibytes(maximum).to_quantity());
            amounts
                .get_or_insert_default()
                .entry(format!("hugepages-{}", size.as_str()))
                .or_insert(amount);
        }
    }
    resources
}

/// The user's annotations of the pod, without those whose names are the operator's or the runner's.
pub(super) fn annotations(spec: &VirtualMachineSpec) -> BTreeMap<String, String> {
    let ours = |name: &String| {
        names::ANNOTATION_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    let mut annotations = spec.pod_annotations.clone().unwrap_or_default();
    annotations.retain(|name, _| !ours(name));
    annotations
}

pub(super) fn image(
    image: Option<&Image>,
    settings: &settings::Reconciler,
) -> (String, Option<String>) {
    let default = || {
        (
            settings.runner_image.source.clone(),
            Some(settings.runner_image.pull_policy.clone()),
        )
    };
    let Some(image) = image else { return default() };
    let reference = match (&image.source, &image.repository, &image.path) {
        (Some(source), ..) => source.clone(),
        (None, Some(repository), Some(path)) => {
            let version = image
                .version
                .as_ref()
                .map(|v| format!(":{v}"))
                .unwrap_or_default();
            format!("{repository}/{path}{version}")
        }
        _ => return default(),
    };
    if settings
        .replaced_images
        .iter()
        .any(|replaced| reference.starts_with(replaced))
    {
        return default();
    }
    let pull_policy = image.pull_policy.map(|policy| match policy {
        PullPolicy::Always => "Always".to_owned(),
        PullPolicy::Never => "Never".to_owned(),
        PullPolicy::IfNotPresent => "IfNotPresent".to_owned(),
    });
    (reference, pull_policy)
}

/// The pod's resources: the user's as they are, else requests that follow the machine's current size.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes of machines"
)]
pub(super) fn resources(
    vm: &VirtualMachine,
    (_, cpus): (u32, u32),
    (maximum, current): (Bytes, Option<Bytes>),
    settings: &settings::Reconciler,
) -> ResourceRequirements {
    if let Some(given) = &vm.spec.resources {
        return ResourceRequirements {
            limits: given.limits.clone(),
            requests: given.requests.clone(),
            claims: None,
        };
    }
    let has_display = vm.spec.vm.display.spice.is_some();
    let millicpus = (f64::from(cpus) * 1000.0 / settings.cpu_overcommit).ceil() as u64;
    // Huge pages are counted apart.
    let of_guest = hugepages(&vm.spec.vm).map_or(current.unwrap_or(maximum), |_| Bytes(0));
    let memory = (of_guest.0 as f64 / settings.ram_overcommit).floor() as u64;
    let memory = memory.saturating_add(overhead(cpus, maximum, has_display).0);
    let requests = [
        ("cpu", format!("{millicpus}m")),
        ("memory", memory.to_string()),
    ];
    let requests = requests
        .map(|(name, amount)| (name.to_owned(), Quantity(amount)))
        .into();
    ResourceRequirements {
        requests: Some(requests),
        ..ResourceRequirements::default()
    }
}

/// Memory of the pod besides the guest's: 76 MiB, 1 MiB for each CPU, 28 MiB for a display, and a 512th of the machine's
/// memory.
///
/// Measured by `make bench-density` with the image's QEMU 10.0, besides the guest's memory and translated code: QEMU and runner
/// take 66 MiB with one CPU, 68 with 4 and 79 with 16; with a display 75, 78 and 88, and 90, 93 and 103 while somebody looks at
/// it. Up to a fifth more is reserved. Of that, 34 MiB are program files, which pods of one node share. What a display takes is
/// for the pictures of screens, 8 MiB each in full HD, and what is kept of them to send less. Page tables take 8 bytes for each
/// page of 4 KiB. Emulation (no KVM) needs more: QEMU keeps up to 1 GiB of translated code, which is not reckoned here.
fn overhead(cpus: u32, maximum_ram: Bytes, has_display: bool) -> Bytes {
    let display = if has_display { 28 << 20 } else { 0 };
    Bytes((76 << 20) + (u64::from(cpus) << 20) + display + maximum_ram.0 / 512)
}
