//! (pure) The VM as it will be run: every default merged, every value checked.
//!
//! What the schema can check is checked before an object gets here. What it cannot see ends here as [`Invalid`],
//! which names the field, the reason and the next step; nothing of an invalid VM is made or changed.

mod config;

use super::observe::{self, Observed};
use crate::api::quantity::Bytes;
use crate::api::runner_config::RunnerConfig;
use crate::api::virtual_machine::{ClaimMetadata, ClaimSpec, Forward, Image, Machine, Protocol, PullPolicy};
use crate::api::{VirtualMachine, names};
use crate::operator::settings;
use crate::operator::views::vm_of;
use k8s_openapi::api::core::v1::{Affinity, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};

/// Memory of the pod besides the guest's: QEMU's own, its display's and the runner's.
pub const OVERHEAD: Bytes = Bytes(128 << 20);

/// A VM, ready to be built.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Name of the VM and of its pod.
    pub name: String,
    /// Namespace of all its objects.
    pub namespace: String,
    /// UID of the VM.
    pub uid: String,
    /// Image of the runner.
    pub image: String,
    /// When the image is pulled.
    pub pull_policy: Option<String>,
    /// Resources of the pod.
    pub resources: ResourceRequirements,
    /// Where the pod may run.
    pub node_name: Option<String>,
    /// Where the pod may run.
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Where the pod may run.
    pub affinity: Option<Affinity>,
    /// The runner's configuration.
    pub config: RunnerConfig,
    /// Disks with claims.
    pub disks: Vec<DiskPlan>,
    /// Whether there is a CD drive, and so a need for the image repository.
    pub has_cd_drive: bool,
    /// Storage class of the claim for what the runner keeps.
    pub runner_data_class: Option<String>,
    /// Name of the display secret, if there is or will be one.
    pub display_secret: Option<String>,
    /// Whether that secret has to be made.
    pub generate_secret: bool,
    /// Whether the image repository has to be made.
    pub create_image_repository: bool,
    /// Port of the display.
    pub spice_port: Option<u16>,
    /// Ports that lead into the guest.
    pub forwards: Vec<Forward>,
    /// Seconds that the pod has to end.
    pub grace_period: i64,
}

/// A disk with a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskPlan {
    /// Name of the device under `/dev`.
    pub name: String,
    /// Name of the claim.
    pub claim: String,
    /// Labels and annotations of the claim.
    pub metadata: ClaimMetadata,
    /// The claim.
    pub spec: ClaimSpec,
}

/// A VM that cannot be run as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The field, from the object's root.
    pub field: String,
    /// What is wrong with it.
    pub why: String,
    /// What to do.
    pub next_step: String,
}

fn invalid<T>(field: impl Into<String>, why: impl Into<String>, next_step: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid { field: field.into(), why: why.into(), next_step: next_step.into() })
}

/// Plans the VM.
///
/// # Errors
/// If a value cannot be used.
pub fn plan(observed: &Observed, settings: &settings::Reconciler) -> Result<Plan, Invalid> {
    let vm = &observed.vm;
    let spec = &vm.spec;
    let name = checked_name(vm)?;
    let disks = disks(observed)?;
    let (image, pull_policy) = image(spec.image.as_ref(), settings);
    let spice = spec.vm.display.spice.as_ref();
    let present_secret = observed.display_secret.as_ref().map(|s| s.name_any());
    let generate_secret = present_secret.is_none() && spice.is_some_and(|s| s.generate_secret);
    let forwards = forwards(&spec.vm, spice.map(|s| s.port))?;
    let memory = memory(&spec.vm)?;
    let cpus = cpus(&spec.vm)?;
    Ok(Plan {
        namespace: vm.namespace().unwrap_or_default(),
        uid: vm.uid().unwrap_or_default(),
        image,
        pull_policy,
        resources: resources(vm, cpus, memory, settings),
        node_name: spec.node_name.clone(),
        node_selector: spec.node_selector.clone(),
        affinity: spec.affinity.clone(),
        config: config::runner_config(vm, cpus, memory, &disks)?,
        disks,
        has_cd_drive: spec.vm.disks.iter().any(|disk| disk.cdrom.is_some()),
        runner_data_class: settings.runner_data_pvc.storage_class_name.clone(),
        display_secret: present_secret.or_else(|| generate_secret.then(|| names::display_secret(&name))),
        generate_secret,
        create_image_repository: observed.image_repository.is_none(),
        spice_port: spice.and_then(|s| u16::try_from(s.port).ok()),
        forwards,
        grace_period: spec.grace_period(),
        name,
    })
}

