//! (pure) The configuration with every value checked and typed, and every default that needs no look at the host.
//!
//! In: [`RunnerConfig`]. Out: [`Spec`], or the first value that cannot be used. A start and a reload go through the
//! same check, so that nothing reaches a running machine that a start would refuse.

mod check;
mod clashes;
mod devices;
mod memory;
mod refused;

pub use devices::{Backend, Cd, Disk, Forward, Network, Source, Spice};
pub use memory::Memory;
pub use refused::explain;

use super::failure::Invalid;
use crate::api::quantity::Bytes;
use crate::api::runner_config::{RunnerConfig, VmConfig};
pub use crate::api::virtual_machine::Firmware;
use std::path::PathBuf;
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;

/// A checked configuration of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Name of the VM.
    pub name: String,
    /// SMBIOS UUID, if it is given.
    pub uuid: Option<String>,
    /// Whether the machine has a TPM 2.0.
    pub tpm: bool,
    /// Whether the firmware shows its boot menu.
    pub boot_menu: bool,
    /// Kind of firmware.
    pub firmware: Firmware,
    /// Size of the memory; whole MiB, because QEMU refuses anything else.
    pub ram: Bytes,
    /// What the memory is made of.
    pub memory: Memory,
    /// CPU model, as QEMU names it.
    pub cpu_model: String,
    /// How many CPUs the machine can have.
    pub maximum_cpus: u32,
    /// Given parts of the CPU topology.
    pub topology: Topology,
    /// What runs the guest's instructions.
    pub accelerator: Accelerator,
    /// Start of the clock.
    pub rtc_base: String,
    /// What drives the clock.
    pub rtc_clock: String,
    /// Network interfaces.
    pub networks: Vec<Network>,
    /// CD drives.
    pub cds: Vec<Cd>,
    /// Disks.
    pub disks: Vec<Disk>,
    /// Number of screens.
    pub outputs: u32,
    /// SPICE server, if there is one.
    pub spice: Option<Spice>,
    /// What can change while the guest runs.
    pub live: Live,
}

/// What a running machine follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// How many CPUs the guest should have.
    pub cpus: u32,
    /// What the balloon leaves to the guest, if it is given.
    pub ram: Option<Bytes>,
    /// How long the guest may take to shut down.
    pub powerdown_timeout: Duration,
    /// User whom the agent in the guest logs in.
    pub logged_in_user: Option<String>,
    /// The image in each CD drive.
    pub media: Vec<Option<PathBuf>>,
}

/// Parts of the CPU topology; 0 where QEMU decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Topology {
    pub sockets: u32,
    pub dies: u32,
    pub cores: u32,
    pub threads: u32,
}

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// KVM where it works, else emulation.
    Auto,
    /// KVM or nothing.
    Kvm,
    /// Emulation.
    Tcg,
    /// Whatever QEMU takes by itself.
    Unset,
}

/// Time for a guest to shut down where the configuration gives none, and the longest: a year.
const POWERDOWN_TIMEOUT: (u64, u64) = (900, 365 * 24 * 3600);
const MIB: u64 = 1 << 20;
/// So much memory no program can have: addresses of x86 programs have 47 bits.
const TOO_MUCH_RAM: u64 = 1 << 47;

