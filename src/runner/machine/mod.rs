//! (io) The VM with all paths and defaults. QEMU's command line is built from it.
//!
//! Input: a checked [`Spec`] and the VM's directories. Output: [`Machine`] and warnings about
//! missing parts. Invariant: each file in the data directory is written completely, and the next
//! start finds the same values.

mod atomic_file;
mod cd_image;
mod directory_lock;
mod dirs;
mod display;
mod drives;
mod firmware;
mod identity;
mod image_lookup;
mod path_failure;
mod pci_slots;
mod record;
mod screen;

pub use cd_image::find_cd_image;
pub use directory_lock::DirectoryLocks;
pub use dirs::{
    CONSOLE_SOCKET, Directories, Environment, GUEST_AGENT_SOCKET, SEED_IMAGE, TPM_STATE_FILE,
    VMOP_AGENT_SOCKET,
};
pub use display::{Certificate, password};
pub use drives::{Disk, DiskKind, HeldDevice};
pub use firmware::FirmwareFiles;
pub use identity::record_machine_type;
#[cfg(test)]
pub use image_lookup::FindImage;
pub use image_lookup::{ImageLookup, is_reachable};
#[cfg(test)]
pub use pci_slots::testing;
pub use pci_slots::{PciSlots, StandardDevice};
pub use record::Screen;

use crate::api::runner::config::MacAddr;
use crate::api::runner::outcome::EndReason;
use crate::runner::failure::{Failure, Problem};
use crate::runner::spec::{Cd, NetworkConfig, Spec};
use record::Record;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// A VM that can be started.
#[derive(Debug)]
pub struct Machine {
    /// The checked configuration. The other fields replace their counterparts in it.
    pub spec: Spec,
    /// SMBIOS UUID.
    pub uuid: String,
    /// QEMU's machine type. At the first start this is the alias `q35`.
    pub machine_type: String,
    pub acceleration: Acceleration,
    pub cpu_model: String,
    /// Firmware files. None for BIOS, which QEMU finds itself.
    pub firmware: Option<FirmwareFiles>,
    /// MAC addresses, one for each network.
    pub macs: Vec<String>,
    /// CD drives. A drive without its image is empty.
    pub cds: Vec<Cd>,
    pub disks: Vec<Disk>,
    /// Image with the cloud-init seed.
    pub seed: Option<PathBuf>,
    /// PCI slots of the devices.
    pub pci_slots: PciSlots,
    /// The graphics device.
    pub screen: Screen,
    /// Whether the display requires a password.
    pub ticketing: bool,
    /// The certificate of an encrypted display.
    pub certificate: Option<Certificate>,
}

/// The accelerator that executes the guest's instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acceleration {
    /// KVM works.
    Kvm,
    /// Emulation is configured.
    Tcg,
    /// Emulation, because KVM does not work, with the reason.
    TcgFallback(Problem),
    /// QEMU selects the accelerator.
    Unset,
}

impl Acceleration {
    /// QEMU's name of the accelerator, or None if QEMU selects it.
    pub fn name(&self) -> Option<&'static str> {
        match self {
            Self::Kvm => Some("kvm"),
            Self::Tcg | Self::TcgFallback(_) => Some("tcg"),
            Self::Unset => None,
        }
    }

    /// Whether QEMU emulates the guest's instructions.
    pub fn is_emulation(&self) -> bool {
        matches!(self, Self::Tcg | Self::TcgFallback(_))
    }
}

/// A VM and resources that must be held while it runs.
#[derive(Debug)]
pub struct PreparedMachine {
    pub machine: Machine,
    /// Block devices, opened exclusively.
    pub held_devices: Vec<HeldDevice>,
    /// Warnings about missing or replaced parts.
    pub warnings: Vec<String>,
}

/// Values besides the VM's configuration.
#[derive(Clone, Debug)]
pub struct MachineInputs<'a> {
    /// UID of the VirtualMachine, if there is one.
    pub uid: Option<&'a str>,
    pub acceleration: Acceleration,
    /// Whether the display requires a password.
    pub ticketing: bool,
    /// The certificate of an encrypted display.
    pub certificate: Option<Certificate>,
    /// For each CD drive with a configured image, the result of the lookup.
    pub images: Vec<Option<Result<PathBuf, Problem>>>,
    /// Path of the cloud-init seed, if there is one.
    pub seed: Option<PathBuf>,
}

/// Determines all values of the VM, and writes those that later starts need.
pub fn prepare(
    spec: Spec,
    dirs: &Directories,
    inputs: MachineInputs,
) -> Result<PreparedMachine, Failure> {
    let mut record = identity::read_or_create_record(&dirs.data)?;
    let before = record.clone();
    let uuid = identity::uuid(&dirs.data, spec.vm.uuid.as_deref())?;
    let mut warnings = Vec::new();
    let firmware = firmware::install(spec.vm.firmware, Path::new("/"), &dirs.data, &mut warnings)?;
    let (disks, held_devices) = drives::disks(&spec.disks)?;
    let cds = drives::cds(&spec.cds, inputs.images, &mut warnings);
    let macs = macs(
        &spec.vm.network,
        inputs.uid.unwrap_or(&uuid),
        record.is_legacy,
    );
    let pci_slots = assign_pci_slots(&mut record, &macs, &disks, inputs.seed.is_some())?;
    let screen = screen::select(
        &mut record,
        &inputs.acceleration,
        spec.vm.display.outputs,
        &mut warnings,
    );
    if record != before {
        record.write(&dirs.data)?;
    }
    let machine = Machine {
        uuid,
        machine_type: record.machine_type,
        cpu_model: cpu_model(&spec.vm.cpu_model, &inputs.acceleration),
        acceleration: inputs.acceleration,
        firmware,
        macs,
        cds,
        disks,
        seed: inputs.seed,
        pci_slots,
        screen,
        ticketing: inputs.ticketing,
        certificate: inputs.certificate,
        spec,
    };
    Ok(PreparedMachine {
        machine,
        held_devices,
        warnings,
    })
}

