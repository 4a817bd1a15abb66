//! (io) Downloads the image in one or more attempts. Each attempt resumes after the bytes of the previous one.

use crate::api::runner::fetch::{Checksum, FetchReason};
use crate::runner::fetch::address::Address;
use crate::runner::fetch::answer::{Answer, RangeRequest, Validator};
use crate::runner::fetch::client::{Client, unreachable};
use crate::runner::fetch::part::Part;
use crate::runner::fetch::problem::{Problem, chain, size, task_failure};
use crate::runner::fetch::progress::ProgressWriter;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Delays between attempts that have received data. After the last one the process exits, and the operator retries.
const RETRY_DELAYS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];
/// Received data is written in chunks of this size in bytes, or after this time.
const CHUNK_SIZE: usize = 256 << 10;
const WRITE_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum sum of the delays that servers request with `Retry-After` in one download.
const RETRY_AFTER_SUM_MAX: Duration = Duration::from_secs(300);
/// Maximum number of such delays in one download.
const RETRY_AFTER_COUNT_MAX: u32 = 5;

/// The remaining delays that servers may request.
struct RetryAfterBudget {
    sum: Duration,
    count: u32,
}

impl Default for RetryAfterBudget {
    fn default() -> Self {
        Self {
            sum: RETRY_AFTER_SUM_MAX,
            count: RETRY_AFTER_COUNT_MAX,
        }
    }
}

impl RetryAfterBudget {
    /// The delay for a requested delay, at least a second. `None` if the budget is exhausted; then the process exits, and
    /// the operator retries later.
    fn take(&mut self, requested: Duration) -> Option<Duration> {
        let delay = requested.max(Duration::from_secs(1));
        self.sum = self.sum.checked_sub(delay)?;
        self.count = self.count.checked_sub(1)?;
        Some(delay)
    }
}

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

/// A download in progress.
pub struct Transfer {
    pub client: Client,
    pub address: Address,
    /// Maximum size of the image.
    pub max_bytes: Option<u64>,
    /// Expected checksum, in lower-case hexadecimal digits.
    pub checksum: Option<Checksum>,
    pub part: SharedPart,
    pub progress: ProgressWriter,
    /// Bytes that this attempt has received.
    received: u64,
    /// Whether the bytes come from more than one response.
    is_resumed: bool,
}

impl Transfer {
    /// A download of `address` into `part`, without limits.
    pub fn new(client: Client, address: Address, part: SharedPart) -> Self {
        let progress = ProgressWriter::default();
        Self {
            client,
            address,
            max_bytes: None,
            checksum: None,
            part,
            progress,
            received: 0,
            is_resumed: false,
        }
    }

    /// Downloads the image. Returns its size.
    pub async fn run(&mut self) -> Result<u64, Problem> {
        let mut delays = RETRY_DELAYS.into_iter();
        let mut budget = RetryAfterBudget::default();
        loop {
            self.received = 0;
            match self.attempt().await {
                Ok(()) => {
                    if let Some(bytes) = self.complete().await? {
                        return Ok(bytes);
                    }
                }
                Err(problem) => {
                    let is_interrupted =
                        problem.reason == FetchReason::ServerUnreachable && self.received > 0;
                    let (delay, cause) = match problem.retry_after {
                        _ if is_interrupted => (delays.next(), ""),
                        Some(requested) => (
                            budget.take(requested),
                            ", as the server requests (Retry-After)",
                        ),
                        None => (None, ""),
                    };
                    let Some(delay) = delay else {
                        return Err(problem);
                    };
                    let seconds = delay.as_secs();
                    tracing::warn!(
                        "{problem}; the runner retries the download in {seconds} s{cause}"
                    );
                    tokio::time::sleep(delay).await;
                }
            }
        }
    }

    /// Makes one attempt, and saves the received bytes.
    async fn attempt(&mut self) -> Result<(), Problem> {
        if with_part(&self.part, |part| part.is_complete()).await? {
            self.is_resumed = true;
            return Ok(());
        }
        let body = self.open().await?;
        let received = self.receive(body).await;
        with_part(&self.part, Part::save_unsaved).await??;
        received?;
        let (bytes, total) = with_part(&self.part, |part| (part.bytes(), part.total())).await?;
        match total {
            Some(total) if bytes < total => Err(unreachable(format!(
                "the connection ended after {} of {} were received; check the server and the network",
                size(bytes),
                size(total)
            ))
            .at(&self.place())),
            _ => Ok(()),
        }
    }

