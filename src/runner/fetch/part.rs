//! (io) A partial download: the data in `FILE.part` or in an area of a block device, and its metadata in `FILE.part.json`.
//!
//! Invariants: a process locks `FILE.part` before it writes. The bytes that the metadata counts are on the disk, also after
//! a power failure. `FILE` either does not exist or is complete. Nothing is on a device before the first bytes of the image have
//! decided their position.

use crate::api::hex;
use crate::api::runner::fetch::{Checksum, FetchReason};
use crate::runner::fetch::answer::Validator;
use crate::runner::fetch::problem::{Problem, size};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use sha2::digest::DynDigest;
use sha2::{Sha256, Sha512};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Interval between saves, in bytes: the maximum loss when the program or the node crashes.
const SAVE_INTERVAL_BYTES: u64 = 8 << 20;

type Hash = Box<dyn DynDigest + Send>;

fn hash_of(checksum: &Checksum) -> Hash {
    match checksum {
        Checksum::Sha256(_) => Box::new(Sha256::default()),
        Checksum::Sha512(_) => Box::new(Sha512::default()),
    }
}

/// The metadata of a partial download: the version of the image, and the number of bytes on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    bytes: u64,
    total: Option<u64>,
    validator: Option<Validator>,
    /// Position of the first byte on a device.
    #[serde(default)]
    offset: u64,
}

/// Where the bytes of a download go.
#[derive(Clone)]
pub enum Destination {
    /// A file, which gets this name when it is complete.
    File(PathBuf),
    /// An area of a block device that no other process uses.
    Device(Device),
}

/// A block device with an area for a download.
#[derive(Clone)]
pub struct Device {
    /// Path of the device.
    pub path: PathBuf,
    /// Path of the metadata, without its ending.
    pub metadata: PathBuf,
    /// Number of bytes that decide the position.
    pub header_length: usize,
    /// Returns the position.
    pub place: Arc<Place>,
    /// End of the usable area in bytes. `None` means that of the device.
    pub end: Option<u64>,
}

/// The position of the image on a device, by its first bytes.
type Place = dyn Fn(&Header<'_>) -> Result<u64, Problem> + Send + Sync;

/// What decides the position of an image on a device.
pub struct Header<'a> {
    /// The first bytes of the image, or the whole image if it is shorter.
    pub bytes: &'a [u8],
    /// Size of the image in bytes, if the server has reported it.
    pub total: Option<u64>,
    /// End of the usable area of the device in bytes.
    pub device: u64,
}

impl Destination {
    /// The path in messages.
    pub fn path(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::Device(device) => &device.path,
        }
    }
}

/// The area of a device that gets the bytes of a download.
struct Area {
    device: Device,
    /// End of the usable area in bytes.
    size: u64,
    /// The first bytes, until they decide the position.
    header: Option<Vec<u8>>,
}

/// The result of an attempt to lock a partial download.
pub enum LockOutcome {
    /// This process has the lock.
    Locked(Box<Part>),
    /// The complete image exists, with this number of bytes.
    Complete(u64),
    /// Another process has the lock, and has downloaded this number of bytes.
    LockedByOther(u64),
}

/// A locked partial download.
pub struct Part {
    file: File,
    target: PathBuf,
    area: Option<Area>,
    is_sparse: bool,
    record: Record,
    written: u64,
    sum: Option<Hash>,
}

impl Part {
    /// Locks the partial download of a file, unless another process has locked it or the file exists. With an expected
    /// checksum, that of the data is computed.
    pub fn acquire(
        destination: &Destination,
        checksum: Option<&Checksum>,
    ) -> Result<LockOutcome, Problem> {
        match destination {
            Destination::File(target) => Self::acquire_file(target, checksum),
            Destination::Device(device) => Self::on_device(device, checksum),
        }
    }

