//! (io) What disks and CD drives are made of, after a look at the host.

use crate::api::runner::outcome::EndReason;
use crate::runner::failure::Failure;
use crate::runner::machine::access::User;
use crate::runner::machine::uid;
use crate::runner::problem::Problem;
use crate::runner::resolved::{self, Cd, Source};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// A disk whose kind is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Image file or block device.
    pub path: PathBuf,
    /// Which of both.
    pub kind: DiskKind,
    /// Place in the boot order.
    pub bootindex: Option<u32>,
    /// Size in bytes at the start.
    pub size: u64,
    /// Whether it is read and written past the page cache.
    pub direct: bool,
}

impl Disk {
    /// QEMU's name for the way in which it reads and writes: Linux' own asynchronous I/O works only past the page cache. Where the
    /// kernel refuses it, QEMU itself uses threads.
    pub fn aio(&self) -> &'static str {
        if self.direct { "native" } else { "threads" }
    }
}

/// What a disk is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum DiskKind {
    File,
    Device,
}

/// The disks, and the block devices among them opened exclusively: QEMU's own lock guards image files only.
pub fn disks(configured: &[resolved::Disk]) -> Result<(Vec<Disk>, Vec<Held>), Failure> {
    let (mut disks, mut held) = (Vec::new(), Vec::new());
    for (n, disk) in configured.iter().enumerate() {
        let path = disk.source.path().clone();
        if let Some(size) = disk.size {
            enlarge(&path, size.0).map_err(|error| {
                let what = format!("cannot be made or enlarged to {} bytes", size.0);
                User::of_process().cannot(&what, &path, path.parent().unwrap_or(&path), &error)
            })?;
        }
        let kind = kind(&disk.source)?;
        let size = match kind {
            DiskKind::File => fs::metadata(&path)
                .map(|metadata| metadata.len())
                .unwrap_or_default(),
            DiskKind::Device => {
                let device = Held {
                    disk: n,
                    file: hold(&path)?,
                };
                let size = device.size();
                held.push(device);
                size
            }
        };
        let direct = kind == DiskKind::Device || goes_past_the_cache(&path);
        disks.push(Disk {
            path,
            kind,
            bootindex: disk.bootindex,
            size,
            direct,
        });
    }
    Ok((disks, held))
}

/// A block device that is kept open, so that no second machine of this node opens it.
#[derive(Debug)]
pub struct Held {
    /// Which of the disks it is.
    pub disk: usize,
    file: File,
}

impl Held {
    /// The same for another process, as long as that lives.
    pub fn shared(&self) -> io::Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from)
    }

    /// Its size at the moment.
    pub fn size(&self) -> u64 {
        (&self.file).seek(SeekFrom::End(0)).unwrap_or_default()
    }
}

/// Whether the file's file system lets it be read and written past the page cache, which the pod would pay for and which
/// native AIO needs.
fn goes_past_the_cache(path: &Path) -> bool {
    rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .is_ok()
}

/// Makes the image file at its first use, and enlarges it where it is smaller: sparse, so that it costs what is written.
fn enlarge(path: &Path, size: u64) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    if file.metadata()?.len() < size {
        file.set_len(size)?;
        file.sync_all()?;
    }
    Ok(())
}

fn kind(source: &Source) -> Result<DiskKind, Failure> {
    let path = source.path();
    let problem =
        |error: io::Error| User::of_process().cannot("cannot be used", path, path, &error);
    let metadata = fs::metadata(path).map_err(problem)?;
    let is_device = metadata.file_type().is_block_device();
    match source {
        Source::Device(_) | Source::Either(_) if is_device => Ok(DiskKind::Device),
        Source::File(_) | Source::Either(_) if metadata.is_file() => {
            let both = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
            rustix::fs::access(path, both).map_err(|error| problem(error.into()))?;
            Ok(DiskKind::File)
        }
        Source::Device(_) => Err(Failure::data(format!(
            "disk {} is not a block device",
            path.display()
        ))),
        _ => Err(Failure::data(format!(
            "disk {} is neither an image file nor a block device",
            path.display()
        ))),
    }
}

