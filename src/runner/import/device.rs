//! (io) The import of an image onto a block device.
//!
//! ```text
//! raw    | image …                                     |
//! qcow2  | disk of the image … | the downloaded file … |
//! packed | disk of the image … | an unpacked qcow2 … | the downloaded file |
//! ```
//!
//! The files lie behind the disk of the image, because the pod has no other volume for them. Those of the last attempt are overwritten
//! with zeros after the conversion. The metadata of the download are in the runner data; their key contains the UID of the PVC.

use crate::api::runner::fetch::{FetchReason, Phase};
use crate::runner::fetch::problem::{Problem, size};
use crate::runner::fetch::{self, Destination, Device, Header, Origin, ProgressWriter, SharedPart};
use crate::runner::import::convert::{self, Source};
use crate::runner::import::copy::CopiedDisk;
use crate::runner::import::image::{Compression, Format, HEADER_LENGTH, Image};
use crate::runner::import::{blocking, problem_of, unpack};
use crate::runner::machine::{self, ImportTarget};
use rustix::fs::FallocateFlags;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The file begins at a multiple of this number of bytes, and devices with zeros in their first and last bytes are blank.
const MIB: u64 = 1 << 20;

/// The files of an import onto a device.
#[derive(Clone, Debug)]
pub struct DeviceFiles {
    device: PathBuf,
    /// The directory of the runner data.
    data: PathBuf,
    /// The beginning of the names of the metadata of all downloads for this device.
    prefix: String,
    /// The name of the metadata of this download, without its ending.
    name: String,
}

impl DeviceFiles {
    /// The files for a device and the key of an image.
    pub fn new(target: &ImportTarget, key: &str) -> Self {
        let name = target.disk.file_name().and_then(OsStr::to_str);
        let prefix = format!("import-{}.", name.unwrap_or_default());
        Self {
            device: target.disk.clone(),
            data: target.data.clone(),
            name: format!("{prefix}{key}"),
            prefix,
        }
    }

    /// Size of the device in bytes.
    pub fn size(&self) -> Result<u64, Problem> {
        let device = File::open(&self.device);
        let size = device.and_then(|mut device| device.seek(SeekFrom::End(0)));
        size.map_err(|error| self.failure(&error))
    }

    /// Whether the device has no contents.
    pub fn is_blank(&self) -> Result<bool, Problem> {
        machine::is_blank(&self.device).map_err(|error| self.failure(&error))
    }

    /// The bytes from this position, at most to the end of the device.
    fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, Problem> {
        let read = || {
            let mut device = File::open(&self.device)?;
            device.seek(SeekFrom::Start(offset))?;
            let mut bytes = Vec::new();
            device.take(length).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|error| self.failure(&error))
    }

