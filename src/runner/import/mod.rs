//! (io) `vm-runner import`: fills a disk from a web server, an upload or another disk, completely or not at all.
//!
//! ```text
//! record (decides) -> fetch -> FILE.KEY.download -> image (pure) -> convert -> FILE.import -> FILE -> record
//! record (decides) -> fetch -> area of the device -> image (pure) -> convert -> device -> record
//! ```
//!
//! Invariants: `FILE` never exists incomplete, and a disk with contents is never changed, unless the record has an unfinished import
//! for it. The record of the VM knows of the import before the first byte is on the volume.
//!
//! The lock of the runner data is held for the whole run. No other lock is needed: only starts and imports of this VM write to
//! its disks, and both take that lock.

mod confined;
mod convert;
mod copy;
mod device;
mod files;
mod image;
mod unpack;

#[cfg(any(test, feature = "fuzzing"))]
pub use image::fuzzing::check_image;

use crate::api::runner::fetch::{FetchOutcome, FetchReason, Phase};
use crate::api::runner::identity::PodIdentity;
use crate::api::runner::outcome::EndReason;
use crate::api::vm::names;
use crate::runner::failure::Failure;
use crate::runner::fetch::problem::{Problem, size, task_failure};
use crate::runner::fetch::{
    self, AddressPolicy, Destination, Origin, Part, ProgressWriter, SharedPart, existing_size,
    with_part,
};
use crate::runner::harden::Access;
use crate::runner::machine::{self, Contents, DirectoryLocks, ImportDecision, ImportTarget};
use crate::runner::start;
use convert::Source;
use copy::CopiedDisk;
use device::DeviceFiles;
use files::DiskFiles;
use image::{Compression, Format, Image};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

/// The command-line arguments of `vm-runner import`.
#[derive(clap::Args)]
#[group(skip)] // The flattened arguments have a group of the same name.
pub struct Arguments {
    /// Directory of the runner data of the VM, which record the import.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Image file or block device that is copied in place of a download, whatever its bytes are.
    #[arg(long, value_name = "PATH", group = "image")]
    from: Option<PathBuf>,
    /// Port of the loopback address on which a user uploads the image, in place of a download.
    #[arg(long, value_name = "PORT", group = "image")]
    listen: Option<u16>,
    /// Format of the image. Default: that of its first bytes.
    #[arg(long)]
    format: Option<Format>,
    /// `--to` is the image file or the block device of the disk. A disk with contents is not changed. `--deadline` limits the download only.
    #[command(flatten)]
    fetch: fetch::Arguments,
}

/// Imports the image, and reports the outcome in the log, the termination message and the exit code.
pub fn run(arguments: Arguments) -> ExitCode {
    let disk = arguments.fetch.target();
    let data = (arguments.data.clone(), Access::Manage);
    let disk = match is_device(disk) {
        true => (disk.to_owned(), Access::Write),
        false => (disk.parent().unwrap_or(disk).to_owned(), Access::Manage),
    };
    let from = arguments
        .from
        .iter()
        .map(|from| (from.clone(), Access::Read));
    let files = [data, disk].into_iter().chain(from).collect();
    let files = arguments.fetch.file_access(files);
    fetch::execute(machine::umask_for_files(), &files, async move || {
        import(arguments, start::pod_identity(), AddressPolicy::NoLocal).await
    })
}

async fn import(arguments: Arguments, pod: PodIdentity, policy: AddressPolicy) -> FetchOutcome {
    let part = OnceLock::new();
    let mut outcome = fetch::supervise(&part, locked_import(arguments, pod, policy, &part)).await;
    if !outcome.reason.is_success() && !outcome.reason.may_retry() {
        // Nothing is left to resume.
        outcome.bytes = 0;
    }
    outcome
}

async fn locked_import(
    arguments: Arguments,
    pod: PodIdentity,
    policy: AddressPolicy,
    part: &OnceLock<SharedPart>,
) -> Result<(FetchReason, u64), Problem> {
    let Arguments {
        data,
        from,
        listen,
        format,
        fetch,
    } = arguments;
    let origin = listen.map_or(Origin::Server(policy), Origin::Upload);
    let disk = fetch.target().to_owned();
    let mut locks = DirectoryLocks::default();
    let locked = locks.acquire(&data, "--data").await;
    locked.map_err(problem_of)?;
    let claim = pod.claims.get(&disk.display().to_string()).cloned();
    let target = ImportTarget { data, disk, claim };
    let disk = Disk::of(&target, &fetch, format);
    Ok(match decide(&target, pod, &disk).await? {
        ImportDecision::AlreadyThere => {
            tracing::info!(
                "the disk {} has contents, so nothing is imported",
                target.disk.display()
            );
            let disk = disk.clone();
            let size = blocking(move || disk.retain()).await?;
            record(&target, ImportTarget::complete_import).await?;
            (FetchReason::AlreadyThere, size)
        }
        ImportDecision::NotEmpty => return Err(not_empty(&target)),
        lost @ (ImportDecision::LostAfterUse
        | ImportDecision::LostAfterImport
        | ImportDecision::NotCloned) => {
            return Err(problem_of(target.lost(lost)));
        }
        ImportDecision::Import => {
            let filled = match from {
                Some(from) => disk.copy(&target, from).await,
                None => disk.fill(&target, fetch, format, origin, part).await,
            };
            match filled {
                Ok(bytes) => {
                    record(&target, |target| target.record_import(true)).await?;
                    (FetchReason::Fetched, bytes)
                }
                Err(problem) => {
                    disk.clean_up(&target, &problem).await;
                    return Err(problem);
                }
            }
        }
    })
}