impl Spec {
    /// Checks the configuration.
    pub fn from_config(config: &RunnerConfig) -> Result<Self, Invalid> {
        let vm = config.vm.as_ref().ok_or_else(|| Invalid::new("vm", "missing; it describes the machine"))?;
        log_level(config)?;
        let ram = ram(vm)?;
        let maximum_cpus = maximum_cpus(vm)?;
        let drives = vm.drives.as_deref().unwrap_or_default();
        clashes::boot_order(drives)?;
        let (cds, disks) = devices::drives(drives)?;
        let display = vm.display.clone().unwrap_or_default();
        let networks = devices::networks(vm.network.as_deref())?;
        let spice = display.spice.as_ref().map(devices::spice).transpose()?;
        clashes::ports(&networks, spice.as_ref())?;
        Ok(Self {
            name: check::word("vm.name", &vm.name, "-_.")?,
            uuid: vm.uuid.as_ref().map(|uuid| check::uuid("vm.uuid", uuid)).transpose()?,
            tpm: vm.use_tpm,
            boot_menu: vm.boot_menu,
            firmware: firmware(vm.firmware.as_deref())?,
            ram,
            memory: memory::memory(vm, ram)?,
            cpu_model: check::word("vm.cpuModel", vm.cpu_model.as_deref().unwrap_or("host"), check::CPU_MODEL)?,
            maximum_cpus,
            topology: topology(vm),
            accelerator: accelerator(vm.accelerator.as_deref())?,
            rtc_base: check::rtc_base("vm.rtcBase", vm.rtc_base.as_deref().unwrap_or("utc"))?,
            rtc_clock: check::one_of("vm.rtcClock", vm.rtc_clock.as_deref().unwrap_or("rt"), &["rt", "host", "vm"])?,
            networks,
            outputs: devices::outputs(display.outputs)?,
            spice,
            live: Live {
                cpus: vm.current_cpus.unwrap_or(1),
                ram: current_ram(vm, ram)?,
                powerdown_timeout: powerdown_timeout(vm)?,
                media: cds.iter().map(|cd| cd.file.clone()).collect(),
                logged_in_user: user(display.logged_in_user)?,
            },
            cds,
            disks,
        })
    }

    /// Whether a running machine of this configuration becomes one of the other without a new start.
    pub fn differs_in_live_only(&self, other: &Self) -> bool {
        // A number of CPUs beyond the maximum raises it; that is told as a matter of the number.
        let raised = other.live.cpus > self.maximum_cpus;
        let maximum_cpus = if raised { self.maximum_cpus } else { other.maximum_cpus };
        // The drives themselves stay; what is in them may change.
        let same_drives = self.cds.len() == other.cds.len()
            && self.cds.iter().zip(&other.cds).all(|(one, two)| one.bootindex == two.bootindex);
        let cds = if same_drives { self.cds.clone() } else { other.cds.clone() };
        // A disk grows where it is.
        let sized = |(one, two): (&Disk, &Disk)| Disk { size: one.size, ..two.clone() };
        let disks = match self.disks.len() == other.disks.len() {
            true => self.disks.iter().zip(&other.disks).map(sized).collect(),
            false => other.disks.clone(),
        };
        *self == Self { live: self.live.clone(), maximum_cpus, cds, disks, ..other.clone() }
    }
}

/// How much is logged, if it is given: what `error`, `warn`, `info`, `debug` and `trace` stand for.
pub fn log_level(config: &RunnerConfig) -> Result<Option<LevelFilter>, Invalid> {
    let level =
        |text: &String| text.parse().map_err(|_| Invalid::value("logLevel", text, "error, warn, info, debug or trace"));
    config.log_level.as_ref().map(level).transpose()
}

/// What a user should know of values that are taken otherwise than they stand there.
pub fn remarks(config: &RunnerConfig, spec: &Spec) -> Vec<String> {
    let current = config.vm.as_ref().and_then(|vm| vm.current_ram.as_deref()?.parse::<Bytes>().ok());
    let more = |current: Bytes| {
        let maximum = spec.ram;
        format!(
            "vm.currentRam: {current} is more than the machine has, which is {maximum}; raise vm.maximumRam to give it more"
        )
    };
    current.filter(|current| *current > spec.ram && !is_given_as_much(config, *current)).map(more).into_iter().collect()
}

/// Whether that is what the memory was before it became whole MiB.
fn is_given_as_much(config: &RunnerConfig, bytes: Bytes) -> bool {
    let maximum = config.vm.as_ref().and_then(|vm| vm.maximum_ram.as_deref()?.parse::<Bytes>().ok());
    maximum.is_some_and(|maximum| bytes <= maximum)
}

/// A name that fits into a line, which is how the agent is told. Whether there is such a user is the agent's matter.
fn user(name: Option<String>) -> Result<Option<String>, Invalid> {
    match name.filter(|name| !name.trim().is_empty()) {
        Some(name) if name.contains(|c: char| c.is_ascii_control()) => {
            Err(Invalid::value("vm.display.loggedInUser", &name, "a name without line ends"))
        }
        name => Ok(name),
    }
}

fn size(key: &str, text: &str) -> Result<Bytes, Invalid> {
    text.parse().map_err(|error: crate::api::quantity::SizeError| Invalid::new(key, error.to_string()))
}