    /// Removes the metadata of downloads, except those of this one with `retain_own`.
    pub fn remove_metadata(&self, retain_own: bool) -> Result<(), Problem> {
        let remove = || {
            for entry in fs::read_dir(&self.data)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with(&self.prefix) && !(retain_own && name.starts_with(&self.name)) {
                    fs::remove_file(entry.path())?;
                }
            }
            File::open(&self.data)?.sync_all()
        };
        remove().map_err(|error: io::Error| {
            let message = format!(
                "the runner cannot remove files in {}: {error}; check the volume of the runner data",
                self.data.display()
            );
            Problem::new(FetchReason::RepositoryNotWritable, message)
        })
    }

    /// Fills the device with the disk `from`. The import is recorded before the first byte is on the device.
    pub async fn copy(&self, target: &ImportTarget, from: &CopiedDisk) -> Result<u64, Problem> {
        let (files, recorded, bytes) = (self.clone(), target.clone(), from.bytes);
        blocking(move || {
            let volume = files.size()?;
            if bytes > volume {
                let message = format!(
                    "the disk that is copied has {}; the volume has {}; use a PVC of at least {}Mi",
                    size(bytes),
                    size(volume),
                    bytes.div_ceil(MIB)
                );
                return Err(Problem::new(FetchReason::TooLarge, message));
            }
            files.remove_metadata(false)?;
            recorded.record_import(false).map_err(problem_of)
        })
        .await?;
        convert::convert(from.source(), &self.device, bytes).await?;
        let files = self.clone();
        blocking(move || {
            let device = OpenOptions::new().write(true).open(&files.device);
            let synced = device.and_then(|device| device.sync_all());
            synced.map_err(|error| files.failure(&error))
        })
        .await?;
        Ok(bytes)
    }

    /// Downloads the image and fills the device with it. Returns the size of its disk in bytes. The import is recorded before the
    /// first byte is on the device.
    pub async fn fill(
        &self,
        target: &ImportTarget,
        arguments: fetch::Arguments,
        format: Option<Format>,
        origin: Origin,
        part: &OnceLock<SharedPart>,
    ) -> Result<u64, Problem> {
        let recorded = target.clone();
        let destination = self.destination("", None, move |header| {
            let position = match Compression::of(header.bytes) {
                Some(_) => packed_position(header)?,
                None => position(header, format, 0)?,
            };
            recorded.record_import(false).map_err(problem_of)?;
            Ok(position)
        });
        let (_, length) = fetch::download(arguments, destination, origin, part).await?;
        let downloaded = (fetch::offset(part.get()), length);
        let files = self.clone();
        let header = blocking(move || files.header(downloaded.0)).await?;
        let (area, header) = match Compression::of(&header) {
            Some(compression) => self.unpack(compression, downloaded, format).await?,
            None => (downloaded, header),
        };
        let image = Image::of(&header, format)?;
        let is_behind = match image {
            Image::Raw => area.0 == 0,
            Image::Qcow2(bytes) => area.0 >= bytes,
        };
        if !is_behind {
            let message = "the metadata of the download do not belong to the image on the device";
            self.remove_metadata(false)?;
            return Err(Problem::new(FetchReason::Interrupted, message));
        }
        let bytes = match image {
            Image::Raw => area.1,
            Image::Qcow2(bytes) => {
                tracing::info!("converting the image to a disk of {}", size(bytes));
                let source = Source {
                    path: &self.device,
                    area: Some(area),
                    format: Format::Qcow2,
                };
                convert::convert(source, &self.device, bytes).await?;
                bytes
            }
        };
        let files = self.clone();
        blocking(move || {
            // A process that is killed now has to download the image again.
            files.remove_metadata(false)?;
            let device = OpenOptions::new().write(true).open(&files.device);
            let zeroed = device.and_then(|device| {
                for (offset, length) in [area, downloaded] {
                    // A raw image is the disk.
                    if offset > 0 {
                        zero(&device, offset, length)?;
                    }
                }
                device.sync_all()
            });
            zeroed.map_err(|error| files.failure(&error))
        })
        .await?;
        Ok(bytes)
    }

    /// Unpacks the downloaded image before its own area. Returns the area of the unpacked image, and its first bytes.
    async fn unpack(
        &self,
        compression: Compression,
        downloaded: (u64, u64),
        format: Option<Format>,
    ) -> Result<((u64, u64), Vec<u8>), Problem> {
        tracing::info!("unpacking the image");
        let end = Some(downloaded.0);
        let destination = self.destination(".unpacked", end, move |header| {
            position(header, format, downloaded.1)
        });
        let mut progress = ProgressWriter::new(Phase::Conversion);
        let part = fetch::acquire_part(&destination, None, &mut progress).await?;
        let part = part.ok_or_else(|| self.failure(&io::ErrorKind::AlreadyExists.into()))?;
        let source = Source {
            path: &self.device,
            area: Some(downloaded),
            format: Format::Raw,
        };
        let length = unpack::unpack(compression, source, &part, None).await?;
        let (files, offset) = (self.clone(), fetch::offset(Some(&part)));
        let header = blocking(move || files.header(offset)).await?;
        Ok(((offset, length), header))
    }

    fn destination(
        &self,
        ending: &str,
        end: Option<u64>,
        place: impl Fn(&Header<'_>) -> Result<u64, Problem> + Send + Sync + 'static,
    ) -> Destination {
        Destination::Device(Device {
            path: self.device.clone(),
            metadata: self.data.join(format!("{}{ending}", self.name)),
            header_length: HEADER_LENGTH,
            place: Arc::new(place),
            end,
        })
    }

    /// The first bytes of the image with this position.
    fn header(&self, offset: u64) -> Result<Vec<u8>, Problem> {
        self.read(offset, u64::try_from(HEADER_LENGTH).unwrap_or(u64::MAX))
    }

    fn failure(&self, error: &io::Error) -> Problem {
        let step = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "configure the node's container runtime to give block devices to the pod's user \
                 (device_ownership_from_security_context), or set deviceAccess to root in the operator's ConfigMap"
            }
            _ => "check the volume",
        };
        let message = format!(
            "the runner cannot use the disk {}: {error}; {step}",
            self.device.display()
        );
        Problem::new(FetchReason::RepositoryNotWritable, message)
    }
}

