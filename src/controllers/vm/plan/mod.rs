//! (pure) The VM as it will be run: every default merged, every value checked.
//!
//! What the schema can check is checked before an object gets here. What it cannot see ends here as a [`Diagnosis`],
//! which names the field, the reason and the next step; nothing of an invalid VM is made or changed.

mod config;
mod disks;
mod identity;
mod machine;
mod pod;
mod rights;
mod seed;
mod service;

pub use disks::{ClaimChange, DiskPlan, Place};
pub use machine::protocol;
pub use pod::Placement;
pub use rights::{Rights, Tun};
pub use seed::KeptInstance;
pub use service::ServicePlan;

use crate::api::VirtualMachine;
use crate::api::conditions::ReadyReason;
use crate::api::diagnosis::Diagnosis;
use crate::api::runner::config::RunnerConfig;
use crate::api::vm::{Forward, SecretKeyRef, names};
use crate::controllers::vm::fetch::{self, Fetch, Media};
use crate::controllers::vm::images;
use crate::controllers::vm::observe::{self, Observed};
use crate::settings;
use k8s_openapi::api::core::v1::{LocalObjectReference, ResourceRequirements};
use kube::ResourceExt;
use std::collections::BTreeMap;

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
    /// Secrets with which the image is pulled.
    pub pull_secrets: Option<Vec<LocalObjectReference>>,
    /// What the pod may do.
    pub rights: Rights,
    /// Where the pod may run, and before whom.
    pub placement: Placement,
    /// The user's labels of the pod.
    pub pod_labels: BTreeMap<String, String>,
    /// The user's annotations of the pod.
    pub pod_annotations: BTreeMap<String, String>,
    /// The runner's configuration.
    pub config: RunnerConfig,
    /// The file with it.
    pub config_file: String,
    /// Logging as it was configured, in Java's properties syntax, for whoever reads it in the ConfigMap.
    pub logging_properties: Option<String>,
    /// The `instance-id` of a VM that was taken over, where it is kept.
    pub kept_instance: Option<KeptInstance>,
    /// Parts of the seed for cloud-init that come from secrets: the file's name, and where it comes from.
    pub seed_secrets: Vec<(&'static str, SecretKeyRef)>,
    /// Disks with claims.
    pub disks: Vec<DiskPlan>,
    /// Whether there is a CD drive, and so a need for the image repository.
    pub has_cd_drive: bool,
    /// Name of the claim for what the runner keeps.
    pub runner_data_claim: String,
    /// Storage class of the claim for what the runner keeps.
    pub runner_data_class: Option<String>,
    /// Name of the display secret, if there is or will be one.
    pub display_secret: Option<String>,
    /// Whether that secret has to be made.
    pub generate_secret: bool,
    /// The image repository, if it has to be made.
    pub image_repository: Option<settings::ImageRepository>,
    /// Whether no pod can write on the image repository's volume.
    pub repository_is_read_only: bool,
    /// The images that it names by URL, and what is to be done about them.
    pub fetches: Vec<Fetch>,
    /// What is in their drives meanwhile, and whether the start waits.
    pub media: Media,
    /// The settings by which fetch pods are made, where there may be some.
    pub fetch_settings: Option<Box<settings::Reconciler>>,
    /// Port of the display.
    pub spice_port: Option<u16>,
    /// Ports that lead into the guest.
    pub forwards: Vec<Forward>,
    /// The load balancer service, if there should be one.
    pub service: Option<ServicePlan>,
    /// Seconds that the pod has to end.
    pub grace_period: i64,
    /// Fields that take effect at the next start, with a hash of each.
    pub started_with: BTreeMap<String, String>,
    /// The restart that was asked for last.
    pub restart_request: Option<i64>,
}

fn invalid<T>(
    field: impl Into<String>,
    problem: impl Into<String>,
    next_step: impl Into<String>,
) -> Result<T, Diagnosis> {
    Err(Diagnosis {
        subject: field.into(),
        ..Diagnosis::new(ReadyReason::InvalidSpec, problem, next_step)
    })
}

