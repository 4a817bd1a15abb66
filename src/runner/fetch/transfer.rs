//! (io) Brings the image: try after try, each going on where the last one ended.

use crate::api::runner::fetch::FetchReason;
use crate::runner::fetch::address::Address;
use crate::runner::fetch::answer::{Answer, Asked, Validator};
use crate::runner::fetch::client::{Client, unreachable};
use crate::runner::fetch::part::Part;
use crate::runner::fetch::problem::{Problem, chain, size};
use crate::runner::fetch::progress::Teller;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Between two tries, the first of which has brought something. After the last, it is for others to try again.
const PAUSES: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];
/// So many bytes are written at once, or what has come within a second.
const CHUNK: usize = 256 << 10;
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// How long a server that says so is left alone, all waits of a fetch together, and how often.
const PATIENCE: (Duration, u32) = (Duration::from_secs(300), 5);

/// What is left of it.
struct Patience(Duration, u32);

impl Default for Patience {
    fn default() -> Self {
        Self(PATIENCE.0, PATIENCE.1)
    }
}

impl Patience {
    /// The time to wait, at least a second; `None`: that is for others, after a longer time.
    fn wait(&mut self, wanted: Duration) -> Option<Duration> {
        let pause = wanted.max(Duration::from_secs(1));
        self.0 = self.0.checked_sub(pause)?;
        self.1 = self.1.checked_sub(1)?;
        Some(pause)
    }
}

/// A part, and the right to write it: also for what has to leave it in order when the fetch is given up.
pub type Shared = Arc<Mutex<Part>>;

/// Does that with the part, where waiting for the disk does not matter.
pub async fn with<T: Send + 'static>(
    part: &Shared,
    work: impl FnOnce(&mut Part) -> T + Send + 'static,
) -> Result<T, Problem> {
    let part = Arc::clone(part);
    let done = tokio::task::spawn_blocking(move || {
        work(&mut part.lock().unwrap_or_else(PoisonError::into_inner))
    });
    done.await
        .map_err(|error| Problem::new(FetchReason::Unknown, format!("a task has failed: {error}")))
}

/// What is fetched, and how far it is.
pub struct Transfer {
    pub client: Client,
    pub address: Address,
    /// Size that is too large.
    pub max_bytes: Option<u64>,
    /// In lower-case digits.
    pub sha256: Option<String>,
    pub part: Shared,
    pub teller: Teller,
    /// Bytes that this try has brought.
    received: u64,
    /// Whether the part is put together from several answers.
    is_patched: bool,
}

impl Transfer {
    /// A transfer of that address into that part, without limits.
    pub fn new(client: Client, address: Address, part: Shared) -> Self {
        let teller = Teller::default();
        Self {
            client,
            address,
            max_bytes: None,
            sha256: None,
            part,
            teller,
            received: 0,
            is_patched: false,
        }
    }

