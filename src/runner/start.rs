//! (io) Starts a VM from its configuration file, and follows it until QEMU exits.
//!
//! ```text
//! config -> spec -> machine -> arguments -> QEMU -> driver -> outcome
//! ```
//!
//! If KVM fails soon after the start and the configuration allows emulation, the outcome is another start.

use crate::api::runner::config::CloudInit;
use crate::api::runner::identity::PodIdentity;
use crate::api::runner::outcome::{EndReason, Outcome, TERMINATION_MESSAGE_PATH};
use crate::api::runner::viewer::AUTHORITY_MAX;
use crate::api::vm::conditions::ConditionReason;
use crate::api::vm::names;
use crate::pinned_tls::KeyPair;
use crate::runner::agent::login::Desktop;
use crate::runner::config::{self, RunnerConfig};
use crate::runner::driver::{self, DisplayAccess, Setup};
use crate::runner::failure::{Failure, Problem};
use crate::runner::harden::{self, FileAccess, RunnerPaths};
use crate::runner::kvm::{self, KvmCheck};
use crate::runner::live::{self, CdDrive};
use crate::runner::machine::{
    self, Acceleration, Certificate, Directories, DirectoryLocks, Environment, ImageLookup,
    Machine, MachineInputs, PreparedMachine,
};
use crate::runner::process::{self, InheritedDescriptors, StartedPrograms};
use crate::runner::report::{ReportKey, Reporter};
use crate::runner::signals::Signals;
use crate::runner::spec::{self, Accelerator, NetworkConfig, NetworkType, Spec};
use crate::runner::state::Phase;
use crate::runner::status::Observed;
use crate::runner::taps;
use crate::runner::watch::ConfigFiles;
use crate::runner::{cpu_model, metrics, out_of_memory, qemu, seed};
use crate::sys::tap::Tap;
use k8s_openapi::jiff::Timestamp;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Environment variable that replaces the path of the termination message.
const TERMINATION_LOG_VARIABLE: &str = "VMRUNNER_TERMINATION_LOG";
/// Environment variable that replaces the directory of the CD images.
const IMAGE_REPOSITORY_VARIABLE: &str = "VMRUNNER_IMAGE_REPOSITORY";
/// Environment variable with the path of a kubeconfig.
const KUBECONFIG_VARIABLE: &str = "KUBECONFIG";
/// File with the pod's namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The end of a run.
pub enum RunEnd {
    /// The VM has ended.
    Ended(Outcome),
    /// KVM does not run the guest, and the VM must be started again under emulation.
    Emulate(Emulation),
}

/// Inputs of a start under emulation after KVM has failed.
pub struct Emulation {
    problem: Problem,
    /// The taps of the failed start, because this process has no right to create others any more.
    taps: Vec<(usize, Tap)>,
}

/// Runs the VM of that configuration file until QEMU exits. `process_start` is the start of this process.
pub async fn run(config: PathBuf, process_start: Instant, emulation: Option<Emulation>) -> RunEnd {
    match start_machine(config, emulation).await {
        Ok(machine) => follow_machine(machine, process_start).await,
        Err(failure) => {
            let outcome = failure.outcome();
            write_termination_message(&outcome.to_message());
            RunEnd::Ended(outcome)
        }
    }
}

async fn follow_machine(machine: StartedMachine, process_start: Instant) -> RunEnd {
    let StartedMachine {
        setup,
        signals,
        dirs,
        locks,
        spare_taps,
    } = machine;
    let file = setup.config.clone();
    let vm = setup.spec.vm.clone();
    let is_kvm = setup.observed.acceleration == Acceleration::Kvm;
    let (outcome, reporter) = driver::run(setup, signals, process_start).await;
    // A QEMU that could not be ended still holds the locks.
    let has_kvm_failed = is_kvm
        && outcome.reason == EndReason::AcceleratorUnavailable
        && outcome.qemu_exit.is_some();
    if has_kvm_failed && vm.accelerator == Accelerator::Auto {
        tracing::warn!(
            "KVM has failed, so the runner starts the VM again under emulation: {}",
            outcome.message
        );
        dirs.remove_runtime_files();
        return RunEnd::Emulate(Emulation {
            problem: Problem::new(ConditionReason::KvmFailed, outcome.message),
            taps: spare_taps,
        });
    }
    let outcome = cpu_model::explain(kvm::explain_end(outcome), &file, &vm.cpu_model);
    let outcome = out_of_memory::explain(outcome, Path::new(out_of_memory::CGROUP_DIR));
    let outcome = spec::add_possible_causes(outcome, vm.hugepages);
    write_termination_message(&outcome.to_message());
    reporter.finish().await;
    dirs.remove_runtime();
    drop(locks);
    RunEnd::Ended(outcome)
}