fn assign_pci_slots(
    record: &mut Record,
    macs: &[String],
    disks: &[Disk],
    seed: bool,
) -> Result<PciSlots, Failure> {
    let first = pci_slots::initial_slots(record.is_legacy, !macs.is_empty());
    let disks: Vec<String> = disks
        .iter()
        .map(|disk| disk.path.display().to_string())
        .collect();
    let devices = pci_slots::SlotOwners {
        macs,
        disks: &disks,
        seed,
    };
    pci_slots::assign(record.pci.get_or_insert(first), &devices)
        .map_err(|invalid| Failure::new(EndReason::InvalidConfig, invalid.to_string()))
}

/// The CPU model for QEMU. The model `host` requires KVM, so an emulated VM gets `max`.
pub fn cpu_model(wanted: &str, acceleration: &Acceleration) -> String {
    let (model, features) = wanted
        .split_once(',')
        .map_or((wanted, None), |(model, features)| (model, Some(features)));
    let model = if model == "host" && acceleration.is_emulation() {
        "max"
    } else {
        model
    };
    features.map_or_else(
        || model.to_owned(),
        |features| format!("{model},{features}"),
    )
}

/// A MAC address for each interface: the configured one, or a stable one. The Java VM-Operator left
/// the choice to QEMU, which counts from the same address in every VM. Its guests may identify the
/// interface by that address, so they keep it.
fn macs(networks: &[NetworkConfig], seed: &str, is_legacy: bool) -> Vec<String> {
    let configured: Vec<String> = networks
        .iter()
        .filter_map(|network| network.mac.as_ref())
        .map(MacAddr::normalized)
        .collect();
    let mut legacy_addresses = (0x56u8..=0xff)
        .map(|n| format!("52:54:00:12:34:{n:02x}"))
        .filter(|mac| !configured.contains(mac));
    let mac = |(n, network): (usize, &NetworkConfig)| match &network.mac {
        Some(mac) => mac.normalized(),
        None => legacy_addresses
            .next()
            .filter(|_| is_legacy)
            .unwrap_or_else(|| derived_mac(seed, n)),
    };
    networks.iter().enumerate().map(mac).collect()
}

/// A locally administered MAC address that is stable and differs between VMs.
fn derived_mac(seed: &str, n: usize) -> String {
    let hash = Sha256::digest(format!("{seed}/{n}").as_bytes());
    let octets: Vec<String> = hash
        .iter()
        .take(3)
        .map(|octet| format!("{octet:02x}"))
        .collect();
    format!("52:54:00:{}", octets.join(":"))
}

fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// The umask for sockets, seed, firmware variables and disk images. Others have no access. A VM
/// that runs as root may later run as its group (setting `deviceAccess`), so root leaves access to
/// that group.
pub fn umask_for_files() -> u32 {
    use rustix::process::{getgid, getuid};
    if getuid().is_root() && !getgid().is_root() {
        0o007
    } else {
        0o077
    }
}

/// Whether this process may read and write in that directory.
fn check_writable(dir: &Path) -> Result<(), rustix::io::Errno> {
    use rustix::fs::Access;
    rustix::fs::access(dir, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::conditions::ConditionReason;

    #[test]
    fn under_emulation_the_hosts_model_is_the_maximum() {
        assert_eq!(cpu_model("host", &Acceleration::Tcg), "max");
        assert_eq!(
            cpu_model(
                "host,-svm",
                &Acceleration::TcgFallback(Problem::new(ConditionReason::KvmNotAvailable, ""))
            ),
            "max,-svm"
        );
        assert_eq!(cpu_model("host", &Acceleration::Kvm), "host");
        assert_eq!(cpu_model("EPYC", &Acceleration::Tcg), "EPYC");
    }

    #[test]
    fn a_derived_address_is_stable_and_different_for_each_interface() {
        let mac = derived_mac("uid", 0);
        assert_eq!(mac, derived_mac("uid", 0));
        assert!(mac.starts_with("52:54:00:") && mac.len() == 17, "{mac}");
        assert_ne!(mac, derived_mac("uid", 1));
        assert_ne!(mac, derived_mac("other", 0));
    }

    #[test]
    fn a_machine_of_the_reference_keeps_the_addresses_that_qemu_gave_it() {
        let network = |mac: Option<&str>| NetworkConfig {
            mac: mac.map(|mac| mac.to_owned().try_into().unwrap()),
            ..NetworkConfig::default()
        };
        let networks = [
            network(None),
            network(Some("52:54:00:12:34:57")),
            network(None),
        ];
        let expected = [
            "52:54:00:12:34:56",
            "52:54:00:12:34:57",
            "52:54:00:12:34:58",
        ];
        assert_eq!(macs(&networks, "uid", true), expected);
        assert_eq!(macs(&networks, "uid", false)[0], derived_mac("uid", 0));
    }
}
