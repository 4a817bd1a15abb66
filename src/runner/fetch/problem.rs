//! (pure) Why a fetch cannot go on.

use crate::api::runner::fetch::FetchReason;
use std::error::Error;
use std::time::Duration;

/// What ends a fetch, or one try of it. The message says what is wrong, where, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// Which of the closed list of reasons it is.
    pub reason: FetchReason,
    /// One line for the user.
    pub message: String,
    /// How long the server wants to be left alone, if it says so.
    pub again_after: Option<Duration>,
}

impl Problem {
    /// A problem for that reason.
    pub fn new(reason: FetchReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            again_after: None,
        }
    }

    /// The same, of that place.
    #[must_use]
    pub fn at(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }
}

/// An error with all that has caused it, in one line, nothing twice.
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

/// A size for a person, in the largest binary unit of which it has one, with a digit after the point.
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
    fn an_error_is_told_with_its_causes_and_none_of_them_twice() {
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
