//! (io) The machine, with every path and default settled: all that QEMU's command line is made of.
//!
//! In: a checked [`Spec`], the host's directories. Out: [`Machine`], and warnings about what it does without. What
//! always holds: whatever this leaves in the data directory is whole, and is the same at the next start.

mod access;
mod claim;
mod dirs;
mod display;
mod drives;
mod durable;
mod firmware;
mod identity;
mod layout;
mod looks;
mod media;
mod record;
mod screen;

pub use claim::Claims;
pub use dirs::{
    CONSOLE_SOCKET, Directories, Environment, GUEST_AGENT_SOCKET, KVM_PROBE_IMAGE, SEED_IMAGE,
    TPM_STATE_FILE, VMOP_AGENT_SOCKET,
};
pub use display::{Certificate, password};
pub use drives::{Disk, DiskKind, Held};
pub use firmware::FirmwareFiles;
pub use identity::record_machine_type;
#[cfg(test)]
pub use layout::testing;
pub use layout::{Fixed, Layout};
#[cfg(test)]
pub use looks::Find;
pub use looks::{Looks, answers};
pub use media::image;
pub use record::Screen;

use crate::api::runner::config::MacAddr;
use crate::api::runner::outcome::EndReason;
use crate::runner::failure::Failure;
use crate::runner::problem::Problem;
use crate::runner::resolved::{Cd, NetworkConfig, Spec};
use record::Record;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// A machine that can be started.
#[derive(Debug)]
pub struct Machine {
    /// The checked configuration; what is settled below replaces its counterpart there.
    pub spec: Spec,
    /// SMBIOS UUID.
    pub uuid: String,
    /// QEMU's machine type, or the alias `q35` at the first start.
    pub machine_type: String,
    /// What runs the guest's instructions.
    pub acceleration: Acceleration,
    /// CPU model.
    pub cpu_model: String,
    /// Firmware; none for BIOS, which QEMU finds itself.
    pub firmware: Option<FirmwareFiles>,
    /// MAC addresses, one for each network.
    pub macs: Vec<String>,
    /// CD drives; one whose image is not there is empty.
    pub cds: Vec<Cd>,
    /// Disks.
    pub disks: Vec<Disk>,
    /// Image with the seed for cloud-init.
    pub seed: Option<PathBuf>,
    /// Where the devices are on the PCI bus.
    pub layout: Layout,
    /// What shows the guest's picture.
    pub screen: Screen,
    /// Whether the display asks for a password.
    pub ticketing: bool,
    /// With what the display is encrypted; without, it is not.
    pub certificate: Option<Certificate>,
}

/// What runs the guest's instructions, after a look at the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acceleration {
    /// The processor.
    Kvm,
    /// Emulation, because it was asked for.
    Tcg,
    /// Emulation, because KVM cannot be used, and why.
    TcgForWantOfKvm(Problem),
    /// Whatever QEMU takes by itself.
    Unset,
}

impl Acceleration {
    /// QEMU's name for it; none where QEMU chooses.
    pub fn name(&self) -> Option<&'static str> {
        match self {
            Self::Kvm => Some("kvm"),
            Self::Tcg | Self::TcgForWantOfKvm(_) => Some("tcg"),
            Self::Unset => None,
        }
    }

    /// Whether QEMU runs the guest's instructions.
    pub fn is_emulation(&self) -> bool {
        matches!(self, Self::Tcg | Self::TcgForWantOfKvm(_))
    }
}

/// A machine and what must be kept while it runs.
#[derive(Debug)]
pub struct Resolved {
    /// The machine.
    pub machine: Machine,
    /// Block devices, opened so that no second machine of this node opens them.
    pub held: Vec<Held>,
    /// What the machine does without.
    pub warnings: Vec<String>,
}

/// What is known besides the machine's own configuration.
#[derive(Clone, Debug)]
pub struct Around<'a> {
    /// UID of the VM's object, if there is one.
    pub uid: Option<&'a str>,
    /// What runs the guest's instructions.
    pub acceleration: Acceleration,
    /// Whether the display asks for a password.
    pub ticketing: bool,
    /// With what the display is encrypted.
    pub certificate: Option<Certificate>,
    /// What a look for the image of each CD drive has given, where one is configured.
    pub images: Vec<Option<Result<PathBuf, Problem>>>,
    /// Path of the seed for cloud-init, if there is to be one.
    pub seed: Option<PathBuf>,
}

