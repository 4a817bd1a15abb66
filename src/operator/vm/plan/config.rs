//! (pure) The runner's configuration, from the VM's spec.

use super::{DiskPlan, Invalid, Place, invalid, protocol};
use crate::api::fetch::shown;
use crate::api::logging::level;
use crate::api::quantity::Bytes;
use crate::api::runner_config as config;
use crate::api::virtual_machine::{Forward, Machine, Network, TapNetwork, UserNetwork};
use crate::api::{VirtualMachine, names};
use crate::operator::settings::{self, Policy};
use crate::operator::vm::fetch::{Media, is_remote};
use kube::ResourceExt;

/// The configuration; sizes and counts are checked already.
pub(super) fn runner_config(
    vm: &VirtualMachine,
    (maximum_cpus, current_cpus): (u32, u32),
    (maximum_ram, current_ram): (Bytes, Option<Bytes>),
    (disks, media): (&[DiskPlan], &Media),
    settings: &settings::Reconciler,
    cloud_init: Option<config::CloudInit>,
) -> Result<config::RunnerConfig, Invalid> {
    let machine = &vm.spec.vm;
    let topology = machine.cpu_topology.clone();
    let part = |n: Option<i64>| n.and_then(|n| u32::try_from(n).ok()).unwrap_or_default();
    Ok(config::RunnerConfig {
        data_dir: Some(names::DATA_DIR.to_owned()),
        runtime_dir: None,
        namespace: vm.namespace(),
        uid: vm.uid(),
        generation: vm.metadata.generation,
        reset_counter: machine.reset_request,
        guest_shutdown_stops: vm.spec.guest_shutdown_stops,
        log_level: log_level(vm, settings),
        metrics_port: None,
        cloud_init,
        vm: Some(config::VmConfig {
            name: vm.name_any(),
            uuid: machine.machine_uuid.clone(),
            use_tpm: machine.use_tpm,
            boot_menu: machine.boot_menu,
            firmware: Some(machine.firmware.as_str().to_owned()),
            maximum_ram: Some(maximum_ram.to_string()),
            current_ram: current_ram.map(|size| size.to_string()),
            hugepages: super::machine::hugepages(machine).map(|size| size.as_str().to_owned()),
            shared_memory: machine.memory.as_ref().is_some_and(|memory| memory.shared),
            cpu_model: Some(machine.cpu_model.clone()),
            maximum_cpus: Some(maximum_cpus),
            current_cpus: Some(current_cpus),
            sockets: part(topology.as_ref().map(|t| t.sockets)),
            dies_per_socket: part(topology.as_ref().map(|t| t.dies_per_socket)),
            cores_per_die: part(topology.as_ref().map(|t| t.cores_per_die)),
            threads_per_core: part(topology.as_ref().map(|t| t.threads_per_core)),
            // Left out where it is the runner's default, so that it is written only where it says something.
            accelerator: Some(settings.accelerator.policy)
                .filter(|policy| *policy != Policy::Auto)
                .map(|policy| policy.as_str().to_owned()),
            rtc_base: Some(machine.rtc_base.clone()),
            rtc_clock: Some(machine.rtc_clock.clone()),
            powerdown_timeout: u64::try_from(machine.powerdown_timeout).ok(),
            network: Some(networks(machine)),
            drives: Some(drives(machine, disks, media)?),
            display: Some(display(machine)),
        }),
    })
}

/// What a ConfigMap can hold, all of its values together.
const MOST: usize = 1 << 20;
/// A file that is longer is written without blanks and line ends, which may be most of it.
const LONG: usize = MOST / 2;

/// The file with the configuration: JSON, which is YAML that all parsers read alike.
pub(super) fn file(config: &config::RunnerConfig) -> String {
    let file = config::ConfigFile { runner: config.clone() };
    // Serializing plain data into a string cannot fail.
    let text = serde_json::to_string_pretty(&file).unwrap_or_default();
    let text = if text.len() > LONG { serde_json::to_string(&file).unwrap_or_default() } else { text };
    text + "\n"
}

/// Refuses what the API server would, with the field that is to blame.
pub(super) fn fits(vm: &VirtualMachine, file: &str, logging: Option<&str>) -> Result<(), Invalid> {
    let logging = logging.map_or(0, str::len);
    let all = file.len() + logging;
    if all <= MOST {
        return Ok(());
    }
    let why = |part: &str, bytes: usize| {
        format!("{part} takes {bytes} bytes of the VM's ConfigMap, which would have {all} and can have {MOST}")
    };
    if logging > file.len() {
        let field = match &vm.spec.logging_properties {
            Some(_) => "spec.loggingProperties",
            None => "loggingProperties of the operator's settings",
        };
        return invalid(field, why("it", logging), "leave only the line .level: nothing else has an effect");
    }
    let seed = vm.spec.cloud_init.as_ref().map(|seed| serde_json::to_string(seed).unwrap_or_default().len());
    let step = "put user-data into a secret and name it in userDataFrom, or let the guest fetch it (#include)";
    invalid("spec.cloudInit", why("it", seed.unwrap_or_default()), step)
}

/// What the VM says, else the settings.
pub(super) fn logging_properties<'a>(vm: &'a VirtualMachine, settings: &'a settings::Reconciler) -> Option<&'a String> {
    vm.spec.logging_properties.as_ref().or(settings.logging_properties.as_ref())
}

/// Left out where it is the runner's default.
fn log_level(vm: &VirtualMachine, settings: &settings::Reconciler) -> Option<String> {
    level(logging_properties(vm, settings)?).0.filter(|level| *level != "info").map(str::to_owned)
}