fn hold(path: &Path) -> Result<File, Failure> {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map(File::from).map_err(|error| match error {
        Errno::BUSY => Failure::new(
            EndReason::DiskInUse,
            format!("{} is in use by another VM or mounted on this node; stop what uses it", path.display()),
        ),
        error => Failure::new(
            EndReason::DeviceNotPermitted,
            format!(
                "disk {} cannot be opened by uid {}: {error}; the node's container runtime must give block devices to \
                 the pod's user (device_ownership_from_security_context), or VMs run as root (setting deviceAccess: root)",
                path.display(),
                uid()
            ),
        ),
    })
}

/// The CD drives, with what was found for each. One whose image is not there is empty, because a machine without its
/// installation medium still has its disks.
pub fn cds(
    configured: &[Cd],
    images: Vec<Option<Result<PathBuf, Problem>>>,
    warnings: &mut Vec<String>,
) -> Vec<Cd> {
    let mut cds = Vec::new();
    for (n, (cd, image)) in configured.iter().zip(images).enumerate() {
        let file = match image.transpose() {
            Ok(file) => file,
            Err(problem) => {
                warnings.push(format!("CD drive {n} is empty: {}", problem.message));
                None
            }
        };
        cds.push(Cd {
            file,
            bootindex: cd.bootindex,
        });
    }
    cds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::conditions::ConditionReason;
    use crate::api::quantity::Bytes;

    #[test]
    fn a_missing_image_leaves_the_drive_empty_with_a_warning() {
        let cd = |file: &str| Cd {
            file: Some(file.into()),
            bootindex: Some(1),
        };
        let found = vec![
            Some(Ok("/images/a.iso".into())),
            Some(Err(Problem::new(
                ConditionReason::ImageMissing,
                "none.iso is not there",
            ))),
        ];
        let mut warnings = Vec::new();
        let cds = cds(&[cd("a.iso"), cd("none.iso")], found, &mut warnings);
        assert_eq!(
            (cds[0].file.clone(), cds[1].file.clone()),
            (Some("/images/a.iso".into()), None)
        );
        assert!(
            warnings.len() == 1 && warnings[0].contains("none.iso"),
            "{warnings:?}"
        );
    }

    #[test]
    fn an_image_file_is_made_at_its_first_use_and_grows_and_never_shrinks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        let size = |size: u64| {
            let disk = resolved::Disk {
                source: Source::File(path.clone()),
                size: Some(Bytes(size)),
                bootindex: None,
            };
            disks(&[disk]).unwrap().0[0].size
        };
        assert_eq!(
            [size(1 << 20), size(2 << 20), size(1 << 20)],
            [1 << 20, 2 << 20, 2 << 20]
        );
        use std::os::unix::fs::MetadataExt;
        assert_eq!(fs::metadata(&path).unwrap().blocks(), 0, "sparse");
        let disk = resolved::Disk {
            source: Source::File("/none/disk.img".into()),
            size: Some(Bytes(512)),
            bootindex: None,
        };
        assert!(
            disks(&[disk])
                .unwrap_err()
                .message
                .contains("/none/disk.img cannot be made")
        );
    }

    #[test]
    fn a_file_goes_past_the_page_cache_where_its_file_system_can() {
        let dir = tempfile::tempdir_in(".").unwrap();
        fs::write(dir.path().join("disk.img"), "x").unwrap();
        assert!(goes_past_the_cache(&dir.path().join("disk.img")));
        assert!(!goes_past_the_cache(Path::new("/proc/version")));
    }

    #[test]
    fn a_disk_is_a_file_or_a_device_and_never_a_directory() {
        let image = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(
            kind(&Source::Either(image.path().into())),
            Ok(DiskKind::File)
        );
        assert!(kind(&Source::Device(image.path().into())).is_err());
        assert!(kind(&Source::Either("/tmp".into())).is_err());
        assert!(
            kind(&Source::Either("/none".into()))
                .unwrap_err()
                .message
                .contains("/none")
        );
    }
}