/// The name, if it can be the value of a label, as which all children carry it.
fn checked_name(vm: &VirtualMachine) -> Result<String, Invalid> {
    let name = vm.name_any();
    if name.len() > 63 {
        let why = format!(
            "{name:?} has {} characters; the VM's objects carry it as a label, which has at most 63",
            name.len()
        );
        return invalid("metadata.name", why, "create the VM again with a shorter name");
    }
    Ok(name)
}

fn image(image: Option<&Image>, settings: &settings::Reconciler) -> (String, Option<String>) {
    let default = || (settings.runner_image.source.clone(), Some(settings.runner_image.pull_policy.clone()));
    let Some(image) = image else { return default() };
    let reference = match (&image.source, &image.repository, &image.path) {
        (Some(source), ..) => source.clone(),
        (None, Some(repository), Some(path)) => {
            let version = image.version.as_ref().map(|v| format!(":{v}")).unwrap_or_default();
            format!("{repository}/{path}{version}")
        }
        _ => return default(),
    };
    if settings.replaced_images.iter().any(|replaced| reference.starts_with(replaced)) {
        return default();
    }
    let pull_policy = image.pull_policy.map(|policy| match policy {
        PullPolicy::Always => "Always".to_owned(),
        PullPolicy::Never => "Never".to_owned(),
        PullPolicy::IfNotPresent => "IfNotPresent".to_owned(),
    });
    (reference, pull_policy)
}

fn size(field: &str, text: &str) -> Result<Bytes, Invalid> {
    let bytes = text.parse::<Bytes>().or_else(|e| invalid(field, e.to_string(), "correct the size"))?;
    if bytes.0 < 1 << 20 {
        return invalid(field, format!("{text:?} is less than 1 MiB"), "give a size such as 512Mi or 4Gi");
    }
    Ok(bytes)
}

/// Memory of the machine: maximum, and the current one if it is given.
fn memory(machine: &Machine) -> Result<(Bytes, Option<Bytes>), Invalid> {
    let maximum = size("spec.vm.maximumRam", &machine.maximum_ram)?;
    let current = machine.current_ram.as_deref().map(|text| size("spec.vm.currentRam", text)).transpose()?;
    match current {
        Some(current) if current > maximum => invalid(
            "spec.vm.currentRam",
            format!("{current} is more than spec.vm.maximumRam, {maximum}"),
            "lower the one or raise the other",
        ),
        _ => Ok((maximum, current)),
    }
}

/// CPUs of the machine: maximum and current.
fn cpus(machine: &Machine) -> Result<(u32, u32), Invalid> {
    let at_least_one = |n: i64| u32::try_from(n.max(1)).unwrap_or(u32::MAX);
    let maximum = match (&machine.cpu_topology, machine.maximum_cpus) {
        (Some(t), _) => [t.sockets, t.dies_per_socket, t.cores_per_die, t.threads_per_core]
            .map(at_least_one)
            .iter()
            .fold(1u32, |product, n| product.saturating_mul(*n)),
        (None, Some(n)) => at_least_one(n),
        (None, None) => machine.current_cpus.map_or(1, at_least_one),
    };
    let current = machine.current_cpus.map_or(maximum, at_least_one);
    if machine.cpu_topology.is_some() && current > maximum {
        let why = format!("{current} is more than the {maximum} CPUs that spec.vm.cpuTopology allows");
        return invalid("spec.vm.currentCpus", why, "lower it, or enlarge the topology");
    }
    // As in the reference, the maximum gives way.
    Ok((maximum.max(current), current))
}

