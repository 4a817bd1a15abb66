//! (io) What disks and CD drives are made of, after a look at the host.

use super::{media, uid};
use crate::api::outcome::EndReason;
use crate::runner::failure::Failure;
use crate::runner::spec::{self, Cd, Source};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
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
}

/// What a disk is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum DiskKind {
    File,
    Device,
}

/// The disks, and the block devices among them opened exclusively: QEMU's own lock guards image files only.
pub fn disks(configured: &[spec::Disk]) -> Result<(Vec<Disk>, Vec<File>), Failure> {
    let (mut disks, mut held) = (Vec::new(), Vec::new());
    for disk in configured {
        let path = disk.source.path().clone();
        let kind = kind(&disk.source)?;
        if kind == DiskKind::Device {
            held.push(hold(&path)?);
        }
        disks.push(Disk { path, kind, bootindex: disk.bootindex });
    }
    Ok((disks, held))
}

fn kind(source: &Source) -> Result<DiskKind, Failure> {
    let path = source.path();
    let metadata = fs::metadata(path).map_err(|error| {
        Failure::data(format!(
            "disk {} cannot be used by uid {}: {error}; is its volume mounted?",
            path.display(),
            uid()
        ))
    })?;
    let is_device = metadata.file_type().is_block_device();
    match source {
        Source::Device(_) | Source::Either(_) if is_device => Ok(DiskKind::Device),
        Source::File(_) | Source::Either(_) if metadata.is_file() => Ok(DiskKind::File),
        Source::Device(_) => Err(Failure::data(format!("disk {} is not a block device", path.display()))),
        _ => Err(Failure::data(format!("disk {} is neither an image file nor a block device", path.display()))),
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
                 the pod's user (device_ownership_from_security_context)",
                path.display(),
                uid()
            ),
        ),
    })
}

/// The CD drives. One whose image is not there is empty, because a machine without its installation medium still
/// has its disks.
pub fn cds(configured: &[Cd], repository: &Path, warnings: &mut Vec<String>) -> Vec<Cd> {
    let mut settle = |(n, cd): (usize, &Cd)| {
        let file = cd.file.as_ref().and_then(|file| match media::image(repository, file) {
            Ok(path) => Some(path),
            Err(problem) => {
                warnings.push(format!("CD drive {n} is empty: {}", problem.message));
                None
            }
        });
        Cd { file, bootindex: cd.bootindex }
    };
    configured.iter().enumerate().map(&mut settle).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_image_leaves_the_drive_empty_with_a_warning() {
        let repository = tempfile::tempdir().unwrap();
        let image = fs::canonicalize(repository.path()).unwrap().join("a.iso");
        fs::write(&image, "x").unwrap();
        let cd = |file: &str| Cd { file: Some(file.into()), bootindex: Some(1) };
        let mut warnings = Vec::new();
        let cds = cds(&[cd("a.iso"), cd("none.iso")], repository.path(), &mut warnings);
        assert_eq!((cds[0].file.clone(), cds[1].file.clone()), (Some(image), None));
        assert!(warnings.len() == 1 && warnings[0].contains("none.iso"), "{warnings:?}");
    }

    #[test]
    fn a_disk_is_a_file_or_a_device_and_never_a_directory() {
        let image = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(kind(&Source::Either(image.path().into())), Ok(DiskKind::File));
        assert!(kind(&Source::Device(image.path().into())).is_err());
        assert!(kind(&Source::Either("/tmp".into())).is_err());
        assert!(kind(&Source::Either("/none".into())).unwrap_err().message.contains("/none"));
    }
}