    /// The partial download on a device. The lock of the metadata's directory is that of the caller.
    fn on_device(device: &Device, checksum: Option<&Checksum>) -> Result<LockOutcome, Problem> {
        let open = || {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&device.path)?;
            let size = file.seek(SeekFrom::End(0))?;
            Ok((file, device.end.map_or(size, |end| end.min(size))))
        };
        let (file, size) = open().map_err(|error| write_error(&device.path, &error))?;
        Ok(LockOutcome::Locked(Box::new(Self {
            file,
            target: device.path.clone(),
            area: Some(Area {
                device: device.clone(),
                size,
                header: None,
            }),
            is_sparse: false,
            record: Record::default(),
            written: 0,
            sum: checksum.map(hash_of),
        })))
    }

    fn acquire_file(target: &Path, checksum: Option<&Checksum>) -> Result<LockOutcome, Problem> {
        let problem = |error| write_error(target, &error);
        if let Some(bytes) = existing_size(target)? {
            return Ok(LockOutcome::Complete(bytes));
        }
        let path = part_of(target);
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&path).map_err(problem)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::AGAIN) => {
                return Ok(LockOutcome::LockedByOther(
                    file.metadata().map_err(problem)?.len(),
                ));
            }
            Err(error) => {
                return Err(Problem::new(
                    FetchReason::RepositoryNotWritable,
                    format!(
                        "the runner cannot lock the file {}: {error}; use a volume that supports file locks (flock) for the \
                         image repository",
                        path.display()
                    ),
                ));
            }
        }
        // Another process may have renamed or removed the file between open and lock.
        let opened = file.metadata().map_err(problem)?;
        let is_same =
            |present: fs::Metadata| (opened.dev(), opened.ino()) == (present.dev(), present.ino());
        if !fs::symlink_metadata(&path).is_ok_and(is_same) {
            return Ok(LockOutcome::LockedByOther(0));
        }
        if let Some(bytes) = existing_size(target)? {
            let _ = fs::remove_file(path);
            return Ok(LockOutcome::Complete(bytes));
        }
        let sum = checksum.map(hash_of);
        let part = Self {
            file,
            target: target.to_owned(),
            area: None,
            is_sparse: false,
            record: Record::default(),
            written: 0,
            sum,
        };
        Ok(LockOutcome::Locked(Box::new(part)))
    }

    /// Resumes the download of a previous process if its metadata is valid, else starts at the first byte.
    pub fn resume(&mut self) -> Result<(), Problem> {
        let previous = fs::read(record_of(self.metadata()))
            .ok()
            .and_then(|text| serde_json::from_slice::<Record>(&text).ok());
        let length = match &self.area {
            Some(area) => Ok(area.size),
            None => self.file.metadata().map(|it| it.len()),
        };
        let length = length.map_err(|error| self.write_error(&error))?;
        match previous {
            Some(record)
                if record.validator.is_some()
                    && record.bytes > 0
                    && record.bytes.saturating_add(record.offset) <= length =>
            {
                self.written = record.bytes;
                self.record = record;
                self.truncate_and_hash()
                    .map_err(|error| self.write_error(&error))
            }
            _ => self.begin(None, None),
        }
    }

    fn truncate_and_hash(&mut self) -> io::Result<()> {
        if self.area.is_none() {
            self.file.set_len(self.written)?;
        }
        if let Some(sum) = &mut self.sum {
            self.file.seek(SeekFrom::Start(self.record.offset))?;
            let mut buffer = vec![0; 1 << 18];
            let mut rest = (&self.file).take(self.written);
            loop {
                let n = rest.read(&mut buffer)?;
                match buffer.get(..n) {
                    Some(read) if n > 0 => sum.update(read),
                    _ => break,
                }
            }
            if rest.limit() > 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        let end = self.record.offset.saturating_add(self.written);
        self.file.seek(SeekFrom::Start(end)).map(drop)
    }

    /// Discards all bytes and starts the download of an image with this validator and size.
    pub fn begin(
        &mut self,
        validator: Option<Validator>,
        total: Option<u64>,
    ) -> Result<(), Problem> {
        self.record = Record {
            bytes: 0,
            total,
            validator,
            offset: 0,
        };
        self.written = 0;
        if let Some(sum) = &mut self.sum {
            sum.reset();
        }
        let written = self.write_record();
        let fresh = written.and_then(|()| match &mut self.area {
            Some(area) => {
                area.header = Some(Vec::new());
                Ok(())
            }
            None => self.file.set_len(0).and_then(|()| self.file.rewind()),
        });
        fresh.map_err(|error| self.write_error(&error))
    }

    /// Appends the bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        let end = self.written.saturating_add(bytes.len() as u64);
        let waiting = self.area.as_mut().and_then(|area| area.header.as_mut());
        if let Some(header) = waiting {
            header.extend_from_slice(bytes);
        } else {
            self.write_to_disk(bytes)?;
        }
        self.written = end;
        if let Some(sum) = &mut self.sum {
            sum.update(bytes);
        }
        let area = self.area.as_ref();
        let is_header = |area: &Area| {
            let header = area.header.as_ref();
            header.is_some_and(|it| it.len() >= area.device.header_length)
        };
        if area.is_some_and(is_header) {
            self.write_header()?;
        }
        if self.written.saturating_sub(self.record.bytes) < SAVE_INTERVAL_BYTES {
            Ok(())
        } else {
            self.save()
        }
    }

    /// Decides the position on the device, unless it is decided, and writes the first bytes there.
    fn write_header(&mut self) -> Result<(), Problem> {
        let Some(area) = &mut self.area else {
            return Ok(());
        };
        let Some(bytes) = &area.header else {
            return Ok(());
        };
        let header = Header {
            bytes,
            total: self.record.total,
            device: area.size,
        };
        // Without a position, the bytes are not on the device.
        self.record.offset = (area.device.place)(&header)?;
        let bytes = area.header.take().unwrap_or_default();
        let sought = self.file.seek(SeekFrom::Start(self.record.offset));
        sought.map_err(|error| self.write_error(&error))?;
        self.written = 0;
        self.write_to_disk(&bytes)?;
        self.written = bytes.len() as u64;
        Ok(())
    }

    /// Writes the bytes after those that are written.
    fn write_to_disk(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        if let Some(area) = &self.area {
            let start = self.record.offset.saturating_add(self.written);
            let end = start.saturating_add(bytes.len() as u64);
            if end > area.size {
                let message = format!(
                    "the image does not fit on the disk {}, which has {} for it; use a larger PVC",
                    self.target.display(),
                    size(area.size.saturating_sub(self.record.offset))
                );
                return Err(Problem::new(FetchReason::TooLarge, message));
            }
        }
        let is_hole = self.is_sparse && bytes.iter().all(|byte| *byte == 0);
        let written = match i64::try_from(bytes.len()) {
            Ok(length) if is_hole => self.file.seek(SeekFrom::Current(length)).map(drop),
            _ => self.file.write_all(bytes),
        };
        written.map_err(|error| self.write_error(&error))
    }

    /// Writes the bytes to the disk, and then their number to the metadata.
    pub fn save(&mut self) -> Result<(), Problem> {
        if self.area.as_ref().is_some_and(|it| it.header.is_some()) {
            // The position of the bytes is unknown.
            return Ok(());
        }
        self.file
            .sync_data()
            .map_err(|error| self.write_error(&error))?;
        self.record.bytes = self.written;
        self.write_record()
            .map_err(|error| self.write_error(&error))
    }

    /// Saves the bytes that are not saved yet.
    pub fn save_unsaved(&mut self) -> Result<(), Problem> {
        if self.written == self.record.bytes {
            Ok(())
        } else {
            self.save()
        }
    }

    fn write_record(&self) -> io::Result<()> {
        let path = record_of(self.metadata());
        let fresh = temporary_record_of(self.metadata());
        let text = serde_json::to_vec(&self.record).map_err(io::Error::other)?;
        fs::write(&fresh, text)
            .and_then(|()| fs::rename(&fresh, path))
            .inspect_err(|_| _ = fs::remove_file(&fresh))
    }

    /// Leaves holes in the file for chunks of zeros.
    pub fn make_sparse(&mut self) {
        self.is_sparse = self.area.is_none();
    }

    /// Path of the metadata, without its ending.
    fn metadata(&self) -> &Path {
        let area = self.area.as_ref();
        area.map_or(&self.target, |area| &area.device.metadata)
    }

    /// Position of the first byte on a device.
    pub fn offset(&self) -> u64 {
        self.record.offset
    }

    /// Size of the partial download in bytes.
    pub fn bytes(&self) -> u64 {
        self.written
    }

    /// Size of the complete image, if the server has reported it.
    pub fn total(&self) -> Option<u64> {
        self.record.total
    }

    /// The version of the image, if the server has reported it.
    pub fn validator(&self) -> Option<&Validator> {
        self.record.validator.as_ref()
    }

    /// Whether all bytes of the image are downloaded.
    pub fn is_complete(&self) -> bool {
        self.record.total == Some(self.written) && self.written > 0
    }

    /// Checks that the volume has space for an image of this size.
    pub fn check_free_space(&self, total: u64) -> Result<(), Problem> {
        if self.area.is_some() {
            // The first bytes decide.
            return Ok(());
        }
        let missing = total.saturating_sub(self.written);
        let volume =
            rustix::fs::fstatvfs(&self.file).map_err(|error| self.write_error(&error.into()))?;
        let free = volume.f_bavail.saturating_mul(volume.f_frsize);
        // Some network file systems report neither size nor free space.
        if volume.f_blocks == 0 || free >= missing {
            return Ok(());
        }
        let folder = self.target.parent().unwrap_or(&self.target).display();
        let message = format!(
            "{folder} has {} of free space, and the image needs {}",
            size(free),
            size(missing)
        );
        Err(Problem::new(FetchReason::RepositoryFull, message))
    }

    /// The checksum of all bytes so far, in lower-case hexadecimal digits. `None` if it is not computed.
    pub fn sum(&self) -> Option<String> {
        Some(hex(&self.sum.as_ref()?.box_clone().finalize()))
    }

    /// Writes all data to the disk and renames the partial download to the target file. On a device, the metadata remain.
    pub fn finish(&mut self) -> Result<(), Problem> {
        if self.area.is_some() {
            self.write_header()?;
            self.record.total = Some(self.written);
            return self.save();
        }
        let finish = || {
            if self.is_sparse {
                self.file.set_len(self.written)?;
            }
            self.file.sync_all()?;
            fs::rename(part_of(&self.target), &self.target)?;
            for path in [record_of(&self.target), temporary_record_of(&self.target)] {
                let _ = fs::remove_file(path);
            }
            File::open(self.target.parent().unwrap_or(Path::new("/")))?.sync_all()
        };
        finish().map_err(|error| self.write_error(&error))
    }

    /// Removes the partial download and its metadata.
    pub fn discard(&mut self) {
        self.written = 0;
        self.record = Record::default();
        let metadata = self.metadata();
        let data = self.area.is_none().then(|| part_of(&self.target));
        let metadata = [record_of(metadata), temporary_record_of(metadata)];
        for path in metadata.into_iter().chain(data) {
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != ErrorKind::NotFound
            {
                tracing::warn!(%error, "cannot remove the partial download {}; delete this file to free its space", path.display());
            }
        }
    }

    fn write_error(&self, error: &io::Error) -> Problem {
        write_error(&self.target, error)
    }
}

