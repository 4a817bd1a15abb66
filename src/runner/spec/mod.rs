//! (pure) The configuration with all values checked, and values that follow from several others.
//!
//! Input: [`RunnerConfig`]. Output: [`Spec`], or the first value that cannot be used. A start and a
//! reload use the same check, so that a running VM never gets a value that would prevent its next
//! start.

mod validation;

use crate::api::quantity::Bytes;
pub use crate::api::runner::config::{Accelerator, NetworkConfig, NetworkType};
use crate::api::runner::config::{DriveConfig, DriveType, RunnerConfig, VmConfig};
use crate::api::runner::outcome::{EndReason, Outcome};
use crate::api::vm::CPUS_MAX;
pub use crate::api::vm::{Firmware, PageSize};
use crate::runner::failure::{Invalid, KILLED};
use std::path::PathBuf;
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;

/// A checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The rest of the configuration. Values that the other fields have are reset, so that two specs can be compared.
    pub vm: VmConfig,
    /// Memory in bytes. QEMU requires whole MiB.
    pub ram: Bytes,
    /// Maximum number of CPUs.
    pub maximum_cpus: u32,
    pub cds: Vec<Cd>,
    pub disks: Vec<Disk>,
    /// Values that can change while the guest runs.
    pub live: Live,
}

/// Values that can change while the VM runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// Number of CPUs.
    pub cpus: u32,
    /// Target of the balloon, if it is configured.
    pub ram: Option<Bytes>,
    /// Time for the guest to shut down.
    pub powerdown_timeout: Duration,
    /// User that the desktop agent logs in.
    pub logged_in_user: Option<String>,
    /// The image of each CD drive.
    pub media: Vec<Option<PathBuf>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cd {
    /// The image, if the drive is not empty.
    pub file: Option<PathBuf>,
    /// Position in the boot order.
    pub bootindex: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    pub source: Source,
    /// Minimum size of an image file. The runner creates or enlarges the file.
    pub size: Option<Bytes>,
    /// Position in the boot order.
    pub bootindex: Option<u32>,
}

/// The file or device of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Device(PathBuf),
    /// A file or a device.
    Either(PathBuf),
}

impl Source {
    pub fn path(&self) -> &PathBuf {
        match self {
            Self::File(path) | Self::Device(path) | Self::Either(path) => path,
        }
    }
}

const MIB: u64 = 1 << 20;
/// Unit of a disk's size.
const SECTOR_SIZE: Bytes = Bytes(512);