/// Plans the VM.
///
/// # Errors
/// If a value cannot be used.
pub fn plan(observed: &Observed, settings: &settings::Reconciler) -> Result<Plan, Diagnosis> {
    let vm = &observed.vm;
    let spec = &vm.spec;
    let name = checked_name(vm)?;
    let disks = disks::disks(observed)?;
    let (image, pull_policy) = pod::image(spec.image.as_ref(), settings);
    let spice = spec.vm.display.spice.as_ref();
    let present_secret = observed.display_secret.as_ref().map(|s| s.name_any());
    let generate_secret = present_secret.is_none() && spice.is_some_and(|s| s.generate_secret);
    let forwards = machine::forwards(&spec.vm, spice.map(|s| s.port), spec.metrics_port)?;
    let spice_port = spice.and_then(|s| u16::try_from(s.port).ok());
    let memory = machine::memory(&spec.vm)?;
    let cpus = machine::cpus(&spec.vm)?;
    let kept_instance = seed::kept_instance(observed);
    let fetches: Vec<Fetch> = images::remotes(vm)
        .into_iter()
        .map(|remote| fetch::look(remote, observed, settings))
        .collect();
    let media = fetch::media(&fetches, observed, &settings.image_repository.fetch);
    let fetch_settings = (!fetches.is_empty()).then(|| Box::new(settings.clone()));
    let seed = seed::seed(vm, kept_instance.as_ref());
    let rights = Rights::of(&spec.vm, &image, settings);
    let display_secret =
        present_secret.or_else(|| generate_secret.then(|| names::display_secret(&name)));
    let mut config = RunnerConfig {
        metrics_port: rights.metrics_port(spec.metrics_port, spice_port, &forwards),
        ..config::runner_config(vm, cpus, memory, (&disks, &media), settings, seed)?
    };
    if rights.tap.is_some() && display_secret.is_none() {
        config::hide_display(&mut config);
    }
    // A privileged pod of the reference has all devices.
    let accelerator = settings
        .accelerator
        .requested()
        .filter(|_| !rights.as_reference);
    let devices = accelerator.into_iter().chain(rights.tun_resource());
    let resources = pod::resources(vm, cpus, memory, settings);
    let logging_properties = config::logging_properties(vm, settings).cloned();
    let config_file = config::file(&config);
    config::fits(vm, &config_file, logging_properties.as_deref())?;
    Ok(Plan {
        started_with: identity::fields(vm, config.vm.as_ref(), memory.0, display_secret.as_deref()),
        restart_request: spec.vm.restart_request,
        config_file,
        logging_properties,
        fetches,
        media,
        fetch_settings,
        kept_instance,
        seed_secrets: seed::secrets(vm),
        namespace: vm.namespace().unwrap_or_default(),
        uid: vm.uid().unwrap_or_default(),
        image,
        pull_policy,
        resources: pod::with_hugepages(pod::with_devices(resources, devices), &spec.vm, memory.0),
        pull_secrets: spec
            .image_pull_secrets
            .clone()
            .or_else(|| settings.pod_defaults.image_pull_secrets.clone()),
        rights,
        placement: Placement::of(spec, &settings.pod_defaults),
        pod_labels: spec.pod_labels.clone().unwrap_or_default(),
        pod_annotations: pod::annotations(spec),
        config,
        disks,
        has_cd_drive: observed.has_cd_drive(),
        runner_data_claim: observed
            .claim_name(observe::RUNNER_DATA, names::runner_data_claim(&name)),
        runner_data_class: settings.runner_data_pvc.storage_class_name.clone(),
        display_secret,
        generate_secret,
        image_repository: image_repository(observed, settings),
        repository_is_read_only: repository_is_read_only(observed, settings),
        service: service::service(spec, spice_port, &forwards, &settings.load_balancer_service),
        spice_port,
        forwards,
        grace_period: spec.grace_period(),
        name,
    })
}

fn repository_is_read_only(observed: &Observed, settings: &settings::Reconciler) -> bool {
    let modes = match &observed.image_repository {
        Some(claim) => &claim.spec.access_modes[..],
        None => &settings.image_repository.access_modes,
    };
    modes.iter().all(|mode| mode == "ReadOnlyMany")
}

/// The image repository, where there is none and the settings want one.
fn image_repository(
    observed: &Observed,
    settings: &settings::Reconciler,
) -> Option<settings::ImageRepository> {
    let wanted = observed.image_repository.is_none() && settings.image_repository.create;
    wanted.then(|| settings.image_repository.clone())
}

/// The name, if it can be the value of a label, as which all children carry it.
fn checked_name(vm: &VirtualMachine) -> Result<String, Diagnosis> {
    let name = vm.name_any();
    if name.len() > 63 {
        let why = format!(
            "{name:?} has {} characters; the VM's objects carry it as a label, which has at most 63",
            name.len()
        );
        return invalid(
            "metadata.name",
            why,
            "create the VM again with a shorter name",
        );
    }
    Ok(name)
}

#[cfg(test)]
mod tests;
