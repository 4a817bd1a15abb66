//! (io) The conversion of a qcow2 image, or the copy of a disk, by `qemu-img`, which can open the two files and no socket.

use crate::api::runner::fetch::{FetchReason, Phase};
use crate::runner::failure::describe_exit;
use crate::runner::fetch::ProgressWriter;
use crate::runner::fetch::problem::Problem;
use crate::runner::harden::FileAccess;
use crate::runner::import::confined::{self, last_output, too_slow};
use crate::runner::import::image::Format;
use crate::runner::import::is_device;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

const PROGRAM: &str = "/usr/bin/qemu-img";
/// Data that `qemu-img` may allocate. It needs some tens of MiB and the stacks of its threads, and a malicious image could
/// request more.
const MEMORY_MAX: u64 = 1 << 30;

/// An image.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The file, or the block device that contains the image.
    pub path: &'a Path,
    /// Position and length of the image on the device, in bytes.
    pub area: Option<(u64, u64)>,
    /// The format, whatever the bytes are.
    pub format: Format,
}

impl Source<'_> {
    /// The image in the words of `qemu-img`. It has no backing file, whatever its header says.
    fn node(&self) -> Value {
        let driver = match is_device(self.path) {
            true => "host_device",
            false => "file",
        };
        let file = json!({"driver": driver, "filename": self.path});
        let file = match self.area {
            None => file,
            // QEMU reads whole sectors.
            Some((offset, size)) => {
                json!({"driver": "raw", "offset": offset, "size": size.next_multiple_of(512), "file": file})
            }
        };
        match self.format {
            Format::Raw => json!({"driver": "raw", "file": file}),
            Format::Qcow2 => json!({"driver": "qcow2", "backing": null, "file": file}),
        }
    }

    fn phase(self) -> Phase {
        match self.format {
            Format::Raw => Phase::Copy,
            Format::Qcow2 => Phase::Conversion,
        }
    }

    /// Reads the whole image, because programs do not tell an unreadable volume from a damaged image.
    ///
    /// # Errors
    /// The volume cannot be read.
    pub async fn check_readable(self) -> Result<(), Problem> {
        let (path, area) = (self.path.to_owned(), self.area);
        let read = move || {
            let mut file = File::open(path)?;
            let (offset, size) = area.unwrap_or((0, u64::MAX));
            file.seek(SeekFrom::Start(offset))?;
            io::copy(&mut file.take(size), &mut io::sink())
        };
        let read = tokio::task::spawn_blocking(read).await;
        match read.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(_) => Ok(()),
            Err(error) => {
                let message =
                    format!("the volume of the image cannot be read: {error}; check the volume");
                Err(Problem::new(FetchReason::RepositoryNotWritable, message))
            }
        }
    }
}

/// Writes the disk of the image, with this size in bytes, into the existing empty file `to`, or to the beginning of its own device.
pub async fn convert(from: Source<'_>, to: &Path, bytes: u64) -> Result<(), Problem> {
    let failure = |error: io::Error| {
        let reason = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => FetchReason::Unknown,
            _ => FetchReason::Interrupted,
        };
        let message = format!(
            "the runner cannot run {PROGRAM}: {error}; check the image of the runner and the limits of the pod"
        );
        Problem::new(reason, message)
    };
    let mut child = start(from, to).map_err(failure)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (_, text, status) = tokio::join!(
        report_progress(stdout, from.phase(), bytes),
        last_output(stderr),
        child.wait()
    );
    let status = status.map_err(failure)?;
    if status.success() {
        return Ok(());
    }
    let problem = problem_of(status, &text);
    if from.format == Format::Raw && problem.reason == FetchReason::ImageRefused {
        // The bytes of a disk are never damaged: the volume cannot be read now.
        let message = format!("the disk cannot be copied: {text}");
        return Err(Problem::new(FetchReason::Interrupted, message));
    }
    if problem.reason != FetchReason::RepositoryNotWritable || !text.contains("while reading") {
        return Err(problem);
    }
    // qemu-img reports damage of the image, too, as an I/O error.
    from.check_readable().await?;
    match from.format {
        Format::Raw => Err(problem),
        Format::Qcow2 => Err(damaged(&text)),
    }
}

/// Starts `qemu-img`. It is killed when the result is dropped.
fn start(from: Source<'_>, to: &Path) -> io::Result<Child> {
    // The areas of a device do not overlap, so both may be open at once.
    let shared = from.area.map(|_| "-U");
    // A device cannot be created.
    let present = is_device(to).then_some("-n");
    let mut command = Command::new(PROGRAM);
    command
        .args(["convert", "-p", "-O", "raw"])
        .args(shared)
        .args(present)
        .arg(format!("json:{}", from.node()))
        .arg(to)
        .stdin(Stdio::null());
    confined::start(
        command,
        FileAccess::of_conversion(from.path, to),
        MEMORY_MAX,
    )
}

