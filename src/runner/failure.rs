//! (pure) Why the runner cannot go on: what ends in the termination message and as the exit code.

use crate::api::runner::outcome::{EndReason, Outcome};

/// Something that the VM cannot be without. The message says what is wrong, where, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Which of the closed list of reasons it is.
    pub reason: EndReason,
    /// One line for the user.
    pub message: String,
}

impl Failure {
    /// A failure for that reason.
    pub fn new(reason: EndReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    /// Something that the VM needs cannot be read or written.
    pub fn data(message: impl Into<String>) -> Self {
        Self::new(EndReason::DataNotAccessible, message)
    }

    /// QEMU failed before the guest ran.
    pub fn start(message: impl Into<String>) -> Self {
        Self::new(EndReason::StartFailed, message)
    }

    /// The outcome where QEMU never ran.
    pub fn outcome(&self) -> Outcome {
        Outcome {
            reason: self.reason,
            message: self.message.clone(),
            qemu_exit: None,
            by_guest: false,
        }
    }
}

/// How a program ended, by its exit code or minus its signal.
pub fn ending(status: i32) -> String {
    match status {
        -9 => "signal 9; somebody killed it, or it was out of memory".to_owned(),
        signal if signal < 0 => format!("signal {}", -signal),
        code => format!("exit code {code}"),
    }
}

/// The message, and what a program has said last, if it has.
pub fn with_words(message: &str, words: &str) -> String {
    if words.is_empty() {
        message.to_owned()
    } else {
        format!("{message}: {words}")
    }
}

/// A value of the configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct Invalid {
    /// Where in the file, as `vm.drives[0].file`.
    pub key: String,
    /// The value, what is wrong with it and what is allowed.
    pub problem: String,
}

impl Invalid {
    /// An invalid value of that key.
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            problem: problem.into(),
        }
    }

    /// The value is not among the allowed ones, which the second text describes.
    pub fn value(key: impl Into<String>, value: &str, allowed: &str) -> Self {
        Self::new(key, format!("{value:?} is not allowed; use {allowed}"))
    }
}