/// Overwrites the area with zeros.
fn zero(device: &File, offset: u64, length: u64) -> io::Result<()> {
    const BLOCK: u64 = 4096;
    let write = |from: u64, to: u64| {
        let mut device = device;
        device.seek(SeekFrom::Start(from))?;
        let zeros = io::repeat(0).take(to.saturating_sub(from));
        let mut zeros = io::BufReader::with_capacity(1 << 18, zeros);
        io::copy(&mut zeros, &mut device).map(drop)
    };
    // A device zeros whole blocks only.
    let end = offset.saturating_add(length);
    let (first, last) = (
        offset.next_multiple_of(BLOCK).min(end),
        (end - end % BLOCK).max(offset),
    );
    let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    if first >= last
        || rustix::fs::fallocate(device, flags, first, last.saturating_sub(first)).is_err()
    {
        return write(offset, end);
    }
    write(offset, first)?;
    write(last, end)
}

/// The position of a compressed image, which ends where the device ends.
fn packed_position(header: &Header<'_>) -> Result<u64, Problem> {
    let Some(total) = header.total else {
        let message = "the server does not report the size of the compressed image (Content-Length), which an import onto a disk with \
            volumeMode Block needs; use another server, or publish the image without compression";
        return Err(Problem::new(FetchReason::ServerRefused, message));
    };
    header.device.checked_sub(total).ok_or_else(|| {
        let message = format!(
            "the compressed image has {}; the volume has {}; use a PVC of more than {}Mi",
            size(total),
            size(header.device),
            total.div_ceil(MIB)
        );
        Problem::new(FetchReason::TooLarge, message)
    })
}

/// The position of the image on the device, which has a downloaded file of this length at its end.
fn position(header: &Header<'_>, format: Option<Format>, downloaded: u64) -> Result<u64, Problem> {
    let total = header.total.unwrap_or(0);
    let (disk, position) = match Image::of(header.bytes, format)? {
        Image::Raw => (total, 0),
        Image::Qcow2(bytes) => (bytes, bytes.next_multiple_of(MIB)),
    };
    let needed = position.saturating_add(total).max(disk);
    if needed <= header.device {
        return Ok(position);
    }
    let file = match position {
        0 => String::new(),
        _ => format!(
            ", and its file, which is beside the disk during the import, {}",
            size(total)
        ),
    };
    // The unpacked file has an unknown length.
    let at_least = match header.total {
        Some(_) => "at least",
        None => "more than",
    };
    let message = format!(
        "the disk of the image has {}{file}; the volume has {}; use a PVC of {at_least} {}Mi",
        size(disk),
        size(header.device.saturating_add(downloaded)),
        needed.saturating_add(downloaded).div_ceil(MIB)
    );
    Err(Problem::new(FetchReason::TooLarge, message))
}
