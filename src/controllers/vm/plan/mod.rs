//! (pure) The plan of a VM: all defaults merged, all values checked.
//!
//! The schema checks what it can before an object is stored. The plan checks the rest, and values that were stored before a rule
//! existed. A value that cannot be used becomes a [`Diagnosis`]; the operator then creates and changes no object of the VM.

mod config;
mod disks;
mod identity;
mod import;
mod lost_volumes;
mod machine;
mod outdated_claims;
mod pod;
mod rights;
mod seed;
mod service;

pub use disks::{ClaimChange, DiskPlan, Place};
pub use identity::{short_form, without_unset_console_port};
pub use import::{ImportPlan, Source};
pub(in crate::controllers::vm) use machine::sizes;
pub use machine::{can_grow, protocol, wanted_ram};
pub use outdated_claims::OutdatedClaim;
pub use pod::{Placement, PodPlan};
pub use rights::{Rights, Tun};
pub use seed::RetainedInstance;
pub use service::ServicePlan;

use crate::api::VirtualMachine;
use crate::api::conditions::find;
use crate::api::runner::config::RunnerConfig;
use crate::api::runner::identity::GeneratedInstance;
use crate::api::vm::conditions::{self, ReadyReason};
use crate::api::vm::diagnosis::Diagnosis;
use crate::api::vm::{Forward, LABEL_VALUE_LENGTH_MAX, SecretKeyRef, names};
use crate::controllers::vm::claim_names;
use crate::controllers::vm::fetch::{self, Fetch, Media};
use crate::controllers::vm::images;
use crate::controllers::vm::observe::Observed;
use crate::settings;
use kube::ResourceExt;
use std::collections::BTreeMap;

