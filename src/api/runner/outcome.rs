//! Termination message and exit code of the runner, which describe the end of a VM's pod.
//!
//! The runner writes one JSON object as the container's termination message. From it, the operator decides whether and when
//! the VM starts again. The message is missing if the runner could not write it: out of memory, eviction, or a reboot of the
//! node.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// Path from which the kubelet reads the termination message; the default of Kubernetes.
pub const TERMINATION_MESSAGE_PATH: &str = "/dev/termination-log";

/// The reason that the runner exited.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantArray,
)]
pub enum EndReason {
    /// The guest has powered itself off.
    GuestShutdown,
    /// The pod received a request to stop, and the guest was shut down or powered off.
    Stopped,
    /// The configuration is invalid.
    InvalidConfig,
    /// The image of the runner has no firmware of the configured kind.
    FirmwareMissing,
    /// The runner cannot read or write a file or volume that the VM needs.
    DataNotAccessible,
    /// The image file of a disk, or the runner data, does not exist, although an earlier start has used it.
    DataMissing,
    /// A disk is empty at its first start, although its PVC has a `dataSource`.
    DiskNotCloned,
    /// Another process on the node uses a disk or a directory of the VM.
    DiskInUse,
    /// The pod's user has no permission to open a device of the pod.
    DeviceNotPermitted,
    /// The configuration requires hardware acceleration, which is not available or has failed soon after the start.
    AcceleratorUnavailable,
    /// Hardware acceleration has failed after the guest had run for some time.
    AcceleratorFailed,
    /// QEMU exited or failed before the guest started.
    StartFailed,
    /// QEMU exited unexpectedly while the guest ran.
    QemuCrashed,
    /// QEMU has stopped the guest permanently, because of an error of the host or a crash of the guest.
    GuestHalted,
    /// The QMP connection was closed before the guest started.
    MonitorLost,
    /// A reason that only a newer runner knows.
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
            Self::DataMissing => 74,
            Self::AcceleratorFailed => 75,
            Self::DiskNotCloned => 76,
        }
    }
}

/// The termination message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The reason that the runner exited.
    pub reason: EndReason,
    /// Message for users: problem, place and next step. Empty after an ordinary end.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Exit status of QEMU, if it had started: the exit code, or the negative number of the signal that killed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu_exit: Option<i32>,
    /// Whether the guest requested the shutdown.
    #[serde(default)]
    pub by_guest: bool,
}

/// Maximum length of [`Outcome::message`], in characters. The kubelet retains 4096 bytes of a termination message.
const MESSAGE_CHARS_MAX: usize = 1500;

/// The beginning of a message that fits into a termination message.
pub(super) fn shortened(message: &str) -> String {
    message.chars().take(MESSAGE_CHARS_MAX).collect()
}

impl Outcome {
    /// Parses a termination message. `None` if the runner did not write it.
    #[must_use]
    pub fn parse(message: &str) -> Option<Self> {
        serde_json::from_str(message.trim()).ok()
    }

    /// The text of the termination message. A long message is truncated.
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
    fn a_long_message_fits_into_a_termination_message() {
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
    fn other_texts_are_no_outcome_and_a_newer_reason_is_unknown() {
        assert_eq!(Outcome::parse(""), None);
        assert_eq!(Outcome::parse("OOMKilled"), None);
        assert_eq!(
            Outcome::parse(r#"{"reason":"Teleported"}"#).unwrap().reason,
            EndReason::Unknown
        );
    }
}