fn disks(observed: &Observed) -> Result<Vec<DiskPlan>, Invalid> {
    let vm = &observed.vm;
    let mut seen = BTreeSet::new();
    let mut plans = Vec::new();
    let templates = vm.spec.vm.disks.iter().enumerate();
    let templates = templates.filter_map(|(i, disk)| disk.volume_claim_template.as_ref().map(|template| (i, template)));
    for ((i, template), (name, claim)) in templates.zip(observe::disk_names(vm)) {
        let field = |rest: &str| format!("spec.vm.disks[{i}].volumeClaimTemplate.{rest}");
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !name.chars().all(legal) || name.starts_with('-') || name.len() > 63 {
            let why = format!("a disk named {name:?} cannot be a volume of the pod");
            return invalid(field("metadata.name"), why, "use up to 58 lower-case letters, digits and dashes");
        }
        if !seen.insert(name.clone()) {
            return invalid(field("metadata.name"), format!("two disks are named {name:?}"), "give each its own name");
        }
        let owner = observed.claims.get(&claim).and_then(|claim| vm_of(claim.as_ref()));
        if let Some(owner) = owner.filter(|owner| *owner != vm.name_any()) {
            let why = format!("its claim {claim:?} is there already and belongs to VM {owner:?}");
            return invalid(field("metadata.name"), why, "give the disk another name");
        }
        let spec = template.spec.clone().unwrap_or_default();
        if spec.volume_mode != "Block" {
            let why = format!("{:?} disks cannot be used by this version", spec.volume_mode);
            return invalid(field("spec.volumeMode"), why, "use Block");
        }
        plans.push(DiskPlan { name, claim, metadata: template.metadata.clone().unwrap_or_default(), spec });
    }
    Ok(plans)
}