    /// Brings the image to its place; gives its size.
    pub async fn run(&mut self) -> Result<u64, Problem> {
        let (mut pauses, mut patience) = (PAUSES.into_iter(), Patience::default());
        loop {
            self.received = 0;
            match self.once().await {
                Ok(()) => {
                    if let Some(bytes) = self.complete().await? {
                        return Ok(bytes);
                    }
                }
                Err(problem) => {
                    let broke_off =
                        problem.reason == FetchReason::ServerUnreachable && self.received > 0;
                    let (pause, why) = match problem.again_after {
                        _ if broke_off => (pauses.next(), ""),
                        Some(wanted) => (patience.wait(wanted), ", as the server wants"),
                        None => (None, ""),
                    };
                    let Some(pause) = pause else {
                        return Err(problem);
                    };
                    tracing::warn!("{problem}; another try in {} s{why}", pause.as_secs());
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// One try. Afterwards there is all that it has brought, or nothing that is of use.
    async fn once(&mut self) -> Result<(), Problem> {
        if with(&self.part, |part| part.is_whole()).await? {
            self.is_patched = true;
            return Ok(());
        }
        let body = self.open().await?;
        let brought = self.take(body).await;
        with(&self.part, Part::save_if_there).await??;
        brought?;
        let (bytes, total) = with(&self.part, |part| (part.bytes(), part.total())).await?;
        match total {
            Some(total) if bytes < total => Err(unreachable(format!(
                "the connection was cut at {} of {}",
                size(bytes),
                size(total)
            ))
            .at(&self.place())),
            _ => Ok(()),
        }
    }

    /// The bytes that follow the part.
    async fn open(&mut self) -> Result<Incoming, Problem> {
        for _ in 0..2 {
            let known = |part: &mut Part| (part.bytes(), part.total(), part.validator().cloned());
            let (bytes, total, validator) = with(&self.part, known).await?;
            let offset = if validator.is_some() { bytes } else { 0 };
            let has_checksum = self.sha256.is_some();
            let asked = Asked {
                offset,
                validator: validator.as_ref(),
                total,
                has_checksum,
            };
            match self.client.open(&self.address, asked).await? {
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
                    tracing::info!("{} is not what it was; all of it is fetched", self.address);
                    with(&self.part, |part| part.begin(None, None)).await??;
                }
            }
        }
        Err(Problem::new(
            FetchReason::ServerRefused,
            format!("{} cannot be asked for a part of it", self.address),
        ))
    }

    async fn accept(
        &mut self,
        offset: u64,
        total: Option<u64>,
        validator: Option<Validator>,
    ) -> Result<(), Problem> {
        if let Some(total) = total {
            self.fits(total).await?;
        }
        self.is_patched = offset > 0;
        with(&self.part, move |part| {
            // What is thrown away makes room, too.
            total.map_or(Ok(()), |total| part.room(total))?;
            if offset == 0 {
                part.begin(validator, total)
            } else {
                Ok(())
            }
        })
        .await?
    }

    /// Takes what comes until its end.
    async fn take(&mut self, mut body: Incoming) -> Result<(), Problem> {
        let (mut chunk, mut written) = (Vec::with_capacity(CHUNK), Instant::now());
        let end = loop {
            match tokio::time::timeout(self.client.silence(), body.frame()).await {
                Err(_) => break Err(self.client.silent().at(&self.place())),
                Ok(None) => break Ok(()),
                Ok(Some(Err(error))) => break Err(unreachable(chain(&error)).at(&self.place())),
                Ok(Some(Ok(frame))) => {
                    let bytes = frame.data_ref().map_or(&[][..], |bytes| bytes);
                    chunk.extend_from_slice(bytes);
                    self.received = self.received.saturating_add(bytes.len() as u64);
                }
            }
            if chunk.len() >= CHUNK || written.elapsed() >= WRITE_EVERY {
                chunk = self.put(chunk).await?;
                written = Instant::now();
            }
        };
        self.put(chunk).await?;
        end
    }

    /// Writes the chunk, and gives it back empty.
    async fn put(&mut self, mut chunk: Vec<u8>) -> Result<Vec<u8>, Problem> {
        let (bytes, total) = with(&self.part, |part| (part.bytes(), part.total())).await?;
        let bytes = bytes.saturating_add(chunk.len() as u64);
        self.fits(bytes).await?;
        if total.is_some_and(|total| total < bytes) {
            with(&self.part, Part::discard).await?;
            let message = format!(
                "{}: the server sent more bytes than its Content-Length announced",
                self.address
            );
            return Err(Problem::new(FetchReason::ServerRefused, message));
        }
        chunk = with(&self.part, move |part| {
            part.write(&chunk)?;
            chunk.clear();
            Ok(chunk)
        })
        .await??;
        self.teller.tell(bytes, total);
        Ok(chunk)
    }

    /// Nothing is kept of what is too large.
    async fn fits(&self, bytes: u64) -> Result<(), Problem> {
        let Some(most) = self.max_bytes.filter(|&most| bytes > most) else {
            return Ok(());
        };
        with(&self.part, Part::discard).await?;
        let message = format!(
            "{} has {} or more, and {} are allowed",
            self.address,
            size(bytes),
            size(most)
        );
        Err(Problem::new(FetchReason::TooLarge, message))
    }

    /// Checks what has come, and puts it in its place. `None`: it was put together, and is not what was asked for.
    async fn complete(&mut self) -> Result<Option<u64>, Problem> {
        let (bytes, sum) = with(&self.part, |part| (part.bytes(), part.sum())).await?;
        if bytes == 0 {
            with(&self.part, Part::discard).await?;
            return Err(Problem::new(
                FetchReason::ServerRefused,
                format!("{} is empty; is the URL right?", self.address),
            ));
        }
        if let Some((wanted, sum)) = self
            .sha256
            .as_ref()
            .zip(sum)
            .filter(|(wanted, sum)| *wanted != sum)
        {
            if std::mem::take(&mut self.is_patched) {
                tracing::warn!(
                    "{}: the checksum of the continued download is wrong; the whole image is downloaded again",
                    self.address
                );
                with(&self.part, |part| part.begin(None, None)).await??;
                return Ok(None);
            }
            with(&self.part, Part::discard).await?;
            let message = format!(
                "{} has the SHA-256 {sum}, and {wanted} is wanted; one of them is wrong",
                self.address
            );
            return Err(Problem::new(FetchReason::ChecksumMismatch, message));
        }
        with(&self.part, Part::finish).await??;
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
        let mut patience = Patience::default();
        assert_eq!(patience.wait(seconds(200)), Some(seconds(200)));
        assert_eq!(patience.wait(seconds(101)), None);
        let mut patience = Patience::default();
        assert_eq!(patience.wait(Duration::ZERO), Some(seconds(1)));
        assert_eq!(
            (0..10)
                .filter_map(|_| patience.wait(Duration::ZERO))
                .count(),
            4
        );
        assert_eq!(Patience::default().wait(Duration::MAX), None);
    }
}
