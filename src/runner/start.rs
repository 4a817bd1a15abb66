//! (io) From the configuration file to a running QEMU, then along with it to its end.
//!
//! ```text
//! config -> spec -> machine -> arguments -> QEMU -> driver -> outcome
//! ```

use crate::api::runner::config::CloudInit;
use crate::api::runner::outcome::{Outcome, TERMINATION_MESSAGE_PATH};
use crate::api::vm::names;
use crate::runner::agent::login::Desktop;
use crate::runner::config::{self, RunnerConfig};
use crate::runner::driver::{self, Setup};
use crate::runner::failure::Failure;
use crate::runner::harden::{self, Places, Reach};
use crate::runner::kvm::models::Chosen;
use crate::runner::kvm::{self, Trial};
use crate::runner::live::{self, Tray};
use crate::runner::machine::{
    self, Acceleration, Around, Certificate, Claims, Directories, Environment, Looks, Machine,
    Resolved,
};
use crate::runner::problem::Problem;
use crate::runner::process::{self, Inherited, Started};
use crate::runner::report::Reporter;
use crate::runner::resolved::{self, NetworkConfig, NetworkType, Spec};
use crate::runner::signals::Signals;
use crate::runner::state::Phase;
use crate::runner::status::{Identity, Observed};
use crate::runner::taps;
use crate::runner::watch::Files;
use crate::runner::{console, metrics, qemu, seed};
use crate::sys::tap::Tap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Environment variable that replaces the path of the termination message.
const ENV_TERMINATION_LOG: &str = "VMRUNNER_TERMINATION_LOG";
/// Environment variable that replaces the directory of the CD images.
const ENV_IMAGE_REPOSITORY: &str = "VMRUNNER_IMAGE_REPOSITORY";
/// Environment variable with the path of a kubeconfig.
const ENV_KUBECONFIG: &str = "KUBECONFIG";
/// Where a pod finds its namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Runs the machine of that configuration file until its end. This process began then.
pub async fn run(config: PathBuf, began: Instant) -> Outcome {
    match prepare(config).await {
        Ok(Prepared {
            setup,
            signals,
            dirs,
            claims,
        }) => {
            let (file, model) = (setup.config.clone(), setup.spec.vm.cpu_model.clone());
            let accelerator = setup.observed.acceleration.name();
            let hugepages = setup.spec.vm.hugepages;
            let (outcome, reporter) = driver::run(setup, signals, began).await;
            let chosen = Chosen {
                program: qemu::PROGRAM,
                file: &file,
                model: &model,
                accelerator,
            };
            let outcome = resolved::explain(chosen.explain(outcome).await, hugepages);
            leave_message(&outcome.to_message());
            reporter.finish().await;
            dirs.remove_runtime();
            drop(claims);
            outcome
        }
        Err(failure) => {
            let outcome = failure.outcome();
            leave_message(&outcome.to_message());
            outcome
        }
    }
}

/// A machine whose QEMU was started.
struct Prepared {
    setup: Setup,
    signals: Signals,
    dirs: Directories,
    /// Its directories, which are nobody else's until they are given up.
    claims: Claims,
}

async fn prepare(path: PathBuf) -> Result<Prepared, Failure> {
    let mut signals =
        Signals::receive().map_err(|error| Failure::start(format!("no signals: {error}")))?;
    let files = Files::read(&path);
    let parsed = config::read(&path)?;
    let mut remarks = parsed.about_unknown();
    let config = parsed.config;
    let spec = Spec::from_config(&config).map_err(|invalid| config::in_file(&path, &invalid))?;
    remarks.extend(resolved::remark(&config));
    remarks
        .iter()
        .for_each(|remark| tracing::warn!("{}: {remark}", path.display()));
    let dirs = Directories::locate(&config, &spec.vm.name, &Environment::of_process());
    let taps = taps(&spec)?;
    harden::give_up()?;
    // From here on, everything is tried with the rights that are left.
    let claims = signals.end.unless_asked(dirs.make()).await?;
    let started = async {
        let repository = repository();
        let answers = signals
            .end
            .unless_asked(async { Ok(machine::answers(&repository).await) })
            .await?;
        let repository = Some(repository).filter(|_| answers);
        let places = Places {
            read: read(&config, &path),
            repository,
            termination: make_termination(),
        };
        harden::confine(&Reach::of_runner(&spec, &dirs, &places))?;
        let trial = Trial {
            program: qemu::PROGRAM,
            device: Path::new(kvm::DEVICE),
            reach: Reach::of_any(),
            guest: dirs.file(machine::KVM_PROBE_IMAGE),
            time: kvm::IN_ALL,
        };
        let acceleration = kvm::settle(&spec, trial, signals.end.asked()).await?;
        let found = signals
            .end
            .unless_asked(async { Ok(Found::look(&spec, places.repository).await) })
            .await?;
        let inherited = Inherited {
            taps,
            claims: claims.shared().map_err(|error| dirs.unusable(&error))?,
        };
        start(
            &config,
            spec,
            Host {
                acceleration,
                found,
            },
            &path,
            files,
            &dirs,
            inherited,
        )
    };
    match started.await {
        Ok(setup) => Ok(Prepared {
            setup,
            signals,
            dirs,
            claims,
        }),
        Err(failure) => {
            dirs.remove_runtime();
            Err(failure)
        }
    }
}