/// Reports the progress that `qemu-img` writes.
async fn report_progress(output: Option<impl AsyncRead + Unpin>, phase: Phase, bytes: u64) {
    let mut progress = ProgressWriter::new(phase);
    progress.write(0, Some(bytes));
    let Some(mut output) = output else { return };
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = output.read(&mut buffer).await {
        let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
        if let Some(share) = last_share(&text) {
            let done = u128::from(bytes) * u128::from(share) / 10_000;
            progress.write(u64::try_from(done).unwrap_or(bytes), Some(bytes));
        }
    }
}

/// The last complete share such as `(12.34/100%)`, in hundredths of a per cent.
fn last_share(text: &str) -> Option<u32> {
    let share = |text: &str| {
        let (number, _) = text.split_once("/100%)")?;
        let (whole, hundredths) = number.split_once('.')?;
        let whole: u32 = whole.parse().ok().filter(|whole| *whole <= 100)?;
        let hundredths: u32 = hundredths.parse().ok().filter(|it| *it < 100)?;
        Some((whole * 100 + hundredths).min(10_000))
    };
    text.rsplit('(').find_map(share)
}

/// The error for a failed `qemu-img` and the end of its error output.
fn problem_of(status: ExitStatus, text: &str) -> Problem {
    let has = |messages: &[&str]| messages.iter().any(|message| text.contains(message));
    if let Some(signal) = status.signal() {
        if let Some(problem) = too_slow("qemu-img", signal) {
            return problem;
        }
        let message = format!(
            "qemu-img has exited: {}; check the memory limit of the pod",
            describe_exit(-signal)
        );
        return Problem::new(FetchReason::Interrupted, message);
    }
    if has(&["Failed to get shared"]) {
        let message = format!(
            "another process writes to the disk that is copied; stop the VM that uses it ({text})"
        );
        return Problem::new(FetchReason::SourceInUse, message);
    }
    if has(&["No space left on device", "Disk quota exceeded"]) {
        let message = format!(
            "the volume has no space for the disk of the image and the downloaded file ({text})"
        );
        return Problem::new(FetchReason::RepositoryFull, message);
    }
    if has(&["Cannot allocate memory", "Resource temporarily unavailable"]) {
        let message =
            format!("qemu-img has no memory or no threads; raise the limits of the pod ({text})");
        return Problem::new(FetchReason::Interrupted, message);
    }
    if has(&[
        "Input/output error",
        "Read-only file system",
        "Permission denied",
        "Operation not permitted",
        "Stale file handle",
        "error while writing",
    ]) {
        let message = format!("qemu-img cannot use its files; check the volume ({text})");
        return Problem::new(FetchReason::RepositoryNotWritable, message);
    }
    damaged(text)
}

fn damaged(text: &str) -> Problem {
    let message =
        format!("qemu-img cannot convert the image: {text}; check the image with `qemu-img check`");
    Problem::new(FetchReason::ImageRefused, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_complete_share_is_the_progress() {
        for (text, share) in [
            ("    (0.00/100%)\r", Some(0)),
            ("    (1.00/100%)\r    (12.34/100%)\r", Some(1234)),
            ("    (12.34/100%)\r    (13.0", Some(1234)),
            ("    (100.00/100%)\r\n", Some(10_000)),
            ("4/100%)\r", None),
            ("(-1.00/100%) (4294967295.99/100%) (nan/100%)", None),
        ] {
            assert_eq!(last_share(text), share, "{text:?}");
        }
    }

    #[test]
    fn only_complaints_about_the_image_are_final() {
        let (failed, killed) = (ExitStatus::from_raw(0x100), ExitStatus::from_raw(9));
        for (status, text, reason) in [
            (killed, "", FetchReason::Interrupted),
            (
                failed,
                "error while writing at byte 0: No space left on device",
                FetchReason::RepositoryFull,
            ),
            (
                failed,
                "Could not resize file: Disk quota exceeded",
                FetchReason::RepositoryFull,
            ),
            (
                failed,
                "error while writing at byte 0: Input/output error",
                FetchReason::RepositoryNotWritable,
            ),
            (
                failed,
                "Could not allocate buffer: Cannot allocate memory",
                FetchReason::Interrupted,
            ),
            (
                failed,
                "Failed to get shared \"write\" lock",
                FetchReason::SourceInUse,
            ),
            (failed, "qcow2: Image is corrupt", FetchReason::ImageRefused),
            (
                failed,
                "Active L1 table too large",
                FetchReason::ImageRefused,
            ),
        ] {
            assert_eq!(problem_of(status, text).reason, reason, "{text}");
        }
    }
}
