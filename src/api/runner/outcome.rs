//! How a VM's pod ended: what the runner leaves in its termination message and as its exit code.
//!
//! The message is one JSON object in the container's termination message; the operator reads it to decide whether
//! and when the VM starts again. It is absent where the runner had no chance to write it (out of memory, eviction,
//! a node's reboot).

use serde::{Deserialize, Serialize};
use strum::VariantArray;

/// Path that the kubelet reads the message from; the kubelet's default.
pub const TERMINATION_MESSAGE_PATH: &str = "/dev/termination-log";

/// Why the runner ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, VariantArray)]
pub enum EndReason {
    /// The guest powered itself off.
    GuestShutdown,
    /// The pod was asked to end: the guest was shut down, or switched off.
    Stopped,
    /// The configuration cannot be used.
    InvalidConfig,
    /// No firmware was found for the machine.
    FirmwareMissing,
    /// Something that the VM needs cannot be read or written.
    DataNotAccessible,
    /// A disk, or a directory of the VM, is in use by somebody else on the node.
    DiskInUse,
    /// A device that the pod has must not be opened by the pod's user.
    DeviceNotPermitted,
    /// Hardware acceleration is asked for and cannot be had.
    AcceleratorUnavailable,
    /// QEMU ended or failed before the guest ran.
    StartFailed,
    /// QEMU ended by itself while the guest ran.
    QemuCrashed,
    /// QEMU has stopped the guest by itself, for good: an error of KVM or of the host, or a guest that has crashed.
    GuestHalted,
    /// The connection to QEMU's monitor has ended before the guest ran.
    MonitorLost,
    /// A message by a newer runner.
    #[serde(other)]
    Unknown,
}

impl EndReason {
    /// The runner's exit code. 143 is never used, so that a runner killed by SIGTERM differs from each of these.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::GuestShutdown => 0,
            Self::Stopped => 10,
            Self::InvalidConfig => 64,
            Self::FirmwareMissing => 65,
            Self::DataNotAccessible => 66,
            Self::DiskInUse => 67,
            Self::DeviceNotPermitted => 68,
            Self::AcceleratorUnavailable => 69,
            Self::StartFailed => 70,
            Self::QemuCrashed => 71,
            Self::MonitorLost | Self::Unknown => 72,
            Self::GuestHalted => 73,
        }
    }
}

/// The termination message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// Why the runner ended.
    pub reason: EndReason,
    /// What a user should know about it: what is wrong, where, what to do. Empty for an ordinary end.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// QEMU's exit status, if it had started: its code, or minus the signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu_exit: Option<i32>,
    /// Whether the guest asked for its end itself.
    #[serde(default)]
    pub by_guest: bool,
}

/// Length of the longest message within an outcome, in characters: the kubelet keeps 4096 bytes of the whole.
const LONGEST_MESSAGE: usize = 1500;

/// As much of a message as a termination message has room for.
pub(super) fn shortened(message: &str) -> String {
    message.chars().take(LONGEST_MESSAGE).collect()
}

impl Outcome {
    /// Reads a termination message; `None` if it is not one of ours.
    #[must_use]
    pub fn parse(message: &str) -> Option<Self> {
        serde_json::from_str(message.trim()).ok()
    }

    /// The text for the termination message; a long message is cut.
    #[must_use]
    pub fn to_message(&self) -> String {
        let short = Self {
            message: shortened(&self.message),
            ..self.clone()
        };
        serde_json::to_string(&short).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_the_way_through_the_kubelet() {
        let outcome = Outcome {
            reason: EndReason::QemuCrashed,
            message: "ä".repeat(5000),
            qemu_exit: Some(-9),
            by_guest: false,
        };
        let text = outcome.to_message();
        assert!(text.len() < 4096);
        let read = Outcome::parse(&text).unwrap();
        assert_eq!(
            (read.reason, read.qemu_exit),
            (EndReason::QemuCrashed, Some(-9))
        );
    }

    #[test]
    fn what_is_not_ours_is_no_outcome_and_a_newer_reason_is_unknown() {
        assert_eq!(Outcome::parse(""), None);
        assert_eq!(Outcome::parse("OOMKilled"), None);
        assert_eq!(
            Outcome::parse(r#"{"reason":"Teleported"}"#).unwrap().reason,
            EndReason::Unknown
        );
    }
}