/// What a look at the host has given.
struct Host {
    acceleration: Acceleration,
    found: Found,
}

/// The CD images of a start.
struct Found {
    /// Where they are, if that has answered.
    repository: Option<PathBuf>,
    /// Looks for those that come later.
    looks: Looks,
    /// What was found for each drive.
    images: Vec<Option<Result<PathBuf, Problem>>>,
}

impl Found {
    async fn look(spec: &Spec, repository: Option<PathBuf>) -> Self {
        let mut looks = match &repository {
            Some(repository) => Looks::new(repository.clone(), Arc::new(machine::image)),
            None => Looks::in_vain(self::repository()),
        };
        let images = looks.look_for_all(&spec.live.media).await;
        Self {
            repository,
            looks,
            images,
        }
    }
}

fn start(
    config: &RunnerConfig,
    spec: Spec,
    host: Host,
    path: &Path,
    files: Files,
    dirs: &Directories,
    mut inherited: Inherited,
) -> Result<Setup, Failure> {
    let ticketing = spec.vm.display.spice.is_some() && files.password.clone()?.is_some();
    let seed = config.cloud_init.as_ref().map(|_| dirs.file(machine::SEED_IMAGE));
    let certificate = match &spec.vm.display.spice {
        Some(_) => Certificate::find(path.parent().unwrap_or(Path::new(".")))?,
        None => None,
    };
    let Host {
        acceleration,
        found: Found {
            repository,
            looks,
            images,
        },
    } = host;
    let around = Around {
        uid: config.uid.as_deref(),
        acceleration,
        ticketing,
        certificate,
        seed,
        images,
    };
    let Resolved {
        machine,
        held,
        warnings,
    } = machine::resolve(spec, dirs, around)?;
    warnings
        .iter()
        .for_each(|warning| tracing::warn!("{warning}"));
    if let (Some(cloud_init), Some(image)) = (&config.cloud_init, &machine.seed) {
        seed::write(
            image,
            cloud_init,
            &machine.spec.vm.name,
            config.uid.as_deref().unwrap_or(&machine.uuid),
        )?;
    }
    let trays = machine.cds.iter().zip(&machine.spec.cds).enumerate();
    let trays = trays.map(|(n, (cd, configured))| {
        Tray::at_start(n, configured.file.clone().filter(|_| cd.file.is_some()))
    });
    let trays = trays.collect();
    let sizes = machine.disks.iter().map(|disk| disk.size).collect();
    let arguments = qemu::arguments(&machine, qemu::DESCRIPTORS);
    tracing::info!("{} {}", qemu::PROGRAM, arguments.join(" "));
    let observed = observed(config, &machine);
    let reporter = Reporter::start(identity(config, &machine.spec.vm.name), observed.clone());
    let unusable = |error: io::Error| dirs.unusable(&error);
    let console = tokio::net::UnixListener::bind(dirs.file(machine::CONSOLE_SOCKET)).map_err(unusable)?;
    let reach = Reach::of(&machine, dirs, repository.as_deref());
    let mut counted = counted(config, &machine, &inherited.taps);
    for device in &held {
        inherited.claims.push(device.shared().map_err(unusable)?);
    }
    let Started {
        qemu,
        tpm,
        monitor,
        line,
    } = process::start(&arguments, dirs, machine.spec.vm.use_tpm, &reach, inherited)?;
    monitor.set_nonblocking(true).map_err(unusable)?;
    line.set_nonblocking(true).map_err(unusable)?;
    counted.qemu = qemu.id();
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
        held,
        metrics: config.metrics_port.map(|port| (port, counted)),
        start: live::Start {
            looks,
            trays,
            sizes,
            reset: config.reset_counter,
        },
        observed,
        reporter,
    })
}

