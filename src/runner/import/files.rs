//! (io) The files of an import beside the image file of a disk.
//!
//! | file | content |
//! |---|---|
//! | `FILE.KEY.download`, `FILE.KEY.download.part*` | the downloaded image; KEY is that of URL and checksum, so that two images never mix |
//! | `FILE.KEY.download.unpacked`, `FILE.KEY.download.unpacked.part*` | the unpacked image |
//! | `FILE.import` | the converted image |

use crate::api::runner::fetch::FetchReason;
use crate::runner::fetch::problem::{Problem, size};
use crate::runner::import::convert;
use crate::runner::import::copy::CopiedDisk;
use crate::runner::import::image::HEADER_LENGTH;
use crate::runner::import::{blocking, problem_of};
use crate::runner::machine::{ImportTarget, umask_for_files};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The paths of an import.
#[derive(Clone, Debug)]
pub struct DiskFiles {
    /// The image file of the disk.
    disk: PathBuf,
    /// The downloaded image.
    pub download: PathBuf,
    /// The unpacked image, if the downloaded one is compressed.
    pub unpacked: PathBuf,
    /// The converted image, until it becomes the image file.
    pub converted: PathBuf,
}

impl DiskFiles {
    /// The paths for a disk and the key of an image.
    pub fn new(disk: &Path, key: &str) -> Self {
        let with_ending = |ending: &str| {
            let mut name = disk.as_os_str().to_owned();
            name.push(ending);
            PathBuf::from(name)
        };
        Self {
            disk: disk.to_owned(),
            download: with_ending(&format!(".{key}.download")),
            unpacked: with_ending(&format!(".{key}.download.unpacked")),
            converted: with_ending(".import"),
        }
    }

    /// The image file of the disk.
    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// The first bytes of an image.
    pub fn header(&self, image: &Path) -> Result<Vec<u8>, Problem> {
        let mut header = Vec::with_capacity(HEADER_LENGTH);
        let length = u64::try_from(HEADER_LENGTH).unwrap_or(u64::MAX);
        let file = File::open(image);
        let read = file.and_then(|file| file.take(length).read_to_end(&mut header));
        read.map_err(|error| self.failure(&error))?;
        Ok(header)
    }

    /// Creates the image file as a copy of the disk `from`.
    pub async fn copy(&self, target: &ImportTarget, from: &CopiedDisk) -> Result<u64, Problem> {
        let (files, recorded, bytes) = (self.clone(), target.clone(), from.bytes);
        blocking(move || {
            files.check_volume(bytes)?;
            recorded.record_import(false).map_err(problem_of)?;
            files.remove_all();
            files.create_converted()
        })
        .await?;
        convert::convert(from.source(), &self.converted, bytes).await?;
        let files = self.clone();
        blocking(move || files.publish(&files.converted)).await?;
        Ok(bytes)
    }

    /// Checks that the volume is not smaller than a disk of this size.
    pub fn check_volume(&self, bytes: u64) -> Result<(), Problem> {
        let Some(total) = self.volume_size()?.filter(|total| bytes > *total) else {
            return Ok(());
        };
        // A file system takes about a twentieth of its volume for itself.
        let needed = bytes.saturating_add(bytes / 20).div_ceil(1 << 20);
        let message = format!(
            "the disk of the image has {}, and the volume has {}; use a PVC of at least {needed}Mi",
            size(bytes),
            size(total)
        );
        Err(Problem::new(FetchReason::TooLarge, message))
    }

    /// Size of the volume in bytes. `None` if its file system reports none, such as some network file systems.
    pub fn volume_size(&self) -> Result<Option<u64>, Problem> {
        let volume = rustix::fs::statvfs(self.directory());
        let volume = volume.map_err(|error| self.failure(&error.into()))?;
        // Without the blocks that the file system reserves for root.
        let reserved = volume.f_bfree.saturating_sub(volume.f_bavail);
        let blocks = volume.f_blocks.saturating_sub(reserved);
        let total = blocks.saturating_mul(volume.f_frsize);
        Ok(Some(total).filter(|_| volume.f_blocks > 0))
    }

    /// Creates the empty file for the conversion. It is a new one, because a process of a killed import may still write to the old one.
    pub fn create_converted(&self) -> Result<(), Problem> {
        let created = remove(&self.converted).and_then(|()| File::create_new(&self.converted));
        created.map(drop).map_err(|error| self.failure(&error))
    }

    /// Gives a complete image the name of the image file, after all its bytes are on the volume.
    pub fn publish(&self, complete: &Path) -> Result<(), Problem> {
        let publish = || {
            let file = OpenOptions::new().read(true).write(true).open(complete)?;
            // As a start would create it.
            file.set_permissions(Permissions::from_mode(0o666 & !umask_for_files()))?;
            file.sync_all()?;
            if fs::symlink_metadata(&self.disk).is_ok_and(|it| it.is_file() && it.len() == 0) {
                fs::remove_file(&self.disk)?;
            }
            rename_new(complete, &self.disk)
        };
        publish().map_err(|error| self.failure(&error))?;
        self.sync_directory()
    }