/// The files or the device of a disk.
#[derive(Clone)]
enum Disk {
    File(DiskFiles),
    Device(DeviceFiles),
}

impl Disk {
    fn of(target: &ImportTarget, arguments: &fetch::Arguments, format: Option<Format>) -> Self {
        if is_device(&target.disk) {
            let claim = target.claim.as_ref().map(|claim| claim.uid.as_str());
            // Claim and format decide where the file is on the device.
            let key = arguments.key(&format!("{} {format:?}", claim.unwrap_or_default()));
            Self::Device(DeviceFiles::new(target, &key))
        } else {
            Self::File(DiskFiles::new(&target.disk, &arguments.key("")))
        }
    }

    fn contents(&self) -> Result<Contents, Problem> {
        Ok(match self {
            Self::File(files) => match existing_size(files.disk())?.unwrap_or_default() {
                0 => Contents::Blank,
                _ => Contents::File,
            },
            Self::Device(device) if device.is_blank()? => Contents::BlankDevice,
            Self::Device(_) => Contents::Device,
        })
    }

    /// Removes what earlier imports have left beside the contents of the disk. Returns the size of the disk in bytes.
    fn retain(&self) -> Result<u64, Problem> {
        match self {
            Self::File(files) => {
                files.remove_all();
                // The process that has renamed the file may have been killed before this.
                files.sync_directory()?;
                existing_size(files.disk()).map(Option::unwrap_or_default)
            }
            Self::Device(device) => {
                device.remove_metadata(false)?;
                device.size()
            }
        }
    }

    /// Fills the disk with that disk. Returns its size in bytes.
    async fn copy(&self, target: &ImportTarget, from: PathBuf) -> Result<u64, Problem> {
        let from = blocking(move || CopiedDisk::open(from)).await?;
        match self {
            Self::File(files) => files.copy(target, &from).await.map_err(too_large),
            Self::Device(device) => device.copy(target, &from).await,
        }
    }

    /// Downloads the image and fills the disk with it. Returns the size of the disk in bytes.
    async fn fill(
        &self,
        target: &ImportTarget,
        arguments: fetch::Arguments,
        format: Option<Format>,
        origin: Origin,
        part: &OnceLock<SharedPart>,
    ) -> Result<u64, Problem> {
        match self {
            Self::File(files) => {
                record(target, |target| target.record_import(false)).await?;
                let filled = fill_file(files, arguments, format, origin, part).await;
                filled.map_err(too_large)
            }
            Self::Device(device) => {
                device.remove_metadata(true)?;
                device.fill(target, arguments, format, origin, part).await
            }
        }
    }

    /// After a final failure, no file remains of the import. An image file has no byte of it, so the record is removed, too. After another
    /// failure, the next process resumes the download.
    async fn clean_up(self, target: &ImportTarget, problem: &Problem) {
        let may_retry = problem.reason.may_retry();
        let target = target.clone();
        let cleaned = blocking(move || {
            match self {
                Self::File(files) if may_retry => files.remove_unneeded(),
                Self::File(files) => {
                    files.remove_all();
                    target.remove_import().map_err(problem_of)?;
                }
                Self::Device(_) if may_retry => {}
                // The device may have bytes of the image, so it is not blank any more.
                Self::Device(device) => device.remove_metadata(false)?,
            }
            Ok(())
        });
        if let Err(problem) = cleaned.await {
            tracing::warn!("the runner cannot remove the record of the import: {problem}");
        }
    }
}

async fn decide(
    target: &ImportTarget,
    pod: PodIdentity,
    disk: &Disk,
) -> Result<ImportDecision, Problem> {
    let (target, disk) = (target.clone(), disk.clone());
    blocking(move || {
        let decision = target.decide(pod.used_runner_data.as_deref(), disk.contents()?);
        decision.map_err(problem_of)
    })
    .await
}

