//! (pure) The runner's configuration, from the VM's spec.

use crate::api::VirtualMachine;
use crate::api::logging::level;
use crate::api::pool::names::is_login_allowed;
use crate::api::runner::config;
use crate::api::vm::diagnosis::Diagnosis;
use crate::api::vm::{
    Assignment, CpuTopology, Forward, Machine, Network, Protocol, Spice, TapNetwork, UserNetwork,
    names,
};
use crate::controllers::vm::fetch::Media;
use crate::controllers::vm::images::is_remote;
use crate::controllers::vm::plan::machine::{Sizes, hugepages};
use crate::controllers::vm::plan::{DiskPlan, Place, invalid};
use crate::settings::{self, Policy};
use kube::ResourceExt;
use serde::de::value::Error as ValueError;
use serde::de::{Deserialize, IntoDeserializer};

/// The configuration, without the port of `/metrics`.
pub(super) fn runner_config(
    vm: &VirtualMachine,
    sizes: &Sizes,
    (disks, media): (&[DiskPlan], &Media),
    settings: &settings::Reconciler,
    cloud_init: Option<config::CloudInit>,
) -> Result<config::RunnerConfig, Diagnosis> {
    let machine = &vm.spec.vm;
    let topology = machine.cpu_topology.as_ref();
    let part = |part: fn(&CpuTopology) -> i64| {
        let n = topology.and_then(|topology| u32::try_from(part(topology)).ok());
        n.unwrap_or_default()
    };
    let vm_config = config::VmConfig {
        name: vm.name_any(),
        uuid: machine.machine_uuid.clone(),
        use_tpm: machine.use_tpm,
        boot_menu: machine.boot_menu,
        firmware: machine.firmware,
        maximum_ram: sizes.maximum_ram,
        current_ram: sizes.current_ram,
        hugepages: hugepages(machine),
        shared_memory: machine.memory.as_ref().is_some_and(|memory| memory.shared),
        cpu_model: machine.cpu_model.clone(),
        maximum_cpus: Some(sizes.maximum_cpus),
        current_cpus: Some(sizes.current_cpus),
        sockets: part(|t| t.sockets),
        dies_per_socket: part(|t| t.dies_per_socket),
        cores_per_die: part(|t| t.cores_per_die),
        threads_per_core: part(|t| t.threads_per_core),
        accelerator: match settings.accelerator.policy {
            Policy::Auto => config::Accelerator::Auto,
            Policy::Kvm => config::Accelerator::Kvm,
            Policy::Tcg => config::Accelerator::Tcg,
        },
        rtc_base: machine.rtc_base.clone(),
        rtc_clock: typed("spec.vm.rtcClock", &machine.rtc_clock)?,
        powerdown_timeout: u64::try_from(machine.powerdown_timeout).unwrap_or_default(),
        network: networks(machine)?,
        drives: drives(machine, disks, media)?,
        display: config::DisplayConfig {
            logged_in_user: login_user(vm),
            ..display(machine)?
        },
    };
    Ok(config::RunnerConfig {
        data_dir: Some(names::DATA_DIR.to_owned()),
        runtime_dir: None,
        namespace: vm.namespace(),
        uid: vm.uid(),
        generation: vm.metadata.generation,
        reset_counter: machine.reset_request,
        assignment: vm
            .status
            .as_ref()
            .and_then(|status| status.assignment.uid.clone()),
        guest_shutdown_stops: vm.spec.guest_shutdown_stops,
        log_level: log_level(vm, settings),
        metrics_port: None,
        console_port: None,
        cloud_init,
        vm: Some(vm_config),
    })
}

/// The text as a type of the runner's configuration.
fn typed<T: for<'de> Deserialize<'de>>(field: &str, text: &str) -> Result<T, Diagnosis> {
    let value: Result<T, ValueError> = T::deserialize(text.into_deserializer());
    value.or_else(|error| invalid(field, error.to_string(), "correct the value"))
}

/// Maximum size of the values of a ConfigMap together, in bytes.
const CONFIG_MAP_SIZE_MAX: usize = 1 << 20;
/// Maximum size of a file with indentation, in bytes. Indentation can be most of a file.
const INDENTED_SIZE_MAX: usize = CONFIG_MAP_SIZE_MAX / 2;

