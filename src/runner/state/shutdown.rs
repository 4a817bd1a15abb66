//! (pure) Shutdown of a running VM: requests to the guest, the steps that end QEMU, and the outcome.
//!
//! ```text
//! shutdown requested    +timeout        +2 s                +4 s             +6 s
//!   agent, power button   quit            SIGINT              SIGKILL          outcome without QEMU's exit
//!   guest without agent and without use of its power button after 10 s: as guest off
//!   guest off: quit, 2 s later SIGINT ....................... SIGKILL
//!   power off: quit, 2 s later SIGINT, 10 s later at the latest SIGKILL
//! ```
//!
//! Invariants: quit and SIGINT let QEMU write its data, and are sent as early as possible. SIGKILL
//! loses data. It is sent after the guest's shutdown timeout, however often a shutdown is requested,
//! and at least 2 s after SIGINT. Within these limits it is sent at most 4 s after the timeout. The
//! TPM and the last report take 2 s each, so the runner exits within 10 s after the timeout. Only a
//! power-off shortens the timeout.

use crate::api::runner::outcome::{EndReason, Outcome};
use crate::runner::failure::{self, Failure};
use crate::runner::state::{Action, Phase, State};
use std::time::Duration;

/// Delay between two steps: QMP's quit, SIGINT, SIGKILL.
const ESCALATION_DELAY: Duration = Duration::from_secs(2);
/// Remaining time of a shutdown after a power-off, in which QEMU can write its data.
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(6);
/// Time for the guest agent alone, before the power button is pressed too.
const AGENT_SHUTDOWN_TIMEOUT_MAX: Duration = Duration::from_secs(30);

/// Delay between the first two presses of the power button.
const PRESS_DELAY_MIN: Duration = Duration::from_secs(10);

/// Time for a guest without an operating system, such as firmware that finds no disk. Its power button has no effect.
const POWER_BUTTON_CHECK_DELAY: Duration = Duration::from_secs(10);

/// State of a shutdown.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shutdown {
    pub(super) cause: ShutdownCause,
    pub(super) since: Duration,
    /// Time since then for the guest to shut down. It also delays SIGKILL if the guest is off
    /// earlier.
    pub(super) time: Duration,
    /// Whether that is the configured time.
    pub(super) is_configured_time: bool,
    pub(super) agent_asked: bool,
    pub(super) press_at: Option<Duration>,
    /// Delay after the next press of the power button. It grows up to a sixth of the time for the shutdown.
    pub(super) press_delay: Duration,
    /// Time of the check whether the guest can react to its power button.
    pub(super) check_at: Option<Duration>,
    pub(super) force: StopMethod,
    pub(super) force_at: Duration,
    /// Time of the previous step.
    pub(super) forced_at: Duration,
}

/// Cause of a shutdown.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ShutdownCause {
    Requested,
    Guest,
    Failed(Failure),
}

/// The next step to end QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopMethod {
    Quit,
    Interrupt,
    Kill,
    Abandon,
}

impl Shutdown {
    /// A shutdown without a delay.
    fn of(state: &State, cause: ShutdownCause, since: Duration) -> Self {
        let guest_ran = matches!(state.phase, Phase::Booting | Phase::Booted);
        // A guest that does not run yet needs no time.
        let time = if guest_ran {
            state.powerdown_timeout
        } else {
            Duration::ZERO
        };
        let (agent_asked, force) = (false, StopMethod::Quit);
        let (force_at, forced_at) = (since, since);
        Self {
            cause,
            since,
            time,
            is_configured_time: guest_ran,
            agent_asked,
            press_at: None,
            press_delay: PRESS_DELAY_MIN,
            check_at: None,
            force,
            force_at,
            forced_at,
        }
    }

    /// The time of the next step after the previous one.
    fn next_at(&self) -> Duration {
        let after_previous = self.forced_at + ESCALATION_DELAY;
        match self.force {
            StopMethod::Kill => after_previous.max(self.since + self.time + ESCALATION_DELAY * 2),
            StopMethod::Quit | StopMethod::Interrupt | StopMethod::Abandon => after_previous,
        }
    }
}

