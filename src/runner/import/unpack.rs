//! (io) Unpacking of a compressed image by the program of its format, which can open no file and no socket.

use crate::api::runner::fetch::{FetchReason, Phase};
use crate::runner::failure::describe_exit;
use crate::runner::fetch::problem::{Problem, size};
use crate::runner::fetch::{Part, ProgressWriter, SharedPart, with_part};
use crate::runner::harden::FileAccess;
use crate::runner::import::confined::{last_output, start, too_slow};
use crate::runner::import::convert::Source;
use crate::runner::import::image::Compression;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// Data that the program may allocate, in bytes. Its own limit is smaller, so that it can report it.
const MEMORY_MAX: u64 = 192 << 20;
/// Unpacked data is written in chunks of this size in bytes.
const CHUNK_SIZE: usize = 256 << 10;

/// Writes the unpacked image, with at most this number of bytes, to the part. Returns its size in bytes.
pub async fn unpack(
    compression: Compression,
    from: Source<'_>,
    to: &SharedPart,
    max: Option<u64>,
) -> Result<u64, Problem> {
    let (begin, mut input) = open(from).map_err(|error| failure(&error))?;
    let length = input.metadata().map_or(0, |it| it.len());
    let length = from.area.map_or(length, |(_, length)| length);
    let stdin = input.try_clone().map_err(|error| failure(&error))?;
    let mut command = Command::new(compression.program());
    command.args(compression.arguments()).stdin(stdin);
    let access = FileAccess::of_filter();
    let mut child = start(command, access, MEMORY_MAX).map_err(|error| failure(&error))?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let unpack = async {
        let mut progress = ProgressWriter::new(Phase::Conversion);
        with_part(to, |part| part.begin(None, None)).await??;
        let Some(mut output) = output else {
            return Ok(());
        };
        loop {
            let mut chunk = Vec::with_capacity(CHUNK_SIZE);
            while chunk.len() < CHUNK_SIZE {
                match output.read_buf(&mut chunk).await {
                    Ok(1..) => {}
                    _ => break,
                }
            }
            if chunk.is_empty() {
                return Ok(());
            }
            let write = move |part: &mut Part| part.write(&chunk).map(|()| part.bytes());
            let written = with_part(to, write).await??;
            if let Some(max) = max.filter(|max| written > *max) {
                let message = format!(
                    "the unpacked image has more than {}, the size of the volume; use a larger PVC",
                    size(max)
                );
                return Err(Problem::new(FetchReason::TooLarge, message));
            }
            // The program reads the same open file.
            let read = input.stream_position().unwrap_or(begin);
            progress.write(read.saturating_sub(begin), Some(length));
        }
    };
    let unpacked = async {
        let unpacked = unpack.await;
        if unpacked.is_err() {
            // It would wait for its output to be read.
            drop(child.start_kill());
        }
        (unpacked, child.wait().await)
    };
    let ((unpacked, status), text) = tokio::join!(unpacked, last_output(errors));
    unpacked?;
    let status = status.map_err(|error| failure(&error))?;
    if !status.success() {
        from.check_readable().await?;
        return Err(problem_of(compression, status, &text));
    }
    with_part(to, |part| {
        part.finish()?;
        Ok(part.bytes())
    })
    .await?
}

/// The opened image, whose next byte is its first, and the position of this byte.
fn open(from: Source<'_>) -> io::Result<(u64, File)> {
    let mut file = File::open(from.path)?;
    let begin = from.area.map_or(0, |(offset, _)| offset);
    file.seek(SeekFrom::Start(begin))?;
    Ok((begin, file))
}

fn failure(error: &io::Error) -> Problem {
    let message =
        format!("the runner cannot unpack the image: {error}; check the image of the runner");
    Problem::new(FetchReason::Interrupted, message)
}

/// The error for a failed program and the end of its error output.
fn problem_of(compression: Compression, status: ExitStatus, text: &str) -> Problem {
    let program = compression.name();
    if let Some(signal) = status.signal() {
        if let Some(problem) = too_slow(program, signal) {
            return problem;
        }
        let message = format!(
            "{program} has exited: {}; check the memory limit of the pod",
            describe_exit(-signal)
        );
        return Problem::new(FetchReason::Interrupted, message);
    }
    let message = format!(
        "{program} cannot unpack the image: {text}; check the image with `{program} -t`, or publish it with a smaller dictionary"
    );
    Problem::new(FetchReason::ImageRefused, message)
}