/// Text of the configuration file. It is JSON, because YAML parsers differ.
pub(super) fn file(config: &config::RunnerConfig) -> String {
    let file = config::ConfigFile {
        runner: config.clone(),
    };
    // Serializing plain data into a string cannot fail.
    let text = serde_json::to_string_pretty(&file).unwrap_or_default();
    let text = if text.len() > INDENTED_SIZE_MAX {
        serde_json::to_string(&file).unwrap_or_default()
    } else {
        text
    };
    text + "\n"
}

/// Checks the size of the ConfigMap. The message of the API server would name no field of the VM.
pub(super) fn check_size(
    vm: &VirtualMachine,
    file: &str,
    logging: Option<&str>,
) -> Result<(), Diagnosis> {
    let logging = logging.map_or(0, str::len);
    let size = file.len() + logging;
    let (field, step) = match &vm.spec.logging_properties {
        _ if size <= CONFIG_MAP_SIZE_MAX => return Ok(()),
        _ if logging <= file.len() => (
            "spec.cloudInit",
            "put the user data into a Secret and name the Secret in spec.cloudInit.userDataFrom. For data above 1 MiB, put \
             #include and the URL of the data into the Secret; cloud-init in the guest then downloads the data",
        ),
        Some(_) => (
            "spec.loggingProperties",
            "keep only the line .level=LEVEL, which sets the log level of the runner; the other lines have no effect",
        ),
        None => (
            "loggingProperties in the operator's ConfigMap",
            "keep only the line .level=LEVEL, which sets the log level of the runner; the other lines have no effect",
        ),
    };
    invalid(
        field,
        format!(
            "the VM's ConfigMap would have {size} bytes, but Kubernetes allows at most {CONFIG_MAP_SIZE_MAX}"
        ),
        step,
    )
}

/// The logging configuration of the VM, or the default of the operator's configuration.
pub(super) fn logging_properties<'a>(
    vm: &'a VirtualMachine,
    settings: &'a settings::Reconciler,
) -> Option<&'a String> {
    vm.spec
        .logging_properties
        .as_ref()
        .or(settings.logging_properties.as_ref())
}

/// The log level. None if it is the runner's default.
fn log_level(vm: &VirtualMachine, settings: &settings::Reconciler) -> Option<String> {
    level(logging_properties(vm, settings)?)
        .0
        .filter(|level| *level != "info")
        .map(str::to_owned)
}

fn networks(machine: &Machine) -> Result<Vec<config::NetworkConfig>, Diagnosis> {
    let forward = |f: &Forward| config::ForwardConfig {
        port: u16::try_from(f.port).unwrap_or_default(),
        guest_port: u16::try_from(f.guest_port).unwrap_or_default(),
        protocol: match f.protocol {
            Protocol::TCP => config::Protocol::Tcp,
            Protocol::UDP => config::Protocol::Udp,
        },
    };
    let user = |user: &UserNetwork| config::NetworkConfig {
        type_: config::NetworkType::User,
        device: user.device.clone(),
        net: user.net.clone(),
        forward: user.forward.iter().map(forward).collect(),
        ..config::NetworkConfig::default()
    };
    let tap = |n: usize, tap: &TapNetwork| {
        let mac = |mac: &String| typed(&format!("spec.vm.networks[{n}].tap.mac"), mac);
        Ok(config::NetworkConfig {
            type_: config::NetworkType::Tap,
            device: tap.device.clone(),
            bridge: Some(tap.bridge.clone()),
            mac: tap.mac.as_ref().map(mac).transpose()?,
            ..config::NetworkConfig::default()
        })
    };
    let unnamed = |(n, network): (usize, &Network)| match &network.tap {
        Some(of_tap) => Some(tap(n, of_tap)),
        None => network.user.as_ref().map(user).map(Ok),
    };
    let network = |(n, network): (usize, &Network)| {
        let config = unnamed((n, network))?;
        Some(config.map(|config| config::NetworkConfig {
            name: network.name.clone(),
            ..config
        }))
    };
    machine
        .networks
        .iter()
        .enumerate()
        .filter_map(network)
        .collect()
}