/// Settles everything.
pub fn resolve(spec: Spec, dirs: &Directories, around: Around) -> Result<Resolved, Failure> {
    let mut record = identity::settle(&dirs.data)?;
    let before = record.clone();
    let uuid = identity::uuid(&dirs.data, spec.vm.uuid.as_deref())?;
    let mut warnings = Vec::new();
    let firmware = firmware::settle(spec.vm.firmware, Path::new("/"), &dirs.data, &mut warnings)?;
    let (disks, held) = drives::disks(&spec.disks)?;
    let cds = drives::cds(&spec.cds, around.images, &mut warnings);
    let macs = macs(
        &spec.vm.network,
        around.uid.unwrap_or(&uuid),
        record.of_reference,
    );
    let layout = settle_layout(&mut record, &macs, &disks, around.seed.is_some())?;
    let screen = screen::settle(
        &mut record,
        before.pci.is_some(),
        &around.acceleration,
        spec.vm.display.outputs,
        &mut warnings,
    );
    if record != before {
        record.write(&dirs.data)?;
    }
    let machine = Machine {
        uuid,
        machine_type: record.machine_type,
        cpu_model: cpu_model(&spec.vm.cpu_model, &around.acceleration),
        acceleration: around.acceleration,
        firmware,
        macs,
        cds,
        disks,
        seed: around.seed,
        layout,
        screen,
        ticketing: around.ticketing,
        certificate: around.certificate,
        spec,
    };
    Ok(Resolved {
        machine,
        held,
        warnings,
    })
}

fn settle_layout(
    record: &mut Record,
    macs: &[String],
    disks: &[Disk],
    seed: bool,
) -> Result<Layout, Failure> {
    let first = layout::first(record.of_reference, !macs.is_empty());
    let disks: Vec<String> = disks
        .iter()
        .map(|disk| disk.path.display().to_string())
        .collect();
    let devices = layout::Devices {
        macs,
        disks: &disks,
        seed,
    };
    layout::settle(record.pci.get_or_insert(first), &devices)
        .map_err(|invalid| Failure::new(EndReason::InvalidConfig, invalid.to_string()))
}

/// The processor's own model exists only where the processor runs the guest.
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

/// An address for each interface: the configured one, else one that stays. The reference left that to QEMU, which
/// counts from the same address in every VM; a guest that was installed with it may know its interface by it.
fn macs(networks: &[NetworkConfig], seed: &str, of_reference: bool) -> Vec<String> {
    let configured: Vec<String> = networks
        .iter()
        .filter_map(|network| network.mac.as_ref())
        .map(MacAddr::normalized)
        .collect();
    let mut of_qemu = (0x56u8..=0xff)
        .map(|n| format!("52:54:00:12:34:{n:02x}"))
        .filter(|mac| !configured.contains(mac));
    let mac = |(n, network): (usize, &NetworkConfig)| match &network.mac {
        Some(mac) => mac.normalized(),
        None => of_qemu
            .next()
            .filter(|_| of_reference)
            .unwrap_or_else(|| derived_mac(seed, n)),
    };
    networks.iter().enumerate().map(mac).collect()
}

/// A locally administered address that is the same at each start and differs between VMs.
fn derived_mac(seed: &str, n: usize) -> String {
    let hash = Sha256::digest(format!("{seed}/{n}").as_bytes());
    let octets: Vec<String> = hash
        .iter()
        .take(3)
        .map(|octet| format!("{octet:02x}"))
        .collect();
    format!("52:54:00:{}", octets.join(":"))
}

/// The user that this process runs as, for messages.
fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// What others may not do with sockets, seed, firmware variables and disk images, as a mode: nothing. Root in a pod has the
/// group that the VM has where it does not run as root (setting `deviceAccess`), to which it leaves what it writes.
pub fn kept_from_others() -> u32 {
    use rustix::process::{getgid, getuid};
    if getuid().is_root() && !getgid().is_root() {
        0o007
    } else {
        0o077
    }
}

/// Whether this process may read and write there.
fn writable(dir: &Path) -> Result<(), rustix::io::Errno> {
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
                &Acceleration::TcgForWantOfKvm(Problem::new(ConditionReason::KvmNotAvailable, ""))
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
