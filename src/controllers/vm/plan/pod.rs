//! (pure) Fields of the pod: image, placement, metadata, resources.

use crate::api::quantity::Bytes;
use crate::api::vm::{Image, Machine, PullPolicy, names};
use crate::api::{VirtualMachine, VirtualMachineSpec};
use crate::controllers::vm::plan::machine::{Sizes, hugepages, whole_mebibytes};
use crate::controllers::vm::plan::rights::Rights;
use crate::settings;
use k8s_openapi::api::core::v1::{
    Affinity, LocalObjectReference, NodeSelectorRequirement, NodeSelectorTerm,
    PreferredSchedulingTerm, ResourceRequirements, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// The pod, except for its volumes and ports.
#[derive(Clone, Debug, PartialEq)]
pub struct PodPlan {
    /// Image of the runner.
    pub image: String,
    /// Pull policy of the image.
    pub pull_policy: Option<String>,
    /// Pull secrets of the image.
    pub pull_secrets: Option<Vec<LocalObjectReference>>,
    /// CPU, memory, huge pages and devices.
    pub resources: ResourceRequirements,
    /// Memory of guest and QEMU, without huge pages.
    pub needed_memory: Bytes,
    /// Rights beyond Pod Security `restricted`.
    pub rights: Rights,
    /// Selection of the node, and priority.
    pub placement: Placement,
    /// The user's labels.
    pub labels: BTreeMap<String, String>,
    /// The user's annotations.
    pub annotations: BTreeMap<String, String>,
    /// Termination grace period in seconds.
    pub grace_period: i64,
}

impl PodPlan {
    pub(super) fn new(vm: &VirtualMachine, sizes: &Sizes, settings: &settings::Reconciler) -> Self {
        let spec = &vm.spec;
        let (image, pull_policy) = image(spec.image.as_ref(), settings);
        let rights = Rights::of(&spec.vm, &image, settings);
        // A pod of the Java VM-Operator's runner is privileged and has all devices.
        let accelerator = settings
            .accelerator
            .requested()
            .filter(|_| !rights.as_java_runner);
        let mut placement = Placement::of(spec, &settings.pod_defaults);
        if accelerator == Some(names::RESOURCE_KVM_IF_PRESENT) {
            prefer_accelerated_nodes(&mut placement);
        }
        let devices = accelerator.into_iter().chain(rights.tun_resource());
        let resources = with_devices(resources(vm, sizes, settings), devices);
        Self {
            image,
            pull_policy,
            pull_secrets: spec
                .image_pull_secrets
                .clone()
                .or_else(|| settings.pod_defaults.image_pull_secrets.clone()),
            resources: with_hugepages(resources, &spec.vm, sizes.maximum_ram),
            needed_memory: Bytes(guest_ram(&spec.vm, sizes).0 + reserve(&spec.vm, sizes).0),
            rights,
            placement,
            labels: spec.pod_labels.clone().unwrap_or_default(),
            annotations: annotations(spec),
            grace_period: spec.grace_period(),
        }
    }
}

/// Selection of the node, and priority.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// Labels that the node must have.
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Affinity and anti-affinity.
    pub affinity: Option<Affinity>,
    /// Tolerated taints of the node.
    pub tolerations: Option<Vec<Toleration>>,
    /// Spread over nodes and zones.
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    /// Name of the priority class.
    pub priority_class_name: Option<String>,
    /// Name of the runtime class.
    pub runtime_class_name: Option<String>,
}

impl Placement {
    /// The fields of the VM, or the defaults of the configuration for fields that it does not have.
    fn of(spec: &VirtualMachineSpec, defaults: &settings::PodDefaults) -> Self {
        let placement = Self {
            node_selector: spec
                .node_selector
                .clone()
                .or_else(|| defaults.node_selector.clone()),
            affinity: spec.affinity.as_deref().cloned(),
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
        };
        match &spec.node_name {
            Some(node) => placement.on(node),
            None => placement,
        }
    }

    /// The placement on that node. A pod with `nodeName` is not scheduled, so that a volume with the binding mode
    /// `WaitForFirstConsumer` would never be bound. Therefore it gets an affinity to the node. It tolerates taints that only concern
    /// scheduling, such as that of a cordoned node, because it would run there with `nodeName`.
    fn on(mut self, node: &str) -> Self {
        let is_node = NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![node.to_owned()]),
        };
        let required = self
            .affinity
            .get_or_insert_default()
            .node_affinity
            .get_or_insert_default()
            .required_during_scheduling_ignored_during_execution
            .get_or_insert_default();
        if required.node_selector_terms.is_empty() {
            required
                .node_selector_terms
                .push(NodeSelectorTerm::default());
        }
        // One of the terms must hold, so each needs the node.
        for term in &mut required.node_selector_terms {
            term.match_fields
                .get_or_insert_default()
                .push(is_node.clone());
        }
        self.tolerations.get_or_insert_default().push(Toleration {
            operator: Some("Exists".to_owned()),
            effect: Some("NoSchedule".to_owned()),
            ..Toleration::default()
        });
        self
    }
}