/// A VM with a running QEMU.
struct StartedMachine {
    setup: Setup,
    signals: Signals,
    dirs: Directories,
    /// Its locked directories.
    locks: DirectoryLocks,
    /// The taps for a start under emulation, if KVM fails. Empty if such a start is not possible.
    spare_taps: Vec<(usize, Tap)>,
}

async fn start_machine(
    path: PathBuf,
    emulation: Option<Emulation>,
) -> Result<StartedMachine, Failure> {
    let mut signals = Signals::receive().map_err(|error| {
        Failure::start(format!(
            "the runner cannot install signal handlers: {error}; report this error as a bug of vm-runner"
        ))
    })?;
    let files = ConfigFiles::read(&path);
    let (config, spec) = read_config(&path)?;
    let dirs = Directories::locate(&config, &spec.vm.name, &Environment::current());
    let (problem, taps) = match emulation {
        Some(emulation) => (Some(emulation.problem), emulation.taps),
        None => (None, taps(&spec)?),
    };
    harden::drop_privileges()?;
    // All following steps run with the reduced rights, so that a missing right is detected early.
    let locks = signals.shutdown.unless_requested(dirs.create()).await?;
    let started = async {
        let paths = paths(&config, &path, &mut signals).await?;
        harden::confine_process(&FileAccess::of_runner(&spec, &dirs, &paths))?;
        let acceleration = select_acceleration(spec.vm.accelerator, problem, &mut signals).await?;
        let spare_taps = match acceleration {
            Acceleration::Kvm if spec.vm.accelerator == Accelerator::Auto => duplicate(&taps)?,
            _ => Vec::new(),
        };
        let cd_images = signals
            .shutdown
            .unless_requested(async { Ok(CdImages::find(&spec, paths.repository).await) })
            .await?;
        let inherited = InheritedDescriptors {
            taps,
            locks: locks
                .duplicate_descriptors()
                .map_err(|error| dirs.failure(&error))?,
        };
        let setup = start(
            &config,
            spec,
            HostFacts {
                acceleration,
                cd_images,
            },
            &path,
            files,
            &dirs,
            inherited,
        )?;
        Ok((setup, spare_taps))
    };
    match started.await {
        Ok((setup, spare_taps)) => Ok(StartedMachine {
            setup,
            signals,
            dirs,
            locks,
            spare_taps,
        }),
        Err(failure) => {
            dirs.remove_runtime();
            Err(failure)
        }
    }
}

/// The paths that the runner needs in addition to those of the VM.
async fn paths(
    config: &RunnerConfig,
    path: &Path,
    signals: &mut Signals,
) -> Result<RunnerPaths, Failure> {
    let repository = repository_dir();
    let is_reachable = signals
        .shutdown
        .unless_requested(async { Ok(machine::is_reachable(&repository).await) })
        .await?;
    Ok(RunnerPaths {
        read: configuration_files(config, path),
        repository: Some(repository).filter(|_| is_reachable),
        termination: create_termination_file(),
        program: std::env::current_exe().ok(),
    })
}

/// Reads and checks the configuration file, and logs warnings.
fn read_config(path: &Path) -> Result<(RunnerConfig, Spec), Failure> {
    let parsed = config::read(path)?;
    let mut warnings = parsed.unknown_key_warnings();
    let config = parsed.config;
    let spec =
        Spec::from_config(&config).map_err(|invalid| config::failure_in_file(path, &invalid))?;
    warnings.extend(spec::warning(&config));
    warnings
        .iter()
        .for_each(|warning| tracing::warn!("{}: {warning}", path.display()));
    Ok((config, spec))
}

/// Checks KVM, unless the VM starts again because of this problem of KVM.
async fn select_acceleration(
    accelerator: Accelerator,
    problem: Option<Problem>,
    signals: &mut Signals,
) -> Result<Acceleration, Failure> {
    match problem.filter(|_| accelerator == Accelerator::Auto) {
        Some(problem) => Ok(Acceleration::TcgFallback(problem)),
        None => {
            let kvm_check = KvmCheck {
                program: Path::new(kvm::OWN_PROGRAM),
                device: Path::new(kvm::DEVICE),
            };
            let shutdown = async {
                signals.shutdown.requested().await;
            };
            kvm::select_acceleration(accelerator, kvm_check, shutdown).await
        }
    }
}