    /// Writes the names of the files to the volume.
    pub fn sync_directory(&self) -> Result<(), Problem> {
        let directory = File::open(self.directory());
        let synced = directory.and_then(|directory| directory.sync_all());
        synced.map_err(|error| self.failure(&error))
    }

    /// Removes the files of this import and of earlier ones.
    pub fn remove_all(&self) {
        self.remove_leftovers(|_| true);
    }

    /// Removes the files of earlier imports that this one does not resume.
    pub fn remove_unneeded(&self) {
        let present = name_of(&self.download);
        self.remove_leftovers(|name| !name.starts_with(&present));
    }

    fn remove_leftovers(&self, is_unneeded: impl Fn(&str) -> bool) {
        let disk = name_of(&self.disk);
        let entries = fs::read_dir(self.directory()).into_iter().flatten();
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_leftover = name
                .strip_prefix(&disk)
                .is_some_and(|ending| ending == ".import" || is_download(ending));
            if is_leftover
                && is_unneeded(&name)
                && let Err(error) = remove(&entry.path())
            {
                tracing::warn!(%error, "cannot remove {}; delete this file to free its space", entry.path().display());
            }
        }
    }

    fn directory(&self) -> &Path {
        self.disk.parent().unwrap_or(Path::new("/"))
    }

    fn failure(&self, error: &io::Error) -> Problem {
        let directory = self.directory().display();
        let (reason, step) = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                (FetchReason::RepositoryFull, "use a larger PVC")
            }
            ErrorKind::AlreadyExists => (
                FetchReason::DiskInUse,
                "another process has created the file; stop that process",
            ),
            _ => (FetchReason::RepositoryNotWritable, "check the volume"),
        };
        let message = format!("the runner cannot use the files in {directory}: {error}; {step}");
        Problem::new(reason, message)
    }
}

/// Whether the ending is that of a download: a key of 16 digits, and the files of [`crate::runner::fetch`].
fn is_download(ending: &str) -> bool {
    let parts = ending.strip_prefix('.').and_then(|it| it.split_once('.'));
    parts.is_some_and(|(key, file)| {
        let is_key = key.len() == 16 && key.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_key && (file == "download" || file.starts_with("download."))
    })
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Renames the file, unless the new name exists.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system does not support the flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => link_new(from, to),
        result => Ok(result?),
    }
}

fn link_new(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to)?;
    fs::remove_file(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef";

    #[test]
    fn only_files_of_imports_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let files = DiskFiles::new(&dir.path().join("disk.img"), KEY);
        let present = |names: &[&str]| names.iter().all(|name| dir.path().join(name).exists());
        let own = [
            format!("disk.img.{KEY}.download"),
            format!("disk.img.{KEY}.download.part.json"),
        ];
        let own = own.each_ref().map(String::as_str);
        let other = ["disk.img.fedcba9876543210.download.part", "disk.img.import"];
        let foreign = [
            "disk.img",
            "disk.img.download",
            "disk.img.old",
            "disk.img.x.download",
        ];
        for name in [&own[..], &other, &foreign].concat() {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        files.remove_unneeded();
        assert!(present(&own) && present(&foreign));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 6);
        files.remove_all();
        assert!(present(&foreign));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
    }

    #[test]
    fn the_image_file_is_never_replaced_unless_it_is_blank() {
        let dir = tempfile::tempdir().unwrap();
        let files = DiskFiles::new(&dir.path().join("disk.img"), KEY);
        for (before, reason) in [("contents", Some(FetchReason::DiskInUse)), ("", None)] {
            fs::write(&files.disk, before).unwrap();
            files.create_converted().unwrap();
            fs::write(&files.converted, "image").unwrap();
            let published = files.publish(&files.converted);
            assert_eq!(published.err().map(|problem| problem.reason), reason);
            let expected = if before.is_empty() { "image" } else { before };
            assert_eq!(fs::read_to_string(&files.disk).unwrap(), expected);
        }
        fs::write(&files.converted, "other").unwrap();
        let linked = link_new(&files.converted, &files.disk).unwrap_err();
        assert_eq!(linked.kind(), ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_disk_larger_than_its_volume_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let files = DiskFiles::new(&dir.path().join("disk.img"), KEY);
        assert_eq!(files.check_volume(1), Ok(()));
        let volume = rustix::fs::statvfs(dir.path()).unwrap();
        let more = volume.f_blocks * volume.f_frsize + 1;
        let problem = files.check_volume(more).unwrap_err();
        assert_eq!(problem.reason, FetchReason::TooLarge);
    }
}
