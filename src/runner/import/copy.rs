//! (io) The disk that is copied. Its bytes are never interpreted.

use crate::api::runner::fetch::FetchReason;
use crate::runner::fetch::problem::Problem;
use crate::runner::import::convert::Source;
use crate::runner::import::image::Format;
use crate::runner::import::is_device;
use crate::runner::machine;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// An opened disk.
#[derive(Debug)]
pub struct CopiedDisk {
    path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// A block device is held exclusively until the end of the copy, as by the runner of a VM. QEMU locks image files.
    _held: File,
}

impl CopiedDisk {
    /// Opens the disk.
    ///
    /// # Errors
    /// It is missing or empty, or a VM of this node uses it.
    pub fn open(path: PathBuf) -> Result<Self, Problem> {
        let flags = if is_device(&path) { libc::O_EXCL } else { 0 };
        let mut options = OpenOptions::new();
        let mut open = || {
            let mut file = options.read(true).custom_flags(flags).open(&path)?;
            let bytes = file.seek(SeekFrom::End(0))?;
            Ok((file, bytes))
        };
        match open() {
            Ok((_, bytes)) if bytes == 0 || is_empty_device(&path) => {
                Err(missing(&path, "it is empty"))
            }
            Ok((held, bytes)) => Ok(Self {
                path,
                bytes,
                _held: held,
            }),
            Err(error) => Err(failure(&path, &error)),
        }
    }

    /// The disk in the words of the conversion.
    pub fn source(&self) -> Source<'_> {
        Source {
            path: &self.path,
            area: None,
            format: Format::Raw,
        }
    }
}

/// Whether nothing was ever written to the device. A guest on a copy would be lost without a message.
fn is_empty_device(path: &Path) -> bool {
    is_device(path) && machine::is_blank(path).unwrap_or(false)
}

fn failure(path: &Path, error: &io::Error) -> Problem {
    if error.kind() == ErrorKind::ResourceBusy {
        let message = format!(
            "the disk that is copied, {}, is in use by a VM or another copy, or is mounted on this node; stop that VM",
            path.display()
        );
        return Problem::new(FetchReason::SourceInUse, message);
    }
    missing(path, &error.to_string())
}

fn missing(path: &Path, problem: &str) -> Problem {
    let message = format!(
        "the disk that is copied, {}, cannot be used: {problem}; name a PVC with a disk of a VM, which the user of the pod can read",
        path.display()
    );
    Problem::new(FetchReason::SourceMissing, message)
}
