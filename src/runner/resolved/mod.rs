//! (pure) The configuration with every value checked, and what follows from several of its values.
//!
//! In: [`RunnerConfig`]. Out: [`Spec`], or the first value that cannot be used. A start and a reload go through the
//! same check, so that nothing reaches a running machine that a start would refuse.

mod check;

use crate::api::quantity::Bytes;
pub use crate::api::runner::config::{Accelerator, NetworkConfig, NetworkType};
use crate::api::runner::config::{DriveConfig, DriveType, RunnerConfig, VmConfig};
use crate::api::runner::outcome::{EndReason, Outcome};
pub use crate::api::vm::{Firmware, PageSize};
use crate::runner::failure::Invalid;
use std::path::PathBuf;
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;

/// A checked configuration of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The configuration, without what the other fields have of it.
    pub vm: VmConfig,
    /// Size of the memory; whole MiB, because QEMU refuses anything else.
    pub ram: Bytes,
    /// How many CPUs the machine can have.
    pub maximum_cpus: u32,
    /// CD drives.
    pub cds: Vec<Cd>,
    /// Disks.
    pub disks: Vec<Disk>,
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

/// A CD drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cd {
    /// The image, if one is in the drive.
    pub file: Option<PathBuf>,
    /// Place in the boot order.
    pub bootindex: Option<u32>,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// What it is made of.
    pub source: Source,
    /// Least size of an image file, which is made or enlarged to it.
    pub size: Option<Bytes>,
    /// Place in the boot order.
    pub bootindex: Option<u32>,
}

/// What a disk is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An image file.
    File(PathBuf),
    /// A block device.
    Device(PathBuf),
    /// One of both.
    Either(PathBuf),
}

impl Source {
    /// Its path.
    pub fn path(&self) -> &PathBuf {
        match self {
            Self::File(path) | Self::Device(path) | Self::Either(path) => path,
        }
    }
}

const MIB: u64 = 1 << 20;
/// What a disk's size is counted in.
const SECTOR: Bytes = Bytes(512);

impl Spec {
    /// Checks the configuration.
    pub fn from_config(config: &RunnerConfig) -> Result<Self, Invalid> {
        let mut vm = config
            .vm
            .clone()
            .ok_or_else(|| Invalid::new("vm", "missing; it describes the machine"))?;
        log_level(config)?;
        check::values(&vm)?;
        // Downwards: a limit of the pod that was computed from the same text still holds.
        let ram = Bytes(vm.maximum_ram.0 / MIB * MIB);
        vm.maximum_ram = ram;
        whole_pages(&vm)?;
        let maximum_cpus = maximum_cpus(&vm)?;
        vm.maximum_cpus = None;
        vm.uuid = vm.uuid.map(|uuid| uuid.to_ascii_lowercase());
        let (cds, disks) = drives(&std::mem::take(&mut vm.drives))?;
        let live = Live {
            cpus: vm.current_cpus.take().unwrap_or(1),
            // One above the maximum means all there is: who lowers the maximum need not know of it.
            ram: vm.current_ram.take().map(|current| current.min(ram)),
            powerdown_timeout: Duration::from_secs(std::mem::take(&mut vm.powerdown_timeout)),
            logged_in_user: vm
                .display
                .logged_in_user
                .take()
                .filter(|name| !name.trim().is_empty()),
            media: cds.iter().map(|cd| cd.file.clone()).collect(),
        };
        Ok(Self {
            vm,
            ram,
            maximum_cpus,
            cds,
            disks,
            live,
        })
    }

    /// Whether a running machine of this configuration becomes one of the other without a new start.
    pub fn differs_in_live_only(&self, other: &Self) -> bool {
        // A number of CPUs beyond the maximum raises it; that is told as a matter of the number.
        let raised = other.live.cpus > self.maximum_cpus;
        let maximum_cpus = if raised {
            self.maximum_cpus
        } else {
            other.maximum_cpus
        };
        // The drives themselves stay; what is in them may change.
        let same_drives = self.cds.len() == other.cds.len()
            && self
                .cds
                .iter()
                .zip(&other.cds)
                .all(|(one, two)| one.bootindex == two.bootindex);
        let cds = if same_drives {
            self.cds.clone()
        } else {
            other.cds.clone()
        };
        // A disk grows where it is.
        let sized = |(one, two): (&Disk, &Disk)| Disk {
            size: one.size,
            ..two.clone()
        };
        let disks = match self.disks.len() == other.disks.len() {
            true => self.disks.iter().zip(&other.disks).map(sized).collect(),
            false => other.disks.clone(),
        };
        *self
            == Self {
                live: self.live.clone(),
                maximum_cpus,
                cds,
                disks,
                ..other.clone()
            }
    }
}

/// How much is logged, if it is given: what `error`, `warn`, `info`, `debug` and `trace` stand for.
pub fn log_level(config: &RunnerConfig) -> Result<Option<LevelFilter>, Invalid> {
    let level = |text: &String| {
        text.parse()
            .map_err(|_| Invalid::value("logLevel", text, "error, warn, info, debug or trace"))
    };
    config.log_level.as_ref().map(level).transpose()
}