/// The taps of a machine, each with the number of its network.
fn taps(spec: &Spec) -> Result<Vec<(usize, Tap)>, Failure> {
    let tap = |(n, network): (usize, &NetworkConfig)| match network.type_ {
        NetworkType::Tap => {
            Some(taps::open(&format!("vm.network[{n}]"), network.bridge()).map(|tap| (n, tap)))
        }
        NetworkType::User => None,
    };
    spec.vm.network.iter().enumerate().filter_map(tap).collect()
}

/// What `/metrics` needs of the machine, but for QEMU's process id.
fn counted(config: &RunnerConfig, machine: &Machine, taps: &[(usize, Tap)]) -> metrics::Machine {
    let node = std::env::var(names::ENV_NODE_NAME).unwrap_or_default();
    let namespace = config.namespace.clone().unwrap_or_default();
    let disk = |disk: &machine::Disk| (disk.path.display().to_string(), disk.aio());
    metrics::Machine {
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
        disks: machine.disks.iter().map(disk).collect(),
        taps: taps
            .iter()
            .map(|(network, tap)| metrics::Tap {
                network: *network,
                name: tap.name.clone(),
            })
            .collect(),
    }
}

fn observed(config: &RunnerConfig, machine: &Machine) -> Observed {
    let spec = &machine.spec;
    Observed {
        phase: Phase::Starting,
        generation: config.generation,
        cpus: 1,
        ram: spec.ram,
        osinfo: None,
        addresses: Vec::new(),
        console: None,
        password_serial: if machine.ticketing { 0 } else { -1 },
        acceleration: machine.acceleration.clone(),
        login_wanted: spec.live.logged_in_user.clone(),
        desktop: Desktop::default(),
        cpu_problem: None,
        memory_problem: None,
        stalled: None,
        disk_error: None,
        media: (!spec.cds.is_empty()).then_some(None),
        tpm: spec.vm.use_tpm.then_some(None),
        reset_request: config.reset_counter,
        config_problem: None,
        password_problem: None,
        monitor_lost: false,
    }
}

/// Whose status is reported; nobody's without a namespace.
fn identity(config: &RunnerConfig, name: &str) -> Option<Identity> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let of_pod = || {
        std::fs::read_to_string(NAMESPACE_FILE)
            .ok()
            .map(|text| text.trim().to_owned())
    };
    let namespace = config.namespace.clone().or_else(of_pod);
    if namespace.is_none() {
        tracing::warn!("no namespace, neither configured nor the pod's; nothing is reported");
    }
    Some(Identity {
        name: name.to_owned(),
        namespace: namespace?,
        uid: config.uid.clone(),
        node_name: variable(names::ENV_NODE_NAME),
        pod_ip: variable(names::ENV_POD_IP),
    })
}

/// The configuration file and what it is a link to, what it names, and the kubeconfig.
fn read(config: &RunnerConfig, path: &Path) -> Vec<PathBuf> {
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
    let kubeconfig = std::env::var_os(ENV_KUBECONFIG).map(PathBuf::from);
    [Some(path.to_owned()), path.canonicalize().ok(), kubeconfig]
        .into_iter()
        .chain(seed)
        .flatten()
        .collect()
}

/// Where CD images are.
fn repository() -> PathBuf {
    std::env::var_os(ENV_IMAGE_REPOSITORY)
        .map_or_else(|| names::IMAGE_REPOSITORY_DIR.into(), PathBuf::from)
}

/// The file for the outcome, if another than that of a pod is configured.
fn configured_termination() -> Option<PathBuf> {
    std::env::var_os(ENV_TERMINATION_LOG).map(PathBuf::from)
}

/// The file for the outcome. One that is configured is made, so that it can be written when nothing else can be any more.
pub fn make_termination() -> PathBuf {
    let Some(path) = configured_termination() else {
        return TERMINATION_MESSAGE_PATH.into();
    };
    let _ = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path);
    path
}

/// Leaves the outcome where the kubelet looks for it. Outside a pod there is no such file, and none is made.
pub fn leave_message(message: &str) {
    let path = match configured_termination() {
        Some(path) => path,
        None if Path::new(TERMINATION_MESSAGE_PATH).exists() => TERMINATION_MESSAGE_PATH.into(),
        None => return,
    };
    if let Err(error) = std::fs::write(&path, message) {
        tracing::warn!(%error, "{} cannot be written", path.display());
    }
}