/// Creates the directory of a file.
pub fn create_directory(target: &Path) -> Result<(), Problem> {
    let folder = target.parent().unwrap_or(Path::new("/"));
    if folder.is_dir() {
        return Ok(());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)
        .map_err(|error| write_error(target, &error))
}

/// The size of the file, or `None` if it does not exist.
pub fn existing_size(target: &Path) -> Result<Option<u64>, Problem> {
    match fs::symlink_metadata(target) {
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata.len())),
        Ok(_) => {
            let message = format!(
                "{} exists, but is not a regular file; remove it, so that the download can create the file",
                target.display()
            );
            Err(Problem::new(FetchReason::RepositoryNotWritable, message))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(write_error(target, &error)),
    }
}

fn part_of(target: &Path) -> PathBuf {
    with_ending(target, ".part")
}

fn record_of(target: &Path) -> PathBuf {
    with_ending(target, ".part.json")
}

/// Temporary file of the metadata; a killed process can leave it behind.
fn temporary_record_of(target: &Path) -> PathBuf {
    with_ending(target, ".part.json.new")
}

fn with_ending(target: &Path, ending: &str) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// The error for a failed write to the image repository.
fn write_error(target: &Path, error: &io::Error) -> Problem {
    let folder = target.parent().unwrap_or(target).display();
    let uid = rustix::process::getuid().as_raw();
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            let message = format!("{folder} has no free space ({error})");
            Problem::new(FetchReason::RepositoryFull, message)
        }
        ErrorKind::ReadOnlyFilesystem => {
            let message =
                format!("{folder} is on a read-only volume ({error}); mount the volume writable");
            Problem::new(FetchReason::RepositoryNotWritable, message)
        }
        _ => {
            let gid = rustix::process::getgid().as_raw();
            let message = format!(
                "{folder} is not writable by uid {uid}: {error}; run `chown -R {uid}:{gid} {folder}` once as root, or use a \
                 volume that supports fsGroup"
            );
            Problem::new(FetchReason::RepositoryNotWritable, message)
        }
    }
}

#[cfg(test)]
mod tests;