async fn record(
    target: &ImportTarget,
    change: fn(&ImportTarget) -> Result<(), Failure>,
) -> Result<(), Problem> {
    let target = target.clone();
    blocking(move || change(&target).map_err(problem_of)).await
}

async fn fill_file(
    files: &DiskFiles,
    arguments: fetch::Arguments,
    format: Option<Format>,
    origin: Origin,
    part: &OnceLock<SharedPart>,
) -> Result<u64, Problem> {
    let unneeded = files.clone();
    blocking(move || {
        unneeded.remove_unneeded();
        Ok(())
    })
    .await?;
    let download = files.download.clone();
    let destination = Destination::File(download.clone());
    fetch::download(arguments, destination, origin, part).await?;
    let packed = files.clone();
    let compression = blocking(move || Ok(Compression::of(&packed.header(&packed.download)?)));
    let source = match compression.await? {
        Some(compression) => unpack_file(compression, files).await?,
        None => download,
    };
    let (checked, path) = (files.clone(), source.clone());
    let image = blocking(move || {
        let image = Image::of(&checked.header(&path)?, format)?;
        if let Image::Qcow2(bytes) = image {
            checked.check_volume(bytes)?;
            checked.create_converted()?;
        }
        Ok(image)
    });
    let complete = match image.await? {
        Image::Raw => source,
        Image::Qcow2(bytes) => {
            tracing::info!("converting the image to a disk of {}", size(bytes));
            let source = Source {
                path: &source,
                area: None,
                format: Format::Qcow2,
            };
            convert::convert(source, &files.converted, bytes).await?;
            files.converted.clone()
        }
    };
    let files = files.clone();
    blocking(move || {
        files.publish(&complete)?;
        files.remove_all();
        existing_size(files.disk())
    })
    .await
    .map(Option::unwrap_or_default)
}

/// Unpacks the downloaded file beside it. Returns the path of the unpacked image.
async fn unpack_file(compression: Compression, files: &DiskFiles) -> Result<PathBuf, Problem> {
    let path = files.unpacked.clone();
    let mut progress = ProgressWriter::new(Phase::Conversion);
    let destination = Destination::File(path.clone());
    let Some(part) = fetch::acquire_part(&destination, None, &mut progress).await? else {
        return Ok(path);
    };
    tracing::info!("unpacking the image");
    with_part(&part, Part::make_sparse).await?;
    let source = Source {
        path: &files.download,
        area: None,
        format: Format::Raw,
    };
    let max = files.volume_size()?;
    let unpacked = unpack::unpack(compression, source, &part, max).await;
    unpacked.map(|_| path)
}

/// A full volume as a final failure: without another PVC or image, each attempt would end in the same way. For an image file only: on a
/// device, the volume that can be full is that of the runner data.
fn too_large(problem: Problem) -> Problem {
    if problem.reason != FetchReason::RepositoryFull {
        return problem;
    }
    let message = format!(
        "the image does not fit on the volume: {problem}; increase the size of the disk's PVC. A downloaded file and the disk of its \
         image must fit beside each other"
    );
    Problem::new(FetchReason::TooLarge, message)
}

/// Whether the disk at that path is a block device.
fn is_device(disk: &Path) -> bool {
    fs::metadata(disk).is_ok_and(|it| it.file_type().is_block_device())
}

/// Runs `work` in a thread that may wait for a volume, so that a signal is handled at once.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Problem::new(FetchReason::Unknown, task_failure(&error)))?
}

/// The error of an import for a failure with the record or the lock of the runner data.
fn problem_of(failure: Failure) -> Problem {
    let reason = match failure.reason {
        EndReason::DataMissing => FetchReason::DataMissing,
        EndReason::DiskNotCloned => FetchReason::DiskNotCloned,
        EndReason::DiskInUse => FetchReason::DiskInUse,
        EndReason::DataNotAccessible => FetchReason::RepositoryNotWritable,
        _ => FetchReason::Unknown,
    };
    Problem::new(reason, failure.message)
}

fn not_empty(target: &ImportTarget) -> Problem {
    let remove = match &target.claim {
        Some(claim) if is_device(&target.disk) => format!(
            "run `kubectl annotate pvc {} {}={}` to overwrite the contents",
            claim.name,
            names::ANNOTATION_OVERWRITE,
            claim.uid
        ),
        Some(claim) => format!(
            "set spec.vm.state to Stopped, delete PVC {:?}, and start the VM",
            claim.name
        ),
        None => "remove the file".to_owned(),
    };
    let message = format!(
        "the disk {} has contents that no start and no import of this VM has written, so the image is not imported; remove \
         `source` from the disk to use it as it is, or {remove}",
        target.disk.display()
    );
    Problem::new(FetchReason::DiskNotEmpty, message)
}

#[cfg(test)]
mod tests;