impl State {
    pub(super) fn request_agent_shutdown(&mut self) -> Vec<Action> {
        match &mut self.shutdown {
            Some(shutdown) if shutdown.force == StopMethod::Quit && !shutdown.agent_asked => {
                shutdown.agent_asked = true;
                vec![Action::ShutDownByAgent]
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn guest_off(&mut self, now: Duration) -> Vec<Action> {
        match &self.shutdown {
            // A requested shutdown: the cause is the request.
            Some(shutdown) if shutdown.force == StopMethod::Quit => {}
            Some(_) => return Vec::new(),
            None => self.begin_shutdown(Shutdown::of(self, ShutdownCause::Guest, now)),
        }
        self.escalate(now)
    }

    /// A permanently stopped guest cannot shut down, even if that was requested.
    pub(super) fn guest_halted(&mut self, now: Duration, failure: Failure) -> Vec<Action> {
        match &self.shutdown {
            Some(shutdown) if shutdown.force == StopMethod::Quit => self.escalate(now),
            Some(_) => Vec::new(),
            None => self.fail(now, failure),
        }
    }

    /// The reason of an end that KVM has caused at `now`.
    pub(super) fn kvm_failure_reason(&self, now: Duration) -> EndReason {
        match self.kvm_trial_end {
            Some(end) if now <= end => EndReason::AcceleratorUnavailable,
            _ => EndReason::AcceleratorFailed,
        }
    }

    /// A shutdown from a terminal. A second one skips the time of the guest. The time between SIGINT and SIGKILL
    /// remains, because QEMU may be writing.
    pub(super) fn interrupt(&mut self, now: Duration) -> Vec<Action> {
        match self.shutdown.as_ref().map(|shutdown| shutdown.force) {
            None => self.stop(now),
            Some(StopMethod::Quit | StopMethod::Interrupt) => self.escalate(now),
            Some(StopMethod::Kill | StopMethod::Abandon) => Vec::new(),
        }
    }

    pub(super) fn stop(&mut self, now: Duration) -> Vec<Action> {
        if self.shutdown.is_some() {
            return Vec::new();
        }
        let shutdown = Shutdown::of(self, ShutdownCause::Requested, now);
        let time = shutdown.time;
        let press_at = (!time.is_zero()).then(|| {
            now + if self.agent_open {
                AGENT_SHUTDOWN_TIMEOUT_MAX.min(time / 3)
            } else {
                Duration::ZERO
            }
        });
        // UEFI firmware opens the agent's channel too, so only an answer counts.
        let needs_check = self.phase == Phase::Booting && time > POWER_BUTTON_CHECK_DELAY;
        self.begin_shutdown(Shutdown {
            press_at,
            check_at: needs_check.then_some(now + POWER_BUTTON_CHECK_DELAY),
            force_at: now + time,
            ..shutdown
        });
        let mut actions = if press_at.is_some() && self.agent_open {
            self.request_agent_shutdown()
        } else {
            Vec::new()
        };
        actions.extend(self.tick(now));
        actions
    }

    /// A guest that does not use its power button cannot shut down, unless its agent has taken the request. Whether it has is known
    /// later: UEFI firmware opens the agent's channel and never answers.
    pub(super) fn power_button_unused(&mut self, now: Duration) -> Vec<Action> {
        match &mut self.shutdown {
            Some(shutdown) if shutdown.force == StopMethod::Quit && shutdown.agent_asked => {
                shutdown.check_at = Some(now + POWER_BUTTON_CHECK_DELAY);
                Vec::new()
            }
            Some(shutdown) if shutdown.force == StopMethod::Quit => self.escalate(now),
            _ => Vec::new(),
        }
    }

    pub(super) fn power_off(&mut self, now: Duration) -> Vec<Action> {
        let mut shutdown = self
            .shutdown
            .take()
            .unwrap_or_else(|| Shutdown::of(self, ShutdownCause::Requested, now));
        shutdown.time = shutdown
            .time
            .min(now.saturating_sub(shutdown.since) + POWER_OFF_TIMEOUT);
        shutdown.is_configured_time = false;
        let force = shutdown.force;
        if force == StopMethod::Kill {
            shutdown.force_at = shutdown.next_at();
        }
        self.begin_shutdown(shutdown);
        if force == StopMethod::Quit {
            self.escalate(now)
        } else {
            Vec::new()
        }
    }

    pub(super) fn fail(&mut self, now: Duration, failure: Failure) -> Vec<Action> {
        self.begin_shutdown(Shutdown::of(self, ShutdownCause::Failed(failure), now));
        self.escalate(now)
    }

    pub(super) fn begin_shutdown(&mut self, shutdown: Shutdown) {
        self.phase = Phase::Terminating;
        self.deadline = None;
        self.shutdown = Some(shutdown);
    }

    pub(super) fn timeout_changed(&mut self, timeout: Duration) -> Vec<Action> {
        self.powerdown_timeout = timeout;
        // A guest that did not run at the start of the shutdown has no time, and neither has one
        // after a power-off.
        if let Some(shutdown) = self
            .shutdown
            .as_mut()
            .filter(|shutdown| shutdown.is_configured_time)
        {
            shutdown.time = timeout;
            match shutdown.force {
                StopMethod::Quit => shutdown.force_at = shutdown.since + timeout,
                StopMethod::Kill => shutdown.force_at = shutdown.next_at(),
                StopMethod::Interrupt | StopMethod::Abandon => {}
            }
        }
        Vec::new()
    }

    /// Takes the next step to end QEMU. Without a QMP connection, the first step is SIGINT.
    pub(super) fn escalate(&mut self, now: Duration) -> Vec<Action> {
        let monitor = self.monitor == crate::runner::state::MonitorState::Ready;
        let Some(shutdown) = &mut self.shutdown else {
            return Vec::new();
        };
        (shutdown.press_at, shutdown.check_at) = (None, None);
        let (action, next) = match shutdown.force {
            StopMethod::Quit if monitor => (Action::Quit, StopMethod::Interrupt),
            StopMethod::Quit | StopMethod::Interrupt => (Action::Interrupt, StopMethod::Kill),
            StopMethod::Kill => (Action::Kill, StopMethod::Abandon),
            StopMethod::Abandon => return self.qemu_exited(now, None, ""),
        };
        (shutdown.force, shutdown.forced_at) = (next, now);
        shutdown.force_at = shutdown.next_at();
        vec![action]
    }

    /// QEMU has exited with that exit code or negative signal, or cannot be ended (None).
    pub(super) fn qemu_exited(
        &mut self,
        now: Duration,
        status: Option<i32>,
        last_output: &str,
    ) -> Vec<Action> {
        let started = self.phase != Phase::Starting;
        let how = || status.map_or_else(|| "nothing".to_owned(), failure::describe_exit);
        let (reason, message) = match self.shutdown.take().map(|shutdown| shutdown.cause) {
            Some(ShutdownCause::Guest) => (EndReason::GuestShutdown, String::new()),
            Some(ShutdownCause::Requested) => (EndReason::Stopped, String::new()),
            // In this case, QEMU's last output is the registers of the guest.
            Some(ShutdownCause::Failed(failure)) if is_of_kvm(failure.reason) => {
                (failure.reason, failure.message)
            }
            Some(ShutdownCause::Failed(failure)) => (
                failure.reason,
                with_last_output(&failure.message, last_output),
            ),
            None if self.kvm_trial_end.is_some() && names_kvm(last_output) => {
                let how = format!("QEMU exited with {}, because KVM has failed", how());
                (
                    self.kvm_failure_reason(now),
                    with_last_output(&how, last_output),
                )
            }
            None if started => {
                let how = format!("QEMU exited unexpectedly with {}", how());
                (EndReason::QemuCrashed, with_last_output(&how, last_output))
            }
            None => {
                let how = format!("QEMU exited with {} before the guest started", how());
                (EndReason::StartFailed, with_last_output(&how, last_output))
            }
        };
        let message = match status {
            Some(_) => message,
            None => [message.as_str(), STUCK_QEMU]
                .into_iter()
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join("; "),
        };
        self.phase = Phase::Stopped;
        self.deadline = None;
        let by_guest = reason == EndReason::GuestShutdown;
        vec![Action::Finish(Outcome {
            reason,
            message,
            qemu_exit: status,
            by_guest,
        })]
    }
}

/// Message for a QEMU that was killed and still runs: it waits in the kernel for a device or a
/// server.
const STUCK_QEMU: &str = "the runner has killed QEMU, but QEMU has not exited: it probably waits in the kernel for storage that \
    does not answer. Check that the node reaches the storage, or restart the node";

fn is_of_kvm(reason: EndReason) -> bool {
    matches!(
        reason,
        EndReason::AcceleratorUnavailable | EndReason::AcceleratorFailed
    )
}

/// Parts of QEMU's messages, and of its failed assertions, about KVM.
const KVM_SIGNS: [&str; 6] = [
    "KVM",
    "kvm run failed",
    "initialize kvm",
    "kvm.c:",
    "failed to set MSR",
    "kernel doesn't allow",
];
/// Part of messages after which QEMU continues.
const WARNING: &str = ": warning: ";

/// Whether a line of the output, which are joined, is an error of KVM.
fn names_kvm(output: &str) -> bool {
    let mut errors = output.split("; ").filter(|line| !line.contains(WARNING));
    errors.any(|line| KVM_SIGNS.iter().any(|sign| line.contains(sign)))
}

/// QEMU's message for a machine type that it does not have.
const UNSUPPORTED_MACHINE_TYPE: &str = "unsupported machine type";

fn with_last_output(message: &str, last_output: &str) -> String {
    if last_output.contains(UNSUPPORTED_MACHINE_TYPE) {
        return format!(
            "the QEMU of this runner image no longer supports the machine type of the VM ({last_output}). Set spec.image to a \
             runner image with an older QEMU. Or stop the VM, and remove machineType from machine.json on the VM's \
             runner-data volume; the guest then gets newer virtual hardware"
        );
    }
    failure::with_output(message, last_output)
}
