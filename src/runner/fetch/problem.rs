//! (pure) The error of a download.

use crate::api::runner::fetch::{FetchOutcome, FetchReason};
use std::error::Error;
use std::time::Duration;

/// The error of a download or of one attempt. The message names the problem, its place and the next step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// The machine-readable reason.
    pub reason: FetchReason,
    /// Message for the user, in one line.
    pub message: String,
    /// The delay before the next request, if the server requests one.
    pub retry_after: Option<Duration>,
}

impl Problem {
    /// An error with this reason and message.
    pub fn new(reason: FetchReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            retry_after: None,
        }
    }

    /// The outcome of a download with this error, after which that many bytes are saved.
    #[must_use]
    pub fn outcome(self, bytes: u64) -> FetchOutcome {
        FetchOutcome {
            reason: self.reason,
            message: self.message,
            bytes,
        }
    }

    /// The error with its place, such as a URL, in front of the message.
    #[must_use]
    pub fn at(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }
}

/// The message for a task of the runtime that panicked or was cancelled, which is a defect of this program.
pub fn task_failure(error: &tokio::task::JoinError) -> String {
    format!("a task of the download has failed: {error}; report this as a bug of vm-runner")
}

/// The messages of an error and its causes, in one line and without repetitions.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// A size in the largest binary unit that it reaches, with one decimal digit.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let (mut tenths, mut unit) = (bytes.saturating_mul(10) / 1024, UNITS[0]);
    for larger in UNITS.into_iter().skip(1) {
        if tenths < 10240 {
            break;
        }
        (tenths, unit) = (tenths / 1024, larger);
    }
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_for_people() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1.0 KiB"),
            (1024 * 1024 - 1, "1023.9 KiB"),
            (4_700_000_000, "4.3 GiB"),
            (3 << 50, "3072.0 TiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn error_chain_contains_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Outer(&'static str, #[source] std::io::Error);
        assert_eq!(
            chain(&Outer("cannot connect", std::io::Error::other("no route"))),
            "cannot connect: no route"
        );
        assert_eq!(
            chain(&Outer(
                "cannot connect: no route",
                std::io::Error::other("no route")
            )),
            "cannot connect: no route"
        );
    }
}