fn drives(
    machine: &Machine,
    disks: &[DiskPlan],
    media: &Media,
) -> Result<Vec<config::DriveConfig>, Diagnosis> {
    let mut disks = disks.iter();
    let mut drives = Vec::new();
    for (i, disk) in machine.disks.iter().enumerate() {
        let bootindex = disk.bootindex.and_then(|n| u32::try_from(n).ok());
        drives.push(match &disk.cdrom {
            Some(cdrom) => config::DriveConfig {
                type_: config::DriveType::IdeCd,
                file: Some(drive_file(i, &cdrom.image, media)?),
                bootindex,
                ..config::DriveConfig::default()
            },
            None => config::DriveConfig {
                bootindex,
                ..disks.next().map(drive).unwrap_or_default()
            },
        });
    }
    Ok(drives)
}

/// The drive of a disk with a PVC.
fn drive(disk: &DiskPlan) -> config::DriveConfig {
    let drive = config::DriveConfig::default();
    match disk.place {
        Place::Device => config::DriveConfig {
            resource: Some(disk.path()),
            ..drive
        },
        Place::File { size } => config::DriveConfig {
            file: Some(disk.path()),
            size: Some(size),
            ..drive
        },
    }
}

/// The file in the CD drive at index `i` of `spec.vm.disks`. Empty for an empty drive.
fn drive_file(i: usize, image: &str, media: &Media) -> Result<String, Diagnosis> {
    if !is_remote(image) {
        return cd_image(&format!("spec.vm.disks[{i}].cdrom.image"), image);
    }
    let file = media
        .files
        .iter()
        .find(|(disk, _)| *disk == i)
        .map(|(_, file)| file.clone());
    Ok(file.unwrap_or_default())
}

/// Path of a CD image in the image repository. Empty for an empty drive.
fn cd_image(field: &str, image: &str) -> Result<String, Diagnosis> {
    let image = image.strip_prefix("file://").unwrap_or(image);
    if image.is_empty() {
        return Ok(String::new());
    }
    let repository = format!("{}/", names::IMAGE_REPOSITORY_DIR);
    let relative = image.strip_prefix(&repository).unwrap_or(image);
    if relative.starts_with('/') || relative.split('/').any(|part| part == "..") {
        return invalid(
            field,
            format!("the CD image {image:?} is outside of the image repository"),
            "use a relative path in the image repository, without the path element \"..\"",
        );
    }
    Ok(format!("{repository}{relative}"))
}

/// Makes a display without a password unreachable from outside the node, for pods in the node's network.
pub(super) fn hide_display(config: &mut config::RunnerConfig) {
    if let Some(spice) = config.vm.as_mut().and_then(|vm| vm.display.spice.as_mut()) {
        spice.address = Some(std::net::Ipv4Addr::LOCALHOST.into());
    }
}

/// The user that the desktop agent logs in: the assigned user if the pool requests the login, else the user of the spec.
fn login_user(vm: &VirtualMachine) -> Option<String> {
    let assignment = vm.status.as_ref().map(|status| &status.assignment);
    let assigned = assignment.filter(|assignment| assignment.login);
    match assigned {
        Some(Assignment { user, .. }) => user.clone().filter(|user| is_login_allowed(user)),
        None => vm.spec.vm.display.logged_in_user.clone(),
    }
}

fn display(machine: &Machine) -> Result<config::DisplayConfig, Diagnosis> {
    let display = &machine.display;
    let video = |video: &String| typed("spec.vm.display.spice.streamingVideo", video);
    let spice = |spice: &Spice| {
        Ok(config::SpiceConfig {
            port: u16::try_from(spice.port).unwrap_or_default(),
            address: None,
            streaming_video: spice.streaming_video.as_ref().map(video).transpose()?,
            usb_redirects: u32::try_from(spice.usb_redirects).unwrap_or_default(),
        })
    };
    Ok(config::DisplayConfig {
        outputs: u32::try_from(display.outputs).unwrap_or_default(),
        logged_in_user: None,
        spice: display.spice.as_ref().map(spice).transpose()?,
    })
}