/// Further descriptors of the taps.
fn duplicate(taps: &[(usize, Tap)]) -> Result<Vec<(usize, Tap)>, Failure> {
    let duplicate = |(network, tap): &(usize, Tap)| Ok((*network, tap.duplicate()?));
    let result: io::Result<_> = taps.iter().map(duplicate).collect();
    result.map_err(|error| {
        Failure::start(format!(
            "the runner cannot duplicate the file descriptors of the tap devices: {error}; raise the limit of open files \
             (LimitNOFILE of the node's container runtime)"
        ))
    })
}

/// Facts about the node that the runner has looked up.
struct HostFacts {
    acceleration: Acceleration,
    cd_images: CdImages,
}

/// The CD images at the start.
struct CdImages {
    /// The image repository, if it is reachable.
    repository: Option<PathBuf>,
    /// Finds images that are added later.
    image_lookup: ImageLookup,
    /// The result for each drive.
    images: Vec<Option<Result<PathBuf, Problem>>>,
}

impl CdImages {
    async fn find(spec: &Spec, repository: Option<PathBuf>) -> Self {
        let mut image_lookup = match &repository {
            Some(repository) => {
                ImageLookup::new(repository.clone(), Arc::new(machine::find_cd_image))
            }
            None => ImageLookup::unreachable(self::repository_dir()),
        };
        let images = image_lookup.find_all(&spec.live.media).await;
        Self {
            repository,
            image_lookup,
            images,
        }
    }
}

fn start(
    config: &RunnerConfig,
    spec: Spec,
    host: HostFacts,
    path: &Path,
    files: ConfigFiles,
    dirs: &Directories,
    mut inherited: InheritedDescriptors,
) -> Result<Setup, Failure> {
    let ticketing = spec.vm.display.spice.is_some() && files.password.clone()?.is_some();
    let seed = config
        .cloud_init
        .as_ref()
        .map(|_| dirs.file(machine::SEED_IMAGE));
    let certificate = match &spec.vm.display.spice {
        Some(_) => Certificate::find(path.parent().unwrap_or(Path::new(".")))?,
        None => None,
    };
    let is_encrypted = certificate.is_some();
    let authority = certificate
        .as_ref()
        .and_then(|files| std::fs::read_to_string(&files.authority).ok())
        .filter(|authority| authority.len() <= AUTHORITY_MAX);
    let spice = spec.vm.display.spice.as_ref();
    let display = spice.map(|_| DisplayAccess {
        ticketing,
        is_encrypted,
        authority,
    });
    let HostFacts {
        acceleration,
        cd_images:
            CdImages {
                repository,
                image_lookup,
                images,
            },
    } = host;
    let pod = pod_identity();
    let inputs = MachineInputs {
        uid: config.uid.as_deref(),
        pod: &pod,
        cloud_init: config.cloud_init.as_ref(),
        acceleration,
        ticketing,
        certificate,
        seed,
        images,
    };
    let PreparedMachine {
        machine,
        held_devices,
        warnings,
    } = machine::prepare(spec, dirs, inputs)?;
    warnings
        .iter()
        .for_each(|warning| tracing::warn!("{warning}"));
    let mut user_data_problem = None;
    if let (Some(cloud_init), Some(image)) = (&config.cloud_init, &machine.seed) {
        let is_known = seed::write(
            image,
            &machine.instance.complete(cloud_init),
            &machine.spec.vm.name,
            &machine.instance.vm,
        )?;
        let source = pod.user_data_source.as_deref();
        user_data_problem =
            (!is_known).then(|| seed::unknown_header(source.unwrap_or("cloudInit.userDataFile")));
    }
    let cd_drives = machine.cds.iter().zip(&machine.spec.cds).enumerate();
    let cd_drives = cd_drives.map(|(n, (cd, configured))| {
        CdDrive::at_start(n, configured.file.clone().filter(|_| cd.file.is_some()))
    });
    let cd_drives = cd_drives.collect();
    let sizes = machine.disks.iter().map(|disk| disk.size).collect();
    let arguments = qemu::arguments(&machine, qemu::DESCRIPTORS);
    tracing::info!("{} {}", qemu::PROGRAM, arguments.join(" "));
    let console_key = KeyPair::generate().map_err(|error| {
        Failure::start(format!(
            "the runner cannot create a key for the port of the web console: {error}; report this error as a bug of vm-runner"
        ))
    })?;
    let observed = Observed {
        user_data_problem,
        console_key: console_key.public().to_string(),
        ..observed(config, &machine)
    };
    let reporter = Reporter::start(report_key(config), observed.clone());
    let unusable = |error: io::Error| dirs.failure(&error);
    let console =
        tokio::net::UnixListener::bind(dirs.file(machine::CONSOLE_SOCKET)).map_err(unusable)?;
    let file_access = FileAccess::of_machine(&machine, dirs, repository.as_deref());
    let mut vm_metrics = vm_metrics(config, &machine, &inherited.taps);
    for device in &held_devices {
        inherited
            .locks
            .push(device.duplicate_descriptor().map_err(unusable)?);
    }
    let StartedPrograms {
        qemu,
        tpm,
        monitor,
        line,
    } = process::start(
        &arguments,
        dirs,
        machine.spec.vm.use_tpm,
        &file_access,
        inherited,
    )?;
    monitor.set_nonblocking(true).map_err(unusable)?;
    line.set_nonblocking(true).map_err(unusable)?;
    vm_metrics.qemu = qemu.id();
    Ok(Setup {
        type_is_alias: !machine.machine_type.starts_with("pc-"),
        spec: machine.spec,
        configured: config.clone(),
        config: path.to_owned(),
        files,
        dirs: dirs.clone(),
        ticketing,
        qemu,
        tpm,
        monitor: tokio::net::UnixStream::from_std(monitor).map_err(unusable)?,
        line: tokio::net::UnixStream::from_std(line).map_err(unusable)?,
        console,
        console_port: (
            config.console_port.unwrap_or(names::CONSOLE_PORT),
            console_key,
        ),
        display,
        pod: pod_uid(),
        held_devices,
        metrics: config.metrics_port.map(|port| (port, vm_metrics)),
        start: live::StartState {
            image_lookup,
            cd_drives,
            sizes,
            reset: config.reset_counter,
            emulated: observed.acceleration != Acceleration::Kvm,
        },
        observed,
        reporter,
    })
}