impl Spec {
    /// Checks the configuration.
    pub fn from_config(config: &RunnerConfig) -> Result<Self, Invalid> {
        let mut vm = config.vm.clone().ok_or_else(|| {
            Invalid::new(
                "vm",
                "the configuration has no key vm; add this key, which describes the VM",
            )
        })?;
        log_level(config)?;
        validation::check_values(&vm)?;
        // Rounded down, so that the pod's memory limit, which the operator computes from the same
        // value, still suffices.
        let ram = Bytes(vm.maximum_ram.0 / MIB * MIB);
        vm.maximum_ram = ram;
        check_whole_pages(&vm)?;
        let maximum_cpus = maximum_cpus(&vm)?;
        vm.maximum_cpus = None;
        vm.uuid = vm.uuid.map(|uuid| uuid.to_ascii_lowercase());
        let (cds, disks) = drives(&std::mem::take(&mut vm.drives))?;
        let live = Live {
            cpus: vm.current_cpus.take().unwrap_or(1),
            // A higher value means all memory. A user who lowers the maximum need not change the
            // current value.
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

    /// Whether a running VM can follow the other configuration without a restart.
    pub fn differs_in_live_only(&self, other: &Self) -> bool {
        // More CPUs than the maximum raise the maximum. The condition `CpusInSync` then reports that a restart is needed.
        let raised = other.live.cpus > self.maximum_cpus;
        let maximum_cpus = if raised {
            self.maximum_cpus
        } else {
            other.maximum_cpus
        };
        // The number of drives is fixed. Their images can change.
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
        // Disks can grow while the VM runs.
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

/// The log level, if it is configured: `error`, `warn`, `info`, `debug` or `trace`.
pub fn log_level(config: &RunnerConfig) -> Result<Option<LevelFilter>, Invalid> {
    let level = |text: &String| {
        text.parse().map_err(|_| {
            Invalid::value(
                "logLevel",
                text,
                "use the level error, warn, info, debug or trace",
            )
        })
    };
    config.log_level.as_ref().map(level).transpose()
}

/// A warning about a value that is not used as configured.
pub fn warning(config: &RunnerConfig) -> Option<String> {
    let vm = config.vm.as_ref()?;
    let (current, maximum) = (vm.current_ram?, vm.maximum_ram);
    (current > maximum).then(|| {
        format!(
            "the VM gets only {maximum} of memory, because vm.currentRam ({current}) is more than vm.maximumRam; raise \
             vm.maximumRam"
        )
    })
}

/// Minus SIGBUS, by which the kernel reports that no huge page is free.
const BUS_ERROR: i32 = -7;

/// Adds the fields that may be the cause to the outcome of a QEMU that did not start.
pub fn add_possible_causes(outcome: Outcome, hugepages: Option<PageSize>) -> Outcome {
    let fields = match (outcome.reason, outcome.qemu_exit) {
        (EndReason::StartFailed, Some(exit)) if exit != KILLED => {
            "a possible cause is a value of vm.maximumRam, vm.hugepages or vm.network[].device that QEMU or the node does not \
             support"
        }
        (EndReason::QemuCrashed, Some(BUS_ERROR)) if hugepages.is_some() => {
            "a possible cause is that the pod has fewer huge pages than vm.maximumRam needs. Set the same, larger amount of \
             huge pages in spec.resources.limits and spec.resources.requests, or lower vm.maximumRam"
        }
        _ => return outcome,
    };
    Outcome {
        message: format!("{}; {fields}", outcome.message),
        ..outcome
    }
}

/// Checks that the memory is a whole number of huge pages.
fn check_whole_pages(vm: &VmConfig) -> Result<(), Invalid> {
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
        "{ram} is not a multiple of the huge page size {page} (vm.hugepages); use a multiple, such as {next}"
    );
    Err(Invalid::new("vm.maximumRam", problem))
}

/// The maximum number of CPUs: the highest of the configured numbers of CPUs. It must match the topology, because QEMU completes a
/// partial topology with whole numbers only.
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
    let too_many = || {
        Invalid::new(
            "vm.sockets",
            format!(
                "the CPU topology has more than {CPUS_MAX} CPUs; reduce sockets, diesPerSocket, coresPerDie or threadsPerCore"
            ),
        )
    };
    let product = product.filter(|n| *n <= CPUS_MAX).ok_or_else(too_many)?;
    let maximum = vm
        .maximum_cpus
        .unwrap_or(product)
        .max(vm.current_cpus.unwrap_or(1))
        .max(1);
    validation::check_range("vm.maximumCpus", maximum, validation::CPUS_RANGE)?;
    let open = vm.sockets == 0 || vm.cores_per_die == 0 || vm.threads_per_core == 0;
    if maximum == product || (open && maximum.is_multiple_of(product)) {
        return Ok(maximum);
    }
    let problem = format!(
        "a maximum of {maximum} CPUs does not fit the topology of {product} CPUs; use a maximum of {product} CPUs, or remove \
         the topology"
    );
    Err(Invalid::new("vm.maximumCpus", problem))
}

/// The CD drives and disks, each in their order.
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
    let path = |name: &str, path: &str| validation::absolute_path(&format!("{key}.{name}"), path);
    let source = match (&config.resource, &config.file, &config.device) {
        (Some(resource), _, _) => Source::Either(path("resource", resource)?),
        (_, Some(file), _) => Source::File(path("file", file)?),
        (_, _, Some(device)) => Source::Device(path("device", device)?),
        _ => {
            let problem =
                "the disk has none of the keys resource, file and device; add one of these keys";
            return Err(Invalid::new(format!("{key}.resource"), problem));
        }
    };
    let key = format!("{key}.size");
    if let Some(size) = config.size {
        if !matches!(source, Source::File(_)) {
            return Err(Invalid::new(
                key,
                "the key `size` is allowed only together with the key `file`; remove `size`, or add `file`",
            ));
        }
        validation::check_range(key, size, SECTOR_SIZE..=Bytes(1 << 63))?;
    }
    let size = config
        .size
        .map(|size| Bytes(size.0 / SECTOR_SIZE.0 * SECTOR_SIZE.0));
    Ok(Disk {
        source,
        size,
        bootindex: config.bootindex,
    })
}

#[cfg(test)]
mod tests;