    /// Requests the bytes after the partial download, or the complete image.
    async fn open(&mut self) -> Result<Incoming, Problem> {
        for _ in 0..2 {
            let known = |part: &mut Part| (part.bytes(), part.total(), part.validator().cloned());
            let (bytes, total, validator) = with_part(&self.part, known).await?;
            let offset = if validator.is_some() { bytes } else { 0 };
            let has_checksum = self.checksum.is_some();
            let range = RangeRequest {
                offset,
                validator: validator.as_ref(),
                total,
                has_checksum,
            };
            match self.client.open(&self.address, range).await? {
                (
                    Answer::Bytes {
                        offset,
                        total,
                        validator,
                    },
                    body,
                ) => {
                    self.accept(offset, total, validator).await?;
                    return Ok(body);
                }
                (Answer::Changed | Answer::Redirect(_), _) => {
                    tracing::info!(
                        "{} has changed on the server since the download of its first part; the runner downloads the complete \
                         image again",
                        self.address
                    );
                    with_part(&self.part, |part| part.begin(None, None)).await??;
                }
            }
        }
        Err(Problem::new(
            FetchReason::ServerRefused,
            format!(
                "{}: the server answers a request for the complete image with only a part of the image; use another URL",
                self.address
            ),
        ))
    }

    async fn accept(
        &mut self,
        offset: u64,
        total: Option<u64>,
        validator: Option<Validator>,
    ) -> Result<(), Problem> {
        if let Some(total) = total {
            self.check_size(total).await?;
        }
        self.is_resumed = offset > 0;
        with_part(&self.part, move |part| {
            total.map_or(Ok(()), |total| part.check_free_space(total))?;
            if offset == 0 {
                part.begin(validator, total)
            } else {
                Ok(())
            }
        })
        .await?
    }

    /// Receives the body until its end.
    async fn receive(&mut self, mut body: Incoming) -> Result<(), Problem> {
        let (mut chunk, mut written) = (Vec::with_capacity(CHUNK_SIZE), Instant::now());
        let end = loop {
            match tokio::time::timeout(self.client.silence(), body.frame()).await {
                Err(_) => break Err(self.client.silence_error().at(&self.place())),
                Ok(None) => break Ok(()),
                Ok(Some(Err(error))) => break Err(unreachable(chain(&error)).at(&self.place())),
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
        end
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
                self.address
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
    async fn check_size(&self, bytes: u64) -> Result<(), Problem> {
        let Some(most) = self.max_bytes.filter(|&most| bytes > most) else {
            return Ok(());
        };
        with_part(&self.part, Part::discard).await?;
        let message = format!(
            "{} has a size of at least {}, but the maximum is {}; use a smaller image, or raise the maximum (--max-bytes, \
             or imageRepository.fetch.maxSize in the operator's ConfigMap)",
            self.address,
            size(bytes),
            size(most)
        );
        Err(Problem::new(FetchReason::TooLarge, message))
    }

    /// Checks the complete download, and renames it to the target file. `None` if the checksum of a resumed download is
    /// wrong, so that the complete image must be downloaded again.
    async fn complete(&mut self) -> Result<Option<u64>, Problem> {
        let (bytes, sum) = with_part(&self.part, |part| (part.bytes(), part.sum())).await?;
        if bytes == 0 {
            with_part(&self.part, Part::discard).await?;
            return Err(Problem::new(
                FetchReason::ServerRefused,
                format!(
                    "{}: the file on the server is empty; correct the URL",
                    self.address
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
                    self.address
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
                "{} has the {name} {sum}, but the configured checksum is {}; correct the checksum or the URL",
                self.address,
                wanted.digits()
            );
            return Err(Problem::new(FetchReason::ChecksumMismatch, message));
        }
        with_part(&self.part, Part::finish).await??;
        Ok(Some(bytes))
    }

    fn place(&self) -> String {
        self.address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_left_alone_as_long_as_it_wants_within_bounds() {
        let seconds = Duration::from_secs;
        let mut budget = RetryAfterBudget::default();
        assert_eq!(budget.take(seconds(200)), Some(seconds(200)));
        assert_eq!(budget.take(seconds(101)), None);
        let mut budget = RetryAfterBudget::default();
        assert_eq!(budget.take(Duration::ZERO), Some(seconds(1)));
        assert_eq!(
            (0..10).filter_map(|_| budget.take(Duration::ZERO)).count(),
            4
        );
        assert_eq!(RetryAfterBudget::default().take(Duration::MAX), None);
    }
}