/// Values in the environment of the pod. They are absent outside of pods.
pub fn pod_identity() -> PodIdentity {
    let Ok(text) = std::env::var(names::ENV_IDENTITY) else {
        return PodIdentity::default();
    };
    serde_json::from_str(&text).unwrap_or_else(|error| {
        tracing::warn!(
            "the runner ignores the environment variable {}, because the value is invalid: {error}. To get a pod with a \
             valid value, restart the VM (spec.vm.restartRequest)",
            names::ENV_IDENTITY
        );
        PodIdentity::default()
    })
}

/// Creates the VM's taps, each with the number of its network.
fn taps(spec: &Spec) -> Result<Vec<(usize, Tap)>, Failure> {
    let tap = |(n, network): (usize, &NetworkConfig)| match network.type_ {
        NetworkType::Tap => {
            Some(taps::open(&format!("vm.network[{n}]"), network.bridge()).map(|tap| (n, tap)))
        }
        NetworkType::User => None,
    };
    spec.vm.network.iter().enumerate().filter_map(tap).collect()
}

/// The values for `/metrics`, without QEMU's process id.
fn vm_metrics(
    config: &RunnerConfig,
    machine: &Machine,
    taps: &[(usize, Tap)],
) -> metrics::VmMetrics {
    let node = std::env::var(names::ENV_NODE_NAME).unwrap_or_default();
    let namespace = config.namespace.clone().unwrap_or_default();
    metrics::VmMetrics {
        labels: vec![
            ("node", node),
            ("namespace", namespace),
            ("name", machine.spec.vm.name.clone()),
        ],
        accelerated: match machine.acceleration {
            Acceleration::Unset => None,
            _ => Some(machine.acceleration == Acceleration::Kvm),
        },
        qemu: 0,
        ram: machine.spec.ram.0,
        disks: disk_labels(&machine.disks),
        taps: taps
            .iter()
            .map(|(network, tap)| metrics::Tap {
                network: *network,
                name: tap.name.clone(),
            })
            .collect(),
    }
}

/// The name of each disk, with its method of asynchronous I/O. Of several disks with one name, the path, because two series cannot
/// have the same labels.
fn disk_labels(disks: &[machine::Disk]) -> Vec<(String, &'static str)> {
    let label = |disk: &machine::Disk| {
        let name = machine::disk_name(&disk.path);
        let same = disks
            .iter()
            .filter(|it| machine::disk_name(&it.path) == name);
        let label = match same.count() {
            1 => name.to_owned(),
            _ => disk.path.display().to_string(),
        };
        (label, disk.aio())
    };
    disks.iter().map(label).collect()
}

