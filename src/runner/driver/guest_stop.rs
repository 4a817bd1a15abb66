//! (io) Handles a guest that QEMU has stopped by itself.

use crate::runner::driver::{Driver, TaskResult};
use crate::runner::failure;
use crate::runner::machine::Acceleration;
use crate::runner::qmp::Command;
use crate::runner::state::Event;
use serde_json::Value;

/// QEMU's reason for a shutdown because of an error on the host. All other reasons are caused by
/// the guest or the runner.
const HOST_ERROR_REASON: &str = "host-error";

/// The reason why QEMU has stopped the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopCause {
    /// The guest has powered itself off.
    Off,
    /// A disk reported an error.
    Disk,
    /// The guest's CPU cannot continue.
    Error,
    /// The guest has reported a crash.
    Crash,
}

impl StopCause {
    /// The cause for QEMU's run state, or None if the guest runs or will run.
    fn of(run_state: &str) -> Option<Self> {
        match run_state {
            "shutdown" => Some(Self::Off),
            "io-error" => Some(Self::Disk),
            "internal-error" => Some(Self::Error),
            "guest-panicked" => Some(Self::Crash),
            _ => None,
        }
    }
}

impl Driver {
    /// Queries QEMU's run state. The QMP event for a stop does not contain the cause.
    pub(super) fn query_stop_cause(&self) {
        let (monitor, task_results) = (self.monitor.clone(), self.task_results.clone());
        tokio::spawn(async move {
            let Ok(status) = monitor.execute(Command::query_status()).await else {
                return;
            };
            let stop = status
                .get("status")
                .and_then(Value::as_str)
                .and_then(StopCause::of);
            stop.map(|stop| task_results.send(TaskResult::GuestStopped(stop)));
        });
    }

    pub(super) fn guest_stopped(&mut self, by: StopCause) {
        match by {
            StopCause::Off => self.step(Event::GuestOff),
            // A disk's error event comes first and has more details.
            StopCause::Disk if self.observed.stalled.is_some() => {}
            StopCause::Disk => self.disk_stalled(),
            StopCause::Error => self.guest_cannot_continue(),
            StopCause::Crash => {
                self.guest_failed("the guest's kernel has crashed and has reported a panic to QEMU (event guest-panicked)".to_owned())
            }
        }
        self.reporter.publish(&self.observed);
    }

    /// QEMU has shut the VM down for a reason other than the guest.
    pub(super) fn qemu_shut_down(&mut self, reason: &str) {
        if reason == HOST_ERROR_REASON {
            self.guest_failed(format!(
                "QEMU has shut the VM down because of an error on the node ({reason}); read the log of the pod and the log of \
                 the node's kernel"
            ));
        }
    }

    /// The guest's CPU cannot continue. Under KVM, the cause is KVM.
    fn guest_cannot_continue(&mut self) {
        let words = self.qemu.kvm_error().unwrap_or_default();
        if self.observed.acceleration != Acceleration::Kvm {
            let why = "QEMU has stopped the guest permanently after an internal error";
            return self.guest_failed(failure::with_output(why, &words));
        }
        let why = "KVM cannot resume the guest after an internal error (run state internal-error)";
        let why = failure::with_output(why, &words);
        tracing::error!("{why}");
        self.step(Event::KvmFailed(why));
    }

    fn guest_failed(&mut self, why: String) {
        tracing::error!("{why}");
        self.step(Event::GuestHalted(why));
    }
}

#[cfg(test)]
mod tests;
