//! (io) Writes received bytes to a partial download, within its limits, and completes the image.

use crate::api::runner::fetch::{Checksum, FetchReason};
use crate::runner::fetch::client::{silence_error, unreachable};
use crate::runner::fetch::part::Part;
use crate::runner::fetch::problem::{Problem, chain, size, task_failure};
use crate::runner::fetch::progress::ProgressWriter;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Received data is written in chunks of this size in bytes, or after this time.
const CHUNK_SIZE: usize = 256 << 10;
const WRITE_INTERVAL: Duration = Duration::from_secs(1);

/// A locked partial download. It is shared with the code that saves it when the process is interrupted.
pub type SharedPart = Arc<Mutex<Part>>;

/// Runs `work` in a thread that may wait for the disk.
pub async fn with_part<T: Send + 'static>(
    part: &SharedPart,
    work: impl FnOnce(&mut Part) -> T + Send + 'static,
) -> Result<T, Problem> {
    let part = Arc::clone(part);
    let done = tokio::task::spawn_blocking(move || {
        work(&mut part.lock().unwrap_or_else(PoisonError::into_inner))
    });
    done.await
        .map_err(|error| Problem::new(FetchReason::Unknown, task_failure(&error)))
}

/// A partial download that receives an image.
pub struct Receiver {
    pub part: SharedPart,
    pub progress: ProgressWriter,
    /// Maximum size of the image in bytes.
    pub max_bytes: Option<u64>,
    /// Expected checksum, in lower-case hexadecimal digits.
    pub checksum: Option<Checksum>,
    /// Maximum time without received bytes.
    pub silence: Duration,
    /// The image in messages, such as its URL.
    pub origin: String,
    /// Bytes that this attempt has received.
    pub received: u64,
    /// Whether the bytes come from more than one response of a server.
    pub is_resumed: bool,
    /// The end of its sender stops the attempt.
    pub stop: Option<oneshot::Receiver<()>>,
}

impl Receiver {
    /// Receives the body until its end.
    pub async fn receive(&mut self, mut body: Incoming) -> Result<(), Problem> {
        let (mut chunk, mut written) = (Vec::with_capacity(CHUNK_SIZE), Instant::now());
        let end = loop {
            let frame = tokio::select! {
                frame = tokio::time::timeout(self.silence, body.frame()) => frame,
                () = stopped(&mut self.stop) => {
                    break Err(unreachable("another connection continues").at(&self.origin));
                }
            };
            match frame {
                Err(_) => break Err(silence_error(self.silence).at(&self.origin)),
                Ok(None) => break Ok(()),
                Ok(Some(Err(error))) => break Err(unreachable(chain(&error)).at(&self.origin)),
                Ok(Some(Ok(frame))) => {
                    let bytes = frame.data_ref().map_or(&[][..], |bytes| bytes);
                    chunk.extend_from_slice(bytes);
                    self.received = self.received.saturating_add(bytes.len() as u64);
                }
            }
            if chunk.len() >= CHUNK_SIZE || written.elapsed() >= WRITE_INTERVAL {
                chunk = self.write_chunk(chunk).await?;
                written = Instant::now();
            }
        };
        self.write_chunk(chunk).await?;
        end?;
        let (bytes, total) = with_part(&self.part, |part| (part.bytes(), part.total())).await?;
        match total {
            Some(total) if bytes < total => Err(unreachable(format!(
                "the connection ended after {} of {} were received; check the server and the network",
                size(bytes),
                size(total)
            ))
            .at(&self.origin)),
            _ => Ok(()),
        }
    }

    /// Writes the chunk, and returns its empty buffer.
    async fn write_chunk(&mut self, mut chunk: Vec<u8>) -> Result<Vec<u8>, Problem> {
        let (bytes, total) = with_part(&self.part, |part| (part.bytes(), part.total())).await?;
        let bytes = bytes.saturating_add(chunk.len() as u64);
        self.check_size(bytes).await?;
        if total.is_some_and(|total| total < bytes) {
            with_part(&self.part, Part::discard).await?;
            let message = format!(
                "{}: the server has sent more bytes than its Content-Length announced; check the server or use another URL",
                self.origin
            );
            return Err(Problem::new(FetchReason::ServerRefused, message));
        }
        chunk = with_part(&self.part, move |part| {
            part.write(&chunk)?;
            chunk.clear();
            Ok(chunk)
        })
        .await??;
        self.progress.write(bytes, total);
        Ok(chunk)
    }

    /// Checks the maximum size. A download that is too large is removed.
    pub async fn check_size(&self, bytes: u64) -> Result<(), Problem> {
        let Some(most) = self.max_bytes.filter(|&most| bytes > most) else {
            return Ok(());
        };
        with_part(&self.part, Part::discard).await?;
        let message = format!(
            "{} has a size of at least {}, but the maximum is {}; use a smaller image, or raise the maximum (--max-bytes, \
             or imageRepository.fetch.maxSize in the operator's ConfigMap)",
            self.origin,
            size(bytes),
            size(most)
        );
        Err(Problem::new(FetchReason::TooLarge, message))
    }

    /// Checks the complete image, and gives the file its name. `None` if the checksum of a resumed download is wrong, so that the
    /// complete image must be sent again.
    ///
    /// # Errors
    /// The image is empty, or its checksum is wrong. Then no part remains.
    pub async fn complete(&mut self) -> Result<Option<u64>, Problem> {
        let (bytes, sum) = with_part(&self.part, |part| (part.bytes(), part.sum())).await?;
        if bytes == 0 {
            with_part(&self.part, Part::discard).await?;
            return Err(Problem::new(
                FetchReason::ServerRefused,
                format!(
                    "{}: the file on the server is empty; correct the URL",
                    self.origin
                ),
            ));
        }
        if let Some((wanted, sum)) = self
            .checksum
            .as_ref()
            .zip(sum)
            .filter(|(wanted, sum)| wanted.digits() != sum)
        {
            if std::mem::take(&mut self.is_resumed) {
                tracing::warn!(
                    "{}: the checksum of the resumed download is wrong; the runner downloads the complete image again",
                    self.origin
                );
                with_part(&self.part, |part| part.begin(None, None)).await??;
                return Ok(None);
            }
            with_part(&self.part, Part::discard).await?;
            let name = match wanted {
                Checksum::Sha256(_) => "SHA-256",
                Checksum::Sha512(_) => "SHA-512",
            };
            let message = format!(
                "{} has the {name} {sum}, but the configured checksum is {}; correct the checksum or the image",
                self.origin,
                wanted.digits()
            );
            return Err(Problem::new(FetchReason::ChecksumMismatch, message));
        }
        with_part(&self.part, Part::finish).await??;
        Ok(Some(bytes))
    }
}

async fn stopped(stop: &mut Option<oneshot::Receiver<()>>) {
    match stop {
        Some(stop) => drop(stop.await),
        None => std::future::pending().await,
    }
}
