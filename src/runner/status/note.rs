//! (pure) What is worth an event.

use crate::api::conditions::ConditionReason;
use crate::runner::state::Phase;

/// What is worth an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The machine is somewhere else.
    Phase(Phase),
    /// A console was connected from that host.
    ConsoleConnected(String),
    /// The console from that host is gone.
    ConsoleDisconnected(String),
    /// The machine's TPM has ended before it.
    TpmEnded(String),
}

impl Note {
    /// Action, reason and note of the event; addresses are in the note alone (B42).
    pub fn texts(&self) -> (&'static str, &'static str, String) {
        match self {
            Self::Phase(phase) => {
                let (reason, note) = announcement(*phase);
                ("StatusUpdate", reason.as_str(), note.to_owned())
            }
            Self::ConsoleConnected(host) => {
                ("ConsoleConnectionUpdate", "ConsoleConnected", format!("a console is connected from {host}"))
            }
            Self::ConsoleDisconnected(host) => {
                ("ConsoleConnectionUpdate", "ConsoleDisconnected", format!("the console from {host} is gone"))
            }
            Self::TpmEnded(what) => ("StatusUpdate", ConditionReason::TpmEnded.as_str(), what.clone()),
        }
    }

    /// Whether somebody should look at it.
    pub fn is_warning(&self) -> bool {
        matches!(self, Self::TpmEnded(_))
    }
}

/// Running, in one word and one sentence; also reason and note of an event.
pub fn announcement(phase: Phase) -> (ConditionReason, &'static str) {
    match phase {
        Phase::Starting => (ConditionReason::RunnerStarted, "QEMU is being started"),
        Phase::Booting => (ConditionReason::VmStarted, "QEMU runs the guest"),
        Phase::Booted => (ConditionReason::VmBooted, "the guest's agent has answered"),
        Phase::Terminating => (ConditionReason::VmTerminating, "the guest is being shut down"),
        Phase::Stopped => (ConditionReason::VmStopped, "the machine is shut down"),
    }
}