fn networks(machine: &Machine) -> Vec<config::NetworkConfig> {
    let forward = |f: &Forward| config::ForwardConfig {
        port: u16::try_from(f.port).unwrap_or_default(),
        guest_port: u16::try_from(f.guest_port).unwrap_or_default(),
        protocol: protocol(f.protocol).to_lowercase(),
    };
    let user = |user: &UserNetwork| config::NetworkConfig {
        type_: Some("user".to_owned()),
        device: Some(user.device.clone()),
        net: user.net.clone(),
        forward: user.forward.iter().map(forward).collect(),
        ..config::NetworkConfig::default()
    };
    let tap = |tap: &TapNetwork| config::NetworkConfig {
        type_: Some("tap".to_owned()),
        device: Some(tap.device.clone()),
        bridge: Some(tap.bridge.clone()),
        mac: tap.mac.clone(),
        ..config::NetworkConfig::default()
    };
    let network = |network: &Network| network.tap.as_ref().map(tap).or_else(|| network.user.as_ref().map(user));
    machine.networks.iter().filter_map(network).collect()
}

fn drives(machine: &Machine, disks: &[DiskPlan], media: &Media) -> Result<Vec<config::DriveConfig>, Invalid> {
    let mut disks = disks.iter();
    let mut drives = Vec::new();
    for (i, disk) in machine.disks.iter().enumerate() {
        let bootindex = disk.bootindex.and_then(|n| u32::try_from(n).ok());
        drives.push(match &disk.cdrom {
            Some(cdrom) => config::DriveConfig {
                type_: Some("ide-cd".to_owned()),
                file: Some(medium(i, &cdrom.image, media)?),
                bootindex,
                ..config::DriveConfig::default()
            },
            None => config::DriveConfig { bootindex, ..disks.next().map(drive).unwrap_or_default() },
        });
    }
    Ok(drives)
}

/// The drive of a disk with a claim.
fn drive(disk: &DiskPlan) -> config::DriveConfig {
    let drive = config::DriveConfig { type_: Some("raw".to_owned()), ..config::DriveConfig::default() };
    match disk.place {
        Place::Device => config::DriveConfig { resource: Some(disk.path()), ..drive },
        Place::File { size } => config::DriveConfig { file: Some(disk.path()), size: Some(size.to_string()), ..drive },
    }
}

/// What is in the CD drive at that place.
fn medium(i: usize, image: &str, media: &Media) -> Result<String, Invalid> {
    let field = format!("spec.vm.disks[{i}].cdrom.image");
    if !is_remote(image) {
        return cd_image(&field, image);
    }
    if let Some(why) = url_problem(image) {
        return invalid(field, format!("{:?} {why}", shown(image)), "give an http or https URL");
    }
    let file = media.files.iter().find(|(place, _)| *place == i).map(|(_, file)| file.clone());
    Ok(file.unwrap_or_default())
}

/// What is wrong with a URL, as admission sees it too.
fn url_problem(url: &str) -> Option<&'static str> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !authority.ends_with(']') => (host, port),
        _ => (authority, "0"),
    };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match address {
        Some(address) => !address.is_empty() && address.chars().all(|c| c.is_ascii_hexdigit() || ":.".contains(c)),
        None => {
            host.starts_with(|c: char| c.is_ascii_alphanumeric())
                && host.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        }
    };
    let is_port = (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
    let checks = [
        (!["http", "https"].contains(&&*scheme.to_ascii_lowercase()), "has a scheme that cannot be fetched"),
        (authority.contains('@'), "has a user or password in it, which everybody could read"),
        (!is_host || !is_port, "has no host that can be reached"),
        (url.len() > 2048, "is longer than 2048 characters"),
        (
            !url.chars().all(|c| c.is_ascii_graphic()),
            "has blanks or characters beyond ASCII; write them as %20 and the like",
        ),
    ];
    checks.into_iter().find(|(wrong, _)| *wrong).map(|(_, why)| why)
}

/// Path of a CD image: inside the image repository, or none.
fn cd_image(field: &str, image: &str) -> Result<String, Invalid> {
    let image = image.strip_prefix("file://").unwrap_or(image);
    if image.is_empty() {
        return Ok(String::new());
    }
    let repository = format!("{}/", names::IMAGE_REPOSITORY_DIR);
    let relative = image.strip_prefix(&repository).unwrap_or(image);
    if relative.starts_with('/') || relative.split('/').any(|part| part == "..") {
        let why = format!("{image:?} is not in the image repository");
        return invalid(field, why, "give a path below the image repository");
    }
    Ok(format!("{repository}{relative}"))
}

/// A display that asks for no password, in the node's network: it is for the node alone.
pub(super) fn hide_display(config: &mut config::RunnerConfig) {
    let display = config.vm.as_mut().and_then(|vm| vm.display.as_mut());
    if let Some(spice) = display.and_then(|display| display.spice.as_mut()) {
        spice.address = Some(std::net::Ipv4Addr::LOCALHOST.to_string());
    }
}

fn display(machine: &Machine) -> config::DisplayConfig {
    let display = &machine.display;
    config::DisplayConfig {
        outputs: u32::try_from(display.outputs).ok(),
        logged_in_user: display.logged_in_user.clone(),
        spice: display.spice.as_ref().map(|spice| config::SpiceConfig {
            port: u16::try_from(spice.port).ok(),
            address: None,
            streaming_video: spice.streaming_video.clone(),
            usb_redirects: u32::try_from(spice.usb_redirects).ok(),
        }),
    }
}