/// Adds the preference for nodes with hardware acceleration, which the resource `…/kvm-if-present` does not require. Its weight is
/// the maximum, because emulation is slower by an order of magnitude.
fn prefer_accelerated_nodes(placement: &mut Placement) {
    let is_labelled = NodeSelectorRequirement {
        key: names::LABEL_NODE_KVM.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec!["true".to_owned()]),
    };
    let preference = PreferredSchedulingTerm {
        weight: 100,
        preference: NodeSelectorTerm {
            match_expressions: Some(vec![is_labelled]),
            match_fields: None,
        },
    };
    let affinity = placement.affinity.get_or_insert_default();
    let node_affinity = affinity.node_affinity.get_or_insert_default();
    node_affinity
        .preferred_during_scheduling_ignored_during_execution
        .get_or_insert_default()
        .push(preference);
}

/// Adds one unit of each extended resource.
fn with_devices<'a>(
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

/// Adds the huge pages of the guest's memory. For huge pages, Kubernetes requires equal requests and limits.
fn with_hugepages(
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

/// The user's annotations, without names that operator and runner use.
fn annotations(spec: &VirtualMachineSpec) -> BTreeMap<String, String> {
    let is_reserved = |name: &String| {
        names::ANNOTATION_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    let mut annotations = spec.pod_annotations.clone().unwrap_or_default();
    annotations.retain(|name, _| !is_reserved(name));
    annotations
}

/// Image and pull policy. An image that the configuration replaces counts as none.
fn image(image: Option<&Image>, settings: &settings::Reconciler) -> (String, Option<String>) {
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

/// The resources of the VM, or requests for its current size.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes of VMs"
)]
fn resources(
    vm: &VirtualMachine,
    sizes: &Sizes,
    settings: &settings::Reconciler,
) -> ResourceRequirements {
    if let Some(given) = &vm.spec.resources {
        return ResourceRequirements {
            limits: given.limits.clone(),
            requests: given.requests.clone(),
            claims: None,
        };
    }
    let cpus = sizes.current_cpus;
    let millicpus = (f64::from(cpus) * 1000.0 / settings.cpu_overcommit).ceil() as u64;
    let memory = (guest_ram(&vm.spec.vm, sizes).0 as f64 / settings.ram_overcommit).floor() as u64;
    let memory = memory.saturating_add(reserve(&vm.spec.vm, sizes).0);
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

/// The guest's memory, without huge pages, which are a resource of their own.
fn guest_ram(machine: &Machine, sizes: &Sizes) -> Bytes {
    match hugepages(machine) {
        Some(_) => Bytes(0),
        None => sizes.current_ram.unwrap_or(sizes.maximum_ram),
    }
}

fn reserve(machine: &Machine, sizes: &Sizes) -> Bytes {
    let has_display = machine.display.spice.is_some();
    overhead(sizes.current_cpus, sizes.maximum_ram, has_display)
}

/// Memory of the pod in addition to the guest's: 76 MiB, 1 MiB for each CPU, 28 MiB for a display, and 1/512 of the maximum
/// memory for page tables, which take 8 bytes for each page of 4 KiB.
///
/// `make bench-density` measures it. With QEMU 10.0 of the image, QEMU and runner use, without translated code:
///
/// | CPUs | no display | display | display with a viewer |
/// |---|---|---|---|
/// | 1 | 66 MiB | 75 MiB | 90 MiB |
/// | 4 | 68 MiB | 78 MiB | 93 MiB |
/// | 16 | 79 MiB | 88 MiB | 103 MiB |
///
/// The request is up to a fifth larger. 34 MiB are program files, which the pods of a node share. A display needs 8 MiB for each
/// full-HD screen, and a cache of images. Emulation without KVM needs up to 1 GiB more for translated code, which is not included.
fn overhead(cpus: u32, maximum_ram: Bytes, has_display: bool) -> Bytes {
    let display = if has_display { 28 << 20 } else { 0 };
    Bytes((76 << 20) + (u64::from(cpus) << 20) + display + maximum_ram.0 / 512)
}
