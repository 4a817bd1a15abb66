//! (io) The machine, with every path and default settled: all that QEMU's command line is made of.
//!
//! In: a checked [`Spec`], the host's directories. Out: [`Machine`], and warnings about what it does without. What
//! always holds: whatever this leaves in the data directory is whole, and is the same at the next start.

mod dirs;
mod drives;
mod durable;
mod firmware;
mod identity;

pub use dirs::{Directories, Environment};
pub use drives::{Disk, DiskKind};
pub use firmware::FirmwareFiles;
pub use identity::record_machine_type;

use super::failure::Failure;
use super::spec::{Accelerator, Cd, Spec};
use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};
use std::fs::File;
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
    /// Whether the display asks for a password.
    pub ticketing: bool,
}

/// What runs the guest's instructions, after a look at the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceleration {
    /// The processor.
    Kvm,
    /// Emulation, because it was asked for.
    Tcg,
    /// Emulation, because KVM cannot be used.
    TcgForWantOfKvm,
    /// Whatever QEMU takes by itself.
    Unset,
}

/// A machine and what must be kept while it runs.
#[derive(Debug)]
pub struct Resolved {
    /// The machine.
    pub machine: Machine,
    /// Block devices, opened so that no second machine of this node opens them.
    pub held: Vec<File>,
    /// What the machine does without.
    pub warnings: Vec<String>,
}

/// Settles everything. `uid` is that of the VM's object, if there is one.
pub fn resolve(spec: Spec, dirs: &Directories, uid: Option<&str>, ticketing: bool) -> Result<Resolved, Failure> {
    let identity = identity::settle(&dirs.data, spec.uuid.as_deref())?;
    let firmware = firmware::settle(spec.firmware, &dirs.data)?;
    let acceleration = acceleration(spec.accelerator)?;
    let mut warnings = Vec::new();
    let (disks, held) = drives::disks(&spec.disks)?;
    let cds = drives::cds(&spec.cds, &mut warnings);
    let mac = |(n, network): (usize, &super::spec::Network)| {
        network.mac.clone().unwrap_or_else(|| derived_mac(uid.unwrap_or(&identity.uuid), n))
    };
    let machine = Machine {
        uuid: identity.uuid.clone(),
        machine_type: identity.machine_type,
        acceleration,
        cpu_model: cpu_model(&spec.cpu_model, acceleration),
        firmware,
        macs: spec.networks.iter().enumerate().map(mac).collect(),
        cds,
        disks,
        seed: None,
        ticketing,
        spec,
    };
    Ok(Resolved { machine, held, warnings })
}

fn acceleration(wanted: Accelerator) -> Result<Acceleration, Failure> {
    let kvm = || rustix::fs::open("/dev/kvm", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    match wanted {
        Accelerator::Tcg => Ok(Acceleration::Tcg),
        Accelerator::Unset => Ok(Acceleration::Unset),
        Accelerator::Auto => Ok(kvm().map_or(Acceleration::TcgForWantOfKvm, |_| Acceleration::Kvm)),
        Accelerator::Kvm => match kvm() {
            Ok(_) => Ok(Acceleration::Kvm),
            Err(error) => Err(Failure::data(format!(
                "vm.accelerator is kvm, but /dev/kvm cannot be opened by uid {}: {error}; give the pod the device, or \
                 use auto or tcg",
                uid()
            ))),
        },
    }
}

/// The processor's own model exists only where the processor runs the guest.
fn cpu_model(wanted: &str, acceleration: Acceleration) -> String {
    let (model, features) = wanted.split_once(',').map_or((wanted, None), |(model, features)| (model, Some(features)));
    let emulated = matches!(acceleration, Acceleration::Tcg | Acceleration::TcgForWantOfKvm);
    let model = if model == "host" && emulated { "max" } else { model };
    features.map_or_else(|| model.to_owned(), |features| format!("{model},{features}"))
}

/// A locally administered address that is the same at each start and differs between VMs.
fn derived_mac(seed: &str, n: usize) -> String {
    let hash = Sha256::digest(format!("{seed}/{n}").as_bytes());
    let octets: Vec<String> = hash.iter().take(3).map(|octet| format!("{octet:02x}")).collect();
    format!("52:54:00:{}", octets.join(":"))
}

/// The user that this process runs as, for messages.
fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// Whether this process may read and write there.
fn writable(dir: &Path) -> Result<(), rustix::io::Errno> {
    use rustix::fs::Access;
    rustix::fs::access(dir, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn under_emulation_the_hosts_model_is_the_maximum() {
        assert_eq!(cpu_model("host", Acceleration::Tcg), "max");
        assert_eq!(cpu_model("host,-svm", Acceleration::TcgForWantOfKvm), "max,-svm");
        assert_eq!(cpu_model("host", Acceleration::Kvm), "host");
        assert_eq!(cpu_model("EPYC", Acceleration::Tcg), "EPYC");
    }

    #[test]
    fn a_derived_address_is_stable_and_different_for_each_interface() {
        let mac = derived_mac("uid", 0);
        assert_eq!(mac, derived_mac("uid", 0));
        assert!(mac.starts_with("52:54:00:") && mac.len() == 17, "{mac}");
        assert_ne!(mac, derived_mac("uid", 1));
        assert_ne!(mac, derived_mac("other", 0));
    }
}