/// Ports that lead into the guest; each port of the pod can be used once.
fn forwards(machine: &Machine, spice_port: Option<i64>) -> Result<Vec<Forward>, Invalid> {
    let mut taken: BTreeSet<(i64, &str)> = spice_port.map(|port| (port, "TCP")).into_iter().collect();
    let mut forwards = Vec::new();
    for (i, network) in machine.networks.iter().enumerate() {
        if network.tap.is_some() {
            let why = "interfaces on a bridge of the node cannot be used by this version";
            return invalid(format!("spec.vm.networks[{i}].tap"), why, "use a user interface with forward");
        }
        for (j, forward) in network.user.iter().flat_map(|user| &user.forward).enumerate() {
            if !taken.insert((forward.port.into(), protocol(forward.protocol))) {
                let field = format!("spec.vm.networks[{i}].user.forward[{j}].port");
                return invalid(field, format!("{} is used twice in the pod", forward.port), "choose another port");
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

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes of machines"
)]
fn resources(
    vm: &VirtualMachine,
    (_, cpus): (u32, u32),
    (maximum, current): (Bytes, Option<Bytes>),
    settings: &settings::Reconciler,
) -> ResourceRequirements {
    if let Some(given) = &vm.spec.resources {
        return ResourceRequirements { limits: given.limits.clone(), requests: given.requests.clone(), claims: None };
    }
    let millicpus = (f64::from(cpus) * 1000.0 / settings.cpu_overcommit).ceil() as u64;
    let memory = (current.unwrap_or(maximum).0 as f64 / settings.ram_overcommit).floor() as u64;
    let memory = memory.saturating_add(OVERHEAD.0);
    let requests = [("cpu", format!("{millicpus}m")), ("memory", memory.to_string())];
    let requests = requests.map(|(name, amount)| (name.to_owned(), Quantity(amount))).into();
    ResourceRequirements { requests: Some(requests), ..ResourceRequirements::default() }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{alone, vm};
    use super::*;
    use serde_json::{Value, json};

    fn planned(machine: Value) -> Result<Plan, Invalid> {
        plan(&alone(vm(machine)), &settings::Reconciler::default())
    }

    fn field_in_the_way(machine: Value) -> String {
        planned(machine).unwrap_err().field
    }

    #[test]
    fn what_cannot_be_used_is_named_by_its_field() {
        let disk = |name: &str| json!({"volumeClaimTemplate": {"metadata": {"name": name}}});
        for (machine, field) in [
            (json!({"maximumRam": "lots"}), "spec.vm.maximumRam"),
            (json!({"maximumRam": "8"}), "spec.vm.maximumRam"),
            (json!({"maximumRam": "1Gi", "currentRam": "2Gi"}), "spec.vm.currentRam"),
            (json!({"cpuTopology": {"sockets": 2, "coresPerDie": 2}, "currentCpus": 5}), "spec.vm.currentCpus"),
            (
                json!({"disks": [{"cdrom": {"image": ""}}, disk("UPPER")]}),
                "spec.vm.disks[1].volumeClaimTemplate.metadata.name",
            ),
            (json!({"disks": [disk("a"), disk("a")]}), "spec.vm.disks[1].volumeClaimTemplate.metadata.name"),
            (json!({"disks": [{"cdrom": {"image": "/etc/passwd"}}]}), "spec.vm.disks[0].cdrom.image"),
            (json!({"disks": [{"cdrom": {"image": "a/../../b"}}]}), "spec.vm.disks[0].cdrom.image"),
            (json!({"disks": [{"cdrom": {"image": "https://example.org/a.iso"}}]}), "spec.vm.disks[0].cdrom.image"),
            (json!({"networks": [{"tap": {}}]}), "spec.vm.networks[0].tap"),
            (
                json!({"networks": [{"user": {"forward": [{"port": 5900, "guestPort": 22}]}}]}),
                "spec.vm.networks[0].user.forward[0].port",
            ),
        ] {
            assert_eq!(field_in_the_way(machine.clone()), field, "{machine}");
        }
    }

    #[test]
    fn a_topology_gives_the_maximum_of_cpus() {
        // B12: the reference took such a machine for one with a single CPU.
        let topology = json!({"cpuTopology": {"sockets": 2, "coresPerDie": 2, "threadsPerCore": 2}});
        let machine = planned(topology).unwrap().config.vm.unwrap();
        assert_eq!((machine.maximum_cpus, machine.current_cpus), (Some(8), Some(8)));
        let machine = planned(json!({})).unwrap().config.vm.unwrap();
        assert_eq!((machine.maximum_cpus, machine.current_cpus), (Some(1), Some(1)));
    }

    #[test]
    fn a_maximum_below_the_wanted_number_of_cpus_is_raised() {
        let machine = planned(json!({"maximumCpus": 2, "currentCpus": 3})).unwrap().config.vm.unwrap();
        assert_eq!((machine.maximum_cpus, machine.current_cpus), (Some(3), Some(3)));
    }

    #[test]
    fn a_claim_of_another_vm_is_not_used() {
        let mut observed = alone(vm(json!({"disks": [{"volumeClaimTemplate": {"metadata": {"name": "c"}}}]})));
        let mut claim = |labels: Value| {
            let view = json!({"metadata": {"name": "vm-c-disk", "labels": labels}});
            observed.claims.insert("vm-c-disk".to_owned(), std::sync::Arc::new(serde_json::from_value(view).unwrap()));
            plan(&observed, &settings::Reconciler::default()).map(|plan| plan.disks.len())
        };
        assert_eq!(claim(json!({})), Ok(1));
        assert_eq!(claim(json!({names::LABEL_INSTANCE: "vm"})), Ok(1));
        let invalid = claim(json!({names::LABEL_INSTANCE: "vm-c"})).unwrap_err();
        assert!(invalid.why.contains("vm-c"), "{}", invalid.why);
    }

    #[test]
    fn requests_follow_the_current_size_and_leave_room_for_qemu() {
        let machine = json!({"maximumCpus": 4, "currentCpus": 3, "maximumRam": "8Gi", "currentRam": "5Gi"});
        let requests = planned(machine).unwrap().resources.requests.unwrap();
        assert_eq!(requests["cpu"].0, "1500m");
        assert_eq!(requests["memory"].0, ((4u64 << 30) + OVERHEAD.0).to_string());
    }

    #[test]
    fn the_references_image_is_replaced_and_any_other_kept() {
        let settings = settings::Reconciler::default();
        let of = |source: &str| {
            let mut vm = vm(json!({}));
            vm.spec.image = Some(Image { source: Some(source.to_owned()), ..Image::default() });
            plan(&alone(vm), &settings).unwrap().image
        };
        let reference = "ghcr.io/mnlipp/org.jdrupes.vmoperator.runner.qemu-arch:latest";
        assert_eq!(of(reference), settings.runner_image.source);
        assert_eq!(of("example.org/runner:1"), "example.org/runner:1");
    }

    #[test]
    fn the_seeds_instance_id_follows_its_content_only() {
        // B7: the reference's followed every edit of the VM.
        let id = |generation, user: &str| {
            let mut vm = vm(json!({}));
            vm.metadata.generation = Some(generation);
            vm.spec.cloud_init = serde_json::from_value(json!({"userData": {"user": user}})).unwrap();
            let seed = plan(&alone(vm), &settings::Reconciler::default()).unwrap().config.cloud_init.unwrap();
            seed.meta_data.unwrap()["instance-id"].clone()
        };
        assert_eq!(id(1, "a"), id(2, "a"));
        assert_ne!(id(1, "a"), id(1, "b"));
    }
}