fn ram(vm: &VmConfig) -> Result<Bytes, Invalid> {
    let key = "vm.maximumRam";
    let bytes = size(key, vm.maximum_ram.as_deref().unwrap_or("1 GiB"))?.0;
    // Downwards: a limit of the pod that was computed from the same text still holds.
    match bytes / MIB * MIB {
        0 => Err(Invalid::value(key, vm.maximum_ram.as_deref().unwrap_or_default(), "at least 1 MiB")),
        TOO_MUCH_RAM.. => Err(Invalid::value(
            key,
            vm.maximum_ram.as_deref().unwrap_or_default(),
            "what a node has, less than 128 TiB",
        )),
        whole => Ok(Bytes(whole)),
    }
}

/// The balloon's target. One above the maximum means all there is: who lowers the maximum need not know of it.
fn current_ram(vm: &VmConfig, maximum: Bytes) -> Result<Option<Bytes>, Invalid> {
    let key = "vm.currentRam";
    let Some(text) = &vm.current_ram else { return Ok(None) };
    match size(key, text)? {
        bytes if bytes.0 < MIB => Err(Invalid::value(key, text, "at least 1 MiB")),
        bytes => Ok(Some(bytes.min(maximum))),
    }
}

fn powerdown_timeout(vm: &VmConfig) -> Result<Duration, Invalid> {
    let (default, longest) = POWERDOWN_TIMEOUT;
    match vm.powerdown_timeout.unwrap_or(default) {
        seconds if seconds <= longest => Ok(Duration::from_secs(seconds)),
        seconds => {
            Err(Invalid::value("vm.powerdownTimeout", &seconds.to_string(), &format!("at most {longest} seconds")))
        }
    }
}

fn topology(vm: &VmConfig) -> Topology {
    Topology { sockets: vm.sockets, dies: vm.dies_per_socket, cores: vm.cores_per_die, threads: vm.threads_per_core }
}

/// The greatest of what is given. QEMU fills up missing parts of a topology, but only with whole numbers.
fn maximum_cpus(vm: &VmConfig) -> Result<u32, Invalid> {
    let Topology { sockets, dies, cores, threads } = topology(vm);
    let product = [sockets, dies, cores, threads].iter().try_fold(1u32, |all, n| all.checked_mul((*n).max(1)));
    let too_many = || Invalid::new("vm.sockets", "the topology has more CPUs than any machine");
    let product = product.filter(|n| *n <= 4096).ok_or_else(too_many)?;
    if vm.current_cpus == Some(0) {
        return Err(Invalid::value("vm.currentCpus", "0", "1 or more"));
    }
    let maximum = vm.maximum_cpus.unwrap_or(product).max(vm.current_cpus.unwrap_or(1)).max(1);
    if maximum > 4096 {
        return Err(Invalid::value("vm.maximumCpus", &maximum.to_string(), "at most 4096"));
    }
    let open = sockets == 0 || cores == 0 || threads == 0;
    if maximum == product || (open && maximum.is_multiple_of(product)) {
        return Ok(maximum);
    }
    let problem =
        format!("{maximum} CPUs do not fit the topology of {product}; make it a multiple, or drop the topology");
    Err(Invalid::new("vm.maximumCpus", problem))
}

fn firmware(name: Option<&str>) -> Result<Firmware, Invalid> {
    use Firmware::{Bios, Secure, Secure4m, Uefi, Uefi4m};
    let all = [Uefi, Uefi4m, Secure, Secure4m, Bios];
    let name = name.unwrap_or("uefi");
    let allowed = || all.map(Firmware::as_str).join(", ");
    all.into_iter().find(|f| f.as_str() == name).ok_or_else(|| Invalid::value("vm.firmware", name, &allowed()))
}

fn accelerator(name: Option<&str>) -> Result<Accelerator, Invalid> {
    match name.unwrap_or("auto") {
        "auto" => Ok(Accelerator::Auto),
        "kvm" => Ok(Accelerator::Kvm),
        "tcg" => Ok(Accelerator::Tcg),
        "none" => Ok(Accelerator::Unset),
        other => Err(Invalid::value("vm.accelerator", other, "auto, kvm, tcg or none")),
    }
}

#[cfg(test)]
mod tests;