/// What a user should know of values that are taken otherwise than they stand there.
pub fn remark(config: &RunnerConfig) -> Option<String> {
    let vm = config.vm.as_ref()?;
    let (current, maximum) = (vm.current_ram?, vm.maximum_ram);
    (current > maximum).then(|| {
        format!(
            "vm.currentRam: {current} is more than the machine has, which is {maximum}; raise vm.maximumRam to give it more"
        )
    })
}

/// Minus the signal by which the kernel reports that no huge page is left.
const BUS_ERROR: i32 = -7;

/// Adds the fields that may be the cause to the outcome of a QEMU that did not start.
pub fn explain(outcome: Outcome, hugepages: Option<PageSize>) -> Outcome {
    let fields = match (outcome.reason, outcome.qemu_exit) {
        (EndReason::StartFailed, Some(_)) => {
            "fields that only QEMU and the node can check: vm.cpuModel, vm.maximumRam, vm.hugepages, vm.network[].device"
        }
        (EndReason::QemuCrashed, Some(BUS_ERROR)) if hugepages.is_some() => {
            "the pod has fewer huge pages (vm.hugepages) than vm.maximumRam takes"
        }
        _ => return outcome,
    };
    Outcome {
        message: format!("{}; {fields}", outcome.message),
        ..outcome
    }
}

/// The memory is a whole number of huge pages.
fn whole_pages(vm: &VmConfig) -> Result<(), Invalid> {
    let ram = vm.maximum_ram;
    let Some(page) = vm
        .hugepages
        .filter(|page| !ram.0.is_multiple_of(page.bytes()))
    else {
        return Ok(());
    };
    let next = Bytes(ram.0.next_multiple_of(page.bytes()));
    let page = page.as_str();
    let problem = format!(
        "{ram} is no whole number of huge pages of {page} (vm.hugepages); use a multiple, such as {next}"
    );
    Err(Invalid::new("vm.maximumRam", problem))
}

/// The greatest of what is given. QEMU fills up missing parts of a topology, but only with whole numbers.
fn maximum_cpus(vm: &VmConfig) -> Result<u32, Invalid> {
    let parts = [
        vm.sockets,
        vm.dies_per_socket,
        vm.cores_per_die,
        vm.threads_per_core,
    ];
    let product = parts
        .iter()
        .try_fold(1u32, |all, n| all.checked_mul((*n).max(1)));
    let too_many = || Invalid::new("vm.sockets", "the topology has more CPUs than any machine");
    let product = product.filter(|n| *n <= 4096).ok_or_else(too_many)?;
    let maximum = vm
        .maximum_cpus
        .unwrap_or(product)
        .max(vm.current_cpus.unwrap_or(1))
        .max(1);
    check::range("vm.maximumCpus", maximum, 1..=4096)?;
    let open = vm.sockets == 0 || vm.cores_per_die == 0 || vm.threads_per_core == 0;
    if maximum == product || (open && maximum.is_multiple_of(product)) {
        return Ok(maximum);
    }
    let problem = format!(
        "{maximum} CPUs do not fit the topology of {product}; make it a multiple, or drop the topology"
    );
    Err(Invalid::new("vm.maximumCpus", problem))
}

/// CD drives and disks, each in their order.
fn drives(configured: &[DriveConfig]) -> Result<(Vec<Cd>, Vec<Disk>), Invalid> {
    let (mut cds, mut disks) = (Vec::new(), Vec::new());
    for (n, config) in configured.iter().enumerate() {
        match config.type_ {
            DriveType::IdeCd => cds.push(Cd {
                file: config
                    .file
                    .as_ref()
                    .filter(|file| !file.is_empty())
                    .map(PathBuf::from),
                bootindex: config.bootindex,
            }),
            DriveType::Raw => disks.push(disk(&format!("vm.drives[{n}]"), config)?),
        }
    }
    Ok((cds, disks))
}

fn disk(key: &str, config: &DriveConfig) -> Result<Disk, Invalid> {
    let path = |name: &str, path: &str| check::path(&format!("{key}.{name}"), path);
    let source = match (&config.resource, &config.file, &config.device) {
        (Some(resource), _, _) => Source::Either(path("resource", resource)?),
        (_, Some(file), _) => Source::File(path("file", file)?),
        (_, _, Some(device)) => Source::Device(path("device", device)?),
        _ => {
            let problem = "missing; a disk needs resource, file or device";
            return Err(Invalid::new(format!("{key}.resource"), problem));
        }
    };
    let key = format!("{key}.size");
    if let Some(size) = config.size {
        if !matches!(source, Source::File(_)) {
            return Err(Invalid::new(
                key,
                "only an image file has a size; use it with file",
            ));
        }
        check::range(key, size, SECTOR..=Bytes(1 << 63))?;
    }
    let size = config.size.map(|size| Bytes(size.0 / SECTOR.0 * SECTOR.0));
    Ok(Disk {
        source,
        size,
        bootindex: config.bootindex,
    })
}

#[cfg(test)]
mod tests;
