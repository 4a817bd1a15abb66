//! (io) Downloads the image in one or more attempts. Each attempt resumes after the bytes of the previous one.

use crate::api::runner::fetch::FetchReason;
use crate::runner::fetch::address::Address;
use crate::runner::fetch::answer::{Answer, RangeRequest, Validator};
use crate::runner::fetch::client::Client;
use crate::runner::fetch::part::Part;
use crate::runner::fetch::problem::Problem;
use crate::runner::fetch::receiver::{Receiver, with_part};
use hyper::body::Incoming;
use std::time::Duration;

/// Delays between attempts that have received data. After the last one the process exits, and the operator retries.
const RETRY_DELAYS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];
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

/// A download in progress.
pub struct Transfer {
    pub client: Client,
    pub address: Address,
    pub receiver: Receiver,
}

impl Transfer {
    /// Downloads the image. Returns its size.
    pub async fn run(&mut self) -> Result<u64, Problem> {
        let mut delays = RETRY_DELAYS.into_iter();
        let mut budget = RetryAfterBudget::default();
        loop {
            self.receiver.received = 0;
            match self.attempt().await {
                Ok(()) => {
                    if let Some(bytes) = self.receiver.complete().await? {
                        return Ok(bytes);
                    }
                }
                Err(problem) => {
                    let is_interrupted = problem.reason == FetchReason::ServerUnreachable
                        && self.receiver.received > 0;
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
        if with_part(&self.receiver.part, |part| part.is_complete()).await? {
            self.receiver.is_resumed = true;
            return Ok(());
        }
        let body = self.open().await?;
        let received = self.receiver.receive(body).await;
        with_part(&self.receiver.part, Part::save_unsaved).await??;
        received
    }

    /// Requests the bytes after the partial download, or the complete image.
    async fn open(&mut self) -> Result<Incoming, Problem> {
        for _ in 0..2 {
            let known = |part: &mut Part| (part.bytes(), part.total(), part.validator().cloned());
            let (bytes, total, validator) = with_part(&self.receiver.part, known).await?;
            let offset = if validator.is_some() { bytes } else { 0 };
            let has_checksum = self.receiver.checksum.is_some();
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
                    with_part(&self.receiver.part, |part| part.begin(None, None)).await??;
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
            self.receiver.check_size(total).await?;
        }
        self.receiver.is_resumed = offset > 0;
        with_part(&self.receiver.part, move |part| {
            total.map_or(Ok(()), |total| part.check_free_space(total))?;
            if offset == 0 {
                part.begin(validator, total)
            } else {
                Ok(())
            }
        })
        .await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_respected_within_limits() {
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
