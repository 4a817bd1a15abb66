//! (pure) The errors of the runner: [`Failure`] ends the VM, [`Problem`] becomes a condition of a
//! running VM, and [`Invalid`] is a value of the configuration that cannot be used.

use crate::api::runner::outcome::{EndReason, Outcome};
use crate::api::vm::conditions::ConditionReason;

/// An error that ends the VM or prevents its start. It becomes the termination message and the exit
/// code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The reason, from a closed list.
    pub reason: EndReason,
    /// One line: the defect, its place, and the next step.
    pub message: String,
}

impl Failure {
    pub fn new(reason: EndReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    /// Data that the VM needs cannot be read or written.
    pub fn data(message: impl Into<String>) -> Self {
        Self::new(EndReason::DataNotAccessible, message)
    }

    /// QEMU failed before the guest started.
    pub fn start(message: impl Into<String>) -> Self {
        Self::new(EndReason::StartFailed, message)
    }

    /// The outcome if QEMU never ran.
    pub fn outcome(&self) -> Outcome {
        Outcome {
            reason: self.reason,
            message: self.message.clone(),
            qemu_exit: None,
            by_guest: false,
        }
    }
}

/// A defect of a VM that keeps running. It becomes a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The condition's reason.
    pub reason: ConditionReason,
    /// The defect, its place, and the next step.
    pub message: String,
}

impl Problem {
    pub fn new(reason: ConditionReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// Minus SIGKILL: the exit of a program that another process or the kernel has killed.
pub const KILLED: i32 = -9;

/// Describes the exit of a program, given its exit code or its negative signal.
pub fn describe_exit(status: i32) -> String {
    match status {
        KILLED => "signal 9 (SIGKILL): another process has killed the program, or the pod has run out of memory"
            .to_owned(),
        signal if signal < 0 => format!("signal {}", -signal),
        code => format!("exit code {code}"),
    }
}

/// The message, followed by a program's last output if there is any.
pub fn with_output(message: &str, output: &str) -> String {
    if output.is_empty() {
        message.to_owned()
    } else {
        format!("{message}: {output}")
    }
}

/// A value of the configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct Invalid {
    /// The key, such as `vm.drives[0].file`.
    pub key: String,
    /// The value, the defect and the allowed values.
    pub problem: String,
}

impl Invalid {
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            problem: problem.into(),
        }
    }

    /// A value that is not allowed. `next_step` names the allowed values.
    pub fn value(key: impl Into<String>, value: &str, next_step: &str) -> Self {
        Self::new(key, format!("{value:?} is not allowed; {next_step}"))
    }
}