fn observed(config: &RunnerConfig, machine: &Machine) -> Observed {
    let spec = &machine.spec;
    Observed {
        phase: Phase::Starting,
        generation: config.generation,
        cpus: 1,
        guest_cpus: None,
        ram: spec.ram,
        osinfo: None,
        addresses: Vec::new(),
        console: None,
        password_serial: if machine.ticketing { 0 } else { -1 },
        acceleration: machine.acceleration.clone(),
        login_wanted: spec.live.logged_in_user.clone(),
        desktop: Desktop::default(),
        cpu_problem: None,
        memory_problem: spec
            .live
            .ram
            .and_then(|target| live::memory_problem(spec.ram.0, target, false)),
        stalled: None,
        disk_error: None,
        media: (!spec.cds.is_empty()).then_some(None),
        tpm: spec.vm.use_tpm.then_some(None),
        reset_request: config.reset_counter,
        user_data_problem: None,
        config_problem: None,
        password_problem: None,
        monitor_lost: false,
        boots: 0,
        resets: 0,
        console_connections: 0,
        qemu_silent: false,
        console_key: String::new(),
        viewers: Vec::new(),
        spice_user: String::new(),
        spice_client: String::new(),
        spice_since: Timestamp::UNIX_EPOCH,
    }
}

fn pod_uid() -> Option<String> {
    let uid = std::env::var(names::ENV_POD_UID).ok();
    uid.filter(|uid| !uid.is_empty())
}

/// The report of this pod. None outside of pods.
fn report_key(config: &RunnerConfig) -> Option<ReportKey> {
    let Some(name) = pod_uid() else {
        tracing::info!(
            "the runner writes no VmReport, because it does not run in a pod of the operator; the log has the state of the VM"
        );
        return None;
    };
    let of_pod = || {
        std::fs::read_to_string(NAMESPACE_FILE)
            .ok()
            .map(|text| text.trim().to_owned())
    };
    let Some(namespace) = config.namespace.clone().or_else(of_pod) else {
        tracing::warn!(
            "the runner does not report the VM's status, because neither the configuration nor the pod's service account has a \
             namespace; to get reports, set the key namespace in the configuration"
        );
        return None;
    };
    Some(ReportKey { namespace, name })
}

/// The configuration file and its target, the files that it names, and the kubeconfig.
fn configuration_files(config: &RunnerConfig, path: &Path) -> Vec<PathBuf> {
    let parts = |seed: &CloudInit| {
        [
            seed.user_data_file.clone(),
            seed.network_config_file.clone(),
        ]
    };
    let seed = config
        .cloud_init
        .iter()
        .flat_map(parts)
        .map(|file| file.map(PathBuf::from));
    let kubeconfig = std::env::var_os(KUBECONFIG_VARIABLE).map(PathBuf::from);
    [Some(path.to_owned()), path.canonicalize().ok(), kubeconfig]
        .into_iter()
        .chain(seed)
        .flatten()
        .collect()
}

/// The directory of the CD images.
fn repository_dir() -> PathBuf {
    std::env::var_os(IMAGE_REPOSITORY_VARIABLE)
        .map_or_else(|| names::IMAGE_REPOSITORY_DIR.into(), PathBuf::from)
}

/// The configured path of the termination message, outside of pods.
fn configured_termination_file() -> Option<PathBuf> {
    std::env::var_os(TERMINATION_LOG_VARIABLE).map(PathBuf::from)
}

/// The path of the termination message. A configured file is created now, because file access is
/// restricted later.
pub fn create_termination_file() -> PathBuf {
    let Some(path) = configured_termination_file() else {
        return TERMINATION_MESSAGE_PATH.into();
    };
    let _ = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path);
    path
}

/// Writes the termination message for the kubelet. Outside of pods, a message is written only to a
/// configured file.
pub fn write_termination_message(message: &str) {
    let path = match configured_termination_file() {
        Some(path) => path,
        None if Path::new(TERMINATION_MESSAGE_PATH).exists() => TERMINATION_MESSAGE_PATH.into(),
        None => return,
    };
    if let Err(error) = std::fs::write(&path, message) {
        tracing::warn!(%error, "the runner cannot write the container's termination message to {}, so \
            the operator does not receive the reason of the exit", path.display());
    }
}