/// All values from which the objects of a VM are built.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Name of the VM and of its pod.
    pub name: String,
    /// Namespace of all its objects.
    pub namespace: String,
    /// UID of the VM.
    pub uid: String,
    /// The pod, except for its volumes and ports.
    pub pod: PodPlan,
    /// The runner's configuration.
    pub config: RunnerConfig,
    /// Text of the runner's configuration file.
    pub config_file: String,
    /// Content of `logging.properties` in the ConfigMap. Only people read it.
    pub logging_properties: Option<String>,
    /// The `instance-id` that a VM of the Java VM-Operator retains.
    pub retained_instance: Option<RetainedInstance>,
    /// The `instance-id` in the runner's configuration, if the user has configured none.
    pub generated_instance: Option<GeneratedInstance>,
    /// Files of the cloud-init seed that come from Secrets, with their sources.
    pub seed_secrets: Vec<(&'static str, SecretKeyRef)>,
    /// Disks with PVCs.
    pub disks: Vec<DiskPlan>,
    /// Whether the VM has a CD drive, so that its pod mounts the image repository.
    pub has_cd_drive: bool,
    /// Name of the PVC for runner data.
    pub runner_data_claim: String,
    /// Whether the VM has run since the PVC for runner data was created, so that a runner has written to the PVC.
    pub has_used_runner_data: bool,
    /// Storage class and size of the PVC for runner data.
    pub runner_data_settings: settings::RunnerDataPvc,
    /// PVCs without a volume that differ from the configuration.
    pub outdated_claims: Vec<OutdatedClaim>,
    /// Name of the display Secret, if it exists or is going to be created.
    pub display_secret: Option<String>,
    /// Whether the operator creates the display Secret.
    pub generate_secret: bool,
    /// The image repository, if the operator creates it.
    pub image_repository: Option<settings::ImageRepository>,
    /// Whether the access modes of the image repository let no pod write.
    pub repository_is_read_only: bool,
    /// CD images by URL, with the next step of each download.
    pub fetches: Vec<Fetch>,
    /// The files of the CD images by URL, and whether the start waits for the download of one.
    pub media: Media,
    /// The disk that an import pod fills, before the VM's own pod is created.
    pub import: Option<ImportPlan>,
    /// The configuration of download pods, if the VM has images by URL.
    pub fetch_settings: Option<Box<settings::Reconciler>>,
    /// Port of the display.
    pub spice_port: Option<u16>,
    /// Port of the runner for web consoles, if it has one.
    pub console_port: Option<u16>,
    /// Ports of the pod that are forwarded to the guest.
    pub forwards: Vec<Forward>,
    /// The Service of type `LoadBalancer`, if the VM has one.
    pub service: Option<ServicePlan>,
    /// A hash of each field that takes effect at the next start.
    pub started_with: BTreeMap<String, String>,
    /// The value of `spec.vm.restartRequest`.
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

/// Merges all defaults and checks all values.
///
/// # Errors
/// If a value cannot be used.
pub fn plan(observed: &Observed, settings: &settings::Reconciler) -> Result<Plan, Diagnosis> {
    let vm = &observed.vm;
    let spec = &vm.spec;
    lost_volumes::check(observed)?;
    let name = checked_name(vm)?;
    machine::check_devices(&spec.vm, spec.cloud_init.is_some())?;
    let disks = disks::disks(observed, settings.disk_pvc.volume_mode)?;
    let import = import::import(observed, &disks, settings)?;
    let forwards = machine::forwards(spec)?;
    let sizes = machine::sizes(&spec.vm)?;
    let fetches = fetches(observed, settings);
    let media = fetch::media(&fetches, observed, &settings.image_repository.fetch);
    let retained_instance = seed::retained_instance(observed);
    let seed = seed::seed(vm, retained_instance.as_ref());
    let (display_secret, generate_secret) = display_secret(observed, &name);
    let spice_port = machine::spice_port(&spec.vm).and_then(|port| u16::try_from(port).ok());
    let pod = PodPlan::new(vm, &sizes, settings);
    pod.rights.check(&spec.vm, &pod.image, settings)?;
    let allocated = machine::allocated(sizes, &pod.resources, observed);
    let port = |wanted, default, other: Option<u16>| {
        let others = [spice_port, other];
        pod.rights.runner_port(wanted, default, others, &forwards)
    };
    let of_user = |port: Option<i64>| port.and_then(|port| u16::try_from(port).ok());
    let metrics_port = port(
        spec.metrics_port,
        names::METRICS_PORT,
        of_user(spec.console_port),
    );
    let console_port = port(spec.console_port, names::CONSOLE_PORT, metrics_port);
    let mut config = RunnerConfig {
        metrics_port,
        // The default is not in the ConfigMap, because an upgrade would then write the ConfigMap of each VM.
        console_port: console_port.filter(|_| spec.console_port.is_some()),
        ..config::runner_config(vm, &allocated, (&disks, &media), settings, seed)?
    };
    if pod.rights.tap.is_some() && display_secret.is_none() {
        config::hide_display(&mut config);
    }
    let runner_data_claim =
        observed.claim_name(claim_names::RUNNER_DATA, names::runner_data_claim(&name));
    if let Some(other) = observed.other_owner(&runner_data_claim) {
        return invalid(
            "metadata.name",
            name_of_other_vm("the runner data needs", &runner_data_claim, &other),
            "create this VM again with another name",
        );
    }
    let outdated_claims =
        outdated_claims::outdated_claims(observed, &disks, &runner_data_claim, settings);
    let logging_properties = config::logging_properties(vm, settings).cloned();
    let config_file = config::file(&config);
    config::check_size(vm, &config_file, logging_properties.as_deref())?;
    Ok(Plan {
        started_with: identity::hashes(vm, config.vm.as_ref(), display_secret.as_deref()),
        restart_request: spec.vm.restart_request,
        fetch_settings: (!fetches.is_empty()).then(|| Box::new(settings.clone())),
        import,
        generated_instance: seed::generated_instance(vm, config.cloud_init.as_ref()),
        seed_secrets: seed::secrets(vm),
        namespace: vm.namespace().unwrap_or_default(),
        uid: vm.uid().unwrap_or_default(),
        has_cd_drive: observed.has_cd_drive(),
        has_used_runner_data: has_used(observed, &runner_data_claim),
        runner_data_claim,
        runner_data_settings: settings.runner_data_pvc.clone(),
        image_repository: image_repository(observed, settings),
        repository_is_read_only: repository_is_read_only(observed, settings),
        service: service::service(spec, spice_port, &forwards, &settings.load_balancer_service),
        name,
        pod,
        config,
        config_file,
        logging_properties,
        retained_instance,
        disks,
        outdated_claims,
        display_secret,
        generate_secret,
        fetches,
        media,
        spice_port,
        console_port,
        forwards,
    })
}

/// The problem of a PVC name that belongs to another VM.
fn name_of_other_vm(need: &str, claim: &str, other: &str) -> String {
    format!(
        "{need} a PVC with the name {claim:?}, but this name belongs to VM {other:?}, which the labels of the PVC name, or which has \
         used or requested the name first"
    )
}

fn fetches(observed: &Observed, settings: &settings::Reconciler) -> Vec<Fetch> {
    images::remote_images(&observed.vm)
        .into_iter()
        .map(|remote| fetch::download_state(remote, observed, settings))
        .collect()
}

/// Whether the VM has run since the creation of the PVC. The condition `Running` changes only when the VM starts or stops, and its
/// transition time on a new VM is 0 or that of the VM's creation. So each transition after the creation of both means that the VM has run.
fn has_used(observed: &Observed, claim: &str) -> bool {
    let created = observed
        .claims
        .get(claim)
        .and_then(|claim| claim.metadata.creation_timestamp.as_ref());
    let running = find(observed.conditions(), conditions::RUNNING);
    let changed = running.map(|running| &running.last_transition_time);
    created.is_some()
        && changed > created
        && changed > observed.vm.metadata.creation_timestamp.as_ref()
}

/// The name of the display Secret, and whether it has to be created.
fn display_secret(observed: &Observed, name: &str) -> (Option<String>, bool) {
    let present = observed.display_secret.as_ref().map(|s| s.name_any());
    let spice = observed.vm.spec.vm.display.spice.as_ref();
    let generate = present.is_none() && spice.is_some_and(|spice| spice.generate_secret);
    let generated = generate.then(|| names::display_secret(name));
    (present.or(generated), generate)
}

/// Whether no pod can write to the image repository. The access modes of an existing PVC count, because they cannot change.
fn repository_is_read_only(observed: &Observed, settings: &settings::Reconciler) -> bool {
    let modes = match &observed.image_repository {
        Some(claim) => &claim.spec.access_modes[..],
        None => &settings.image_repository.access_modes,
    };
    modes.iter().all(|mode| mode == "ReadOnlyMany")
}

/// The image repository, if it does not exist and the operator may create it.
fn image_repository(
    observed: &Observed,
    settings: &settings::Reconciler,
) -> Option<settings::ImageRepository> {
    let wanted = observed.image_repository.is_none() && settings.image_repository.create;
    wanted.then(|| settings.image_repository.clone())
}

/// The name, if it can be a label value: all children have it as a label.
fn checked_name(vm: &VirtualMachine) -> Result<String, Diagnosis> {
    let name = vm.name_any();
    if name.len() > LABEL_VALUE_LENGTH_MAX {
        let why = format!(
            "the name {name:?} has {} characters; all objects of the VM have the name as a label value, and a label value \
             can have at most {LABEL_VALUE_LENGTH_MAX} characters",
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
