//! (io) Disks and CD drives, with the properties of their files and devices on the node.

use crate::api::runner::outcome::EndReason;
use crate::runner::failure::{Failure, Problem};
use crate::runner::machine::path_failure::ProcessUser;
use crate::runner::machine::uid;
use crate::runner::spec::{self, Cd, Source};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// A disk with known properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Path of the image file or block device.
    pub path: PathBuf,
    /// Whether it is a file or a block device.
    pub kind: DiskKind,
    /// Serial number. VMs of the Java VM-Operator have none.
    pub serial: Option<String>,
    /// Position in the boot order.
    pub bootindex: Option<u32>,
    /// Size in bytes at the start.
    pub size: u64,
    /// Whether QEMU bypasses the page cache (`O_DIRECT`).
    pub direct: bool,
}

impl Disk {
    /// QEMU's name for the method of asynchronous I/O. Linux's native AIO requires `O_DIRECT`. If
    /// the kernel rejects native AIO, QEMU falls back to threads itself.
    pub fn aio(&self) -> &'static str {
        if self.direct { "native" } else { "threads" }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum DiskKind {
    File,
    Device,
}

/// Prepares the disks and opens the block devices exclusively. QEMU locks image files only.
pub fn disks(configured: &[spec::Disk]) -> Result<(Vec<Disk>, Vec<HeldDevice>), Failure> {
    let (mut disks, mut held_devices) = (Vec::new(), Vec::new());
    for (n, disk) in configured.iter().enumerate() {
        let path = disk.source.path().clone();
        if let Some(size) = disk.size {
            enlarge(&path, size.0).map_err(|error| {
                let what = format!("cannot be created or enlarged to {} bytes", size.0);
                ProcessUser::current().access_failure(
                    &what,
                    &path,
                    path.parent().unwrap_or(&path),
                    &error,
                )
            })?;
        }
        let kind = kind(&disk.source)?;
        let size = match kind {
            DiskKind::File => fs::metadata(&path)
                .map(|metadata| metadata.len())
                .unwrap_or_default(),
            DiskKind::Device => {
                let device = HeldDevice {
                    disk: n,
                    file: open_exclusively(&path)?,
                };
                let size = device.size();
                held_devices.push(device);
                size
            }
        };
        let direct = kind == DiskKind::Device || supports_direct_io(&path);
        disks.push(Disk {
            path,
            kind,
            serial: None,
            bootindex: disk.bootindex,
            size,
            direct,
        });
    }
    Ok((disks, held_devices))
}

/// A block device, opened exclusively so that no second VM of this node opens it.
#[derive(Debug)]
pub struct HeldDevice {
    /// The number of the disk.
    pub disk: usize,
    file: File,
}

impl HeldDevice {
    /// The descriptor for another process, which keeps the device open until it exits.
    pub fn duplicate_descriptor(&self) -> io::Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from)
    }

    /// The present size in bytes.
    pub fn size(&self) -> u64 {
        (&self.file).seek(SeekFrom::End(0)).unwrap_or_default()
    }
}

/// Whether the file system supports `O_DIRECT`. Native AIO requires it, and the page cache would
/// count as memory of the pod.
fn supports_direct_io(path: &Path) -> bool {
    rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .is_ok()
}

/// Creates the image file if it is missing, and enlarges it if it is too small. The file is sparse.
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
    let failure = |error: io::Error| {
        ProcessUser::current().access_failure("cannot be used", path, path, &error)
    };
    let metadata = fs::metadata(path).map_err(failure)?;
    let is_device = metadata.file_type().is_block_device();
    match source {
        Source::Device(_) | Source::Either(_) if is_device => Ok(DiskKind::Device),
        Source::File(_) | Source::Either(_) if metadata.is_file() => {
            let read_write = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
            rustix::fs::access(path, read_write).map_err(|error| failure(error.into()))?;
            Ok(DiskKind::File)
        }
        Source::Device(_) => Err(Failure::data(format!(
            "disk {} is not a block device; configure a block device, or use the key `file` for an image file",
            path.display()
        ))),
        _ => Err(Failure::data(format!(
            "disk {} is neither an image file nor a block device; configure an image file or a block device",
            path.display()
        ))),
    }
}

fn open_exclusively(path: &Path) -> Result<File, Failure> {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map(File::from).map_err(|error| match error {
        Errno::BUSY => Failure::new(
            EndReason::DiskInUse,
            format!("the disk {} is in use by another VM, or is mounted on this node; stop that VM, or unmount the \
                disk", path.display()),
        ),
        error => Failure::new(
            EndReason::DeviceNotPermitted,
            format!(
                "the runner cannot open disk {} as uid {}: {error}. Configure the node's container runtime to give block \
                 devices to the pod's user (device_ownership_from_security_context), or set deviceAccess to root in the \
                 operator's ConfigMap",
                path.display(),
                uid()
            ),
        ),
    })
}

/// Whether the file is missing or has 0 bytes, or the device has only zeros where disks have partition tables and file systems.
pub fn is_blank(path: &Path) -> io::Result<bool> {
    const EDGE: u64 = 1 << 20;
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        file => file?,
    };
    let size = file.seek(SeekFrom::End(0))?;
    if !file.metadata()?.file_type().is_block_device() {
        return Ok(size == 0);
    }
    for offset in [0, size.saturating_sub(EDGE)] {
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        (&file).take(EDGE).read_to_end(&mut bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The CD drives with their images. A drive without its image is empty, because a VM without its
/// installation image can still boot from its disks.
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
    use crate::api::quantity::Bytes;
    use crate::api::vm::conditions::ConditionReason;

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
            let disk = spec::Disk {
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
        let disk = spec::Disk {
            source: Source::File("/none/disk.img".into()),
            size: Some(Bytes(512)),
            bootindex: None,
        };
        assert!(
            disks(&[disk])
                .unwrap_err()
                .message
                .contains("/none/disk.img cannot be created")
        );
    }

    #[test]
    fn a_file_goes_past_the_page_cache_where_its_file_system_can() {
        let dir = tempfile::tempdir_in(".").unwrap();
        fs::write(dir.path().join("disk.img"), "x").unwrap();
        assert!(supports_direct_io(&dir.path().join("disk.img")));
        assert!(!supports_direct_io(Path::new("/proc/version")));
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
