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
mod instance;
mod networks;
mod path_failure;
mod pci_slots;
mod record;
mod recorded_disks;
mod recorded_imports;
mod screen;

pub use cd_image::find_cd_image;
pub use directory_lock::DirectoryLocks;
pub use dirs::{
    CONSOLE_SOCKET, Directories, Environment, GUEST_AGENT_SOCKET, SEED_IMAGE, TPM_STATE_FILE,
    VMOP_AGENT_SOCKET,
};
pub use display::{Certificate, password};
pub use drives::{Disk, DiskKind, HeldDevice, is_blank};
pub use firmware::FirmwareFiles;
pub use identity::record_machine_type;
#[cfg(test)]
pub use image_lookup::FindImage;
pub use image_lookup::{ImageLookup, is_reachable};
pub use instance::Instance;
#[cfg(test)]
pub use pci_slots::testing;
pub use pci_slots::{PciSlots, StandardDevice};
pub use record::Screen;
pub use recorded_disks::disk_name;
pub use recorded_imports::{Contents, ImportDecision, ImportTarget};

use crate::api::runner::config::CloudInit;
use crate::api::runner::identity::PodIdentity;
use crate::api::runner::outcome::EndReason;
use crate::runner::failure::{Failure, Problem};
use crate::runner::spec::{Cd, Spec};
use record::Record;
use recorded_disks::DiskChanges;
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
    /// The identity of the VM for cloud-init.
    pub instance: Instance,
    /// PCI slots of the devices.
    pub pci_slots: PciSlots,
    /// Whether the VM has an emulated IOMMU, as VMs of the Java VM-Operator have.
    pub iommu: bool,
    /// Whether the VM has a device by which the guest reports a crash.
    pub panic_device: bool,
    /// GUID of the device vmgenid, by which the guest detects that it is a copy. None without the
    /// device.
    pub generation_id: Option<String>,
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
    /// Values in the environment of the pod.
    pub pod: &'a PodIdentity,
    /// Content of the cloud-init seed, if there is one.
    pub cloud_init: Option<&'a CloudInit>,
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
    let mut record =
        identity::read_or_create_record(&dirs.data, inputs.pod.used_runner_data.as_deref())?;
    let before = record.clone();
    let uuid = identity::uuid(&dirs.data, spec.vm.uuid.as_deref())?;
    let mut warnings = Vec::new();
    check_disks(&mut record, &spec, dirs, inputs.pod)?;
    let firmware = firmware::install(spec.vm.firmware, Path::new("/"), &dirs.data, &mut warnings)?;
    let (disks, held_devices) = disks(&mut record, &spec)?;
    let cds = drives::cds(&spec.cds, inputs.images, &mut warnings);
    let is_first = record.hardware.is_first();
    let (networks, macs) = networks(&mut record, &spec)?;
    let vm = inputs.uid.filter(|_| is_first).unwrap_or(&uuid);
    let generated = inputs.pod.generated_instance.as_ref();
    let instance = Instance::select(&mut record, inputs.cloud_init, generated, vm);
    let pci_slots = assign_pci_slots(&mut record, &networks, &disks, inputs.seed.is_some())?;
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
        instance,
        pci_slots,
        iommu: is_first,
        panic_device: !is_first,
        generation_id: record.generation_id.filter(|_| !is_first),
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

/// Compares the disks with those of earlier starts. A copy of a VM gets a new generation ID. The
/// start is refused if an image file is lost, before any file is created.
fn check_disks(
    record: &mut Record,
    spec: &Spec,
    dirs: &Directories,
    pod: &PodIdentity,
) -> Result<(), Failure> {
    let exists = |path: &Path| path.try_exists().unwrap_or(true);
    // A disk that cannot be read is refused later.
    let is_blank = |path: &Path| is_blank(path).unwrap_or(false);
    let DiskChanges { is_copy, lost } =
        recorded_disks::compare(record, &spec.disks, &pod.claims, exists, is_blank);
    if !record.hardware.is_first() && (is_copy || record.generation_id.is_none()) {
        record.generation_id = Some(identity::random_uuid()?);
    }
    match lost {
        None => Ok(()),
        Some(failure) => {
            record.write(&dirs.data)?;
            Err(failure)
        }
    }
}

/// The disks with their serial numbers, and the block devices that are held open. Missing image
/// files are created.
fn disks(record: &mut Record, spec: &Spec) -> Result<(Vec<Disk>, Vec<HeldDevice>), Failure> {
    let (mut disks, held_devices) = drives::disks(&spec.disks)?;
    recorded_disks::record_use(record, &spec.disks);
    for disk in &mut disks {
        disk.serial = recorded_disks::serial(record, &disk.path);
    }
    Ok((disks, held_devices))
}

/// The names of the networks by which slots are recorded, and their MAC addresses.
fn networks(record: &mut Record, spec: &Spec) -> Result<(Vec<String>, Vec<String>), Failure> {
    let networks = &spec.vm.network;
    networks::adopt_keys(record, networks);
    let macs = networks::macs(record, networks, identity::random_uuid)?;
    // Slots of VMs of the Java VM-Operator follow the MAC addresses.
    let names = if record.hardware.is_first() {
        macs.clone()
    } else {
        networks::keys(networks)
    };
    Ok((names, macs))
}

fn assign_pci_slots(
    record: &mut Record,
    networks: &[String],
    disks: &[Disk],
    seed: bool,
) -> Result<PciSlots, Failure> {
    let (is_legacy, has_spare_ports) = (record.is_legacy, !record.hardware.is_first());
    let first = || {
        let mut slots = pci_slots::initial_slots(is_legacy, !networks.is_empty());
        if has_spare_ports {
            pci_slots::reserve_spare_ports(&mut slots);
        }
        slots
    };
    let disks: Vec<String> = disks
        .iter()
        .map(|disk| disk.path.display().to_string())
        .collect();
    let devices = pci_slots::SlotOwners {
        networks,
        disks: &disks,
        seed,
    };
    pci_slots::assign(record.pci.get_or_insert_with(first), &devices)
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

fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// The umask for sockets, seed, firmware variables and disk images. Others have no access. A
/// change of the setting `deviceAccess` changes the user of the VM from root, but not its group. So root gives access to the group.
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
    use crate::api::vm::conditions::ConditionReason;

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
}
