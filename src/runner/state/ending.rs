//! (pure) The way from a running machine to its end: whom to ask, when to force, and what is said about it.
//!
//! ```text
//! asked to end          +timeout        +2 s                +4 s             +6 s
//!   agent, power button   quit            SIGTERM             SIGKILL          outcome without QEMU's end
//!   guest off: quit, 2 s later SIGTERM ...................... SIGKILL
//!   power off: quit, 2 s later SIGTERM, 10 s later at the latest SIGKILL
//! ```
//!
//! What always holds: quit and SIGTERM let QEMU write what it still has, and come as early as they can; SIGKILL does not, and
//! comes neither before the guest's time to shut down is over, however often somebody asks, nor within 2 s of SIGTERM, nor, but
//! for these, later than 4 s after that time. With 2 s for the TPM and 2 s for the last report the runner is done within 10 s of
//! it. Only who switches the power off ends that time.

use crate::api::runner::outcome::{EndReason, Outcome};
use crate::runner::failure::{self, Failure};
use crate::runner::state::{Action, Phase, State};
use std::time::Duration;

/// Time between the ways to end QEMU: its monitor, SIGTERM, SIGKILL.
const FORCE_TIME: Duration = Duration::from_secs(2);
/// What is left of the time to shut down when the power is switched off: QEMU may be writing.
const OFF_TIME: Duration = Duration::from_secs(6);
/// Longest time that the guest's agent has alone before the power button is pressed too.
const AGENT_TIME: Duration = Duration::from_secs(30);

/// What is known of the end while it lasts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ending {
    pub(super) cause: Cause,
    pub(super) since: Duration,
    /// Time from then on for the guest to shut down, and for a QEMU whose guest has done so earlier.
    pub(super) time: Duration,
    /// Whether that is the configured time.
    pub(super) as_configured: bool,
    pub(super) agent_asked: bool,
    pub(super) press_at: Option<Duration>,
    pub(super) force: Force,
    pub(super) force_at: Duration,
    /// When the way before that was taken.
    pub(super) forced_at: Duration,
}

/// Why the machine ends.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cause {
    Asked,
    Guest,
    Failed(Failure),
}

/// The next and stronger way to end QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Force {
    Quit,
    Terminate,
    Kill,
    GiveUp,
}

impl Ending {
    /// At once.
    fn of(state: &State, cause: Cause, since: Duration) -> Self {
        let guest_ran = matches!(state.phase, Phase::Booting | Phase::Booted);
        // A guest that does not run yet needs no time.
        let time = if guest_ran {
            state.powerdown_timeout
        } else {
            Duration::ZERO
        };
        let (agent_asked, press_at, force) = (false, None, Force::Quit);
        let (force_at, forced_at) = (since, since);
        Self {
            cause,
            since,
            time,
            as_configured: guest_ran,
            agent_asked,
            press_at,
            force,
            force_at,
            forced_at,
        }
    }

    /// When the next way to end QEMU is taken, after one that was.
    fn next_at(&self) -> Duration {
        let after_the_last = self.forced_at + FORCE_TIME;
        match self.force {
            Force::Kill => after_the_last.max(self.since + self.time + FORCE_TIME * 2),
            Force::Quit | Force::Terminate | Force::GiveUp => after_the_last,
        }
    }
}

impl State {
    pub(super) fn ask_to_shut_down(&mut self) -> Vec<Action> {
        match &mut self.ending {
            Some(ending) if ending.force == Force::Quit && !ending.agent_asked => {
                ending.agent_asked = true;
                vec![Action::ShutDownByAgent]
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn guest_off(&mut self, now: Duration) -> Vec<Action> {
        match &self.ending {
            // It was asked to: whoever asked is the cause.
            Some(ending) if ending.force == Force::Quit => {}
            Some(_) => return Vec::new(),
            None => self.end_with(Ending::of(self, Cause::Guest, now)),
        }
        self.escalate(now)
    }

    /// A guest that is stopped for good does not shut down any more, also where it was asked to.
    pub(super) fn halted(&mut self, now: Duration, why: String) -> Vec<Action> {
        match &self.ending {
            Some(ending) if ending.force == Force::Quit => self.escalate(now),
            Some(_) => Vec::new(),
            None => self.fail(now, Failure::new(EndReason::GuestHalted, why)),
        }
    }

    pub(super) fn stop(&mut self, now: Duration) -> Vec<Action> {
        if let Some(ending) = &self.ending {
            // Asked again: no more patience with the guest, but with a QEMU that may be writing.
            let hurries = matches!(ending.force, Force::Quit | Force::Terminate);
            return if hurries {
                self.escalate(now)
            } else {
                Vec::new()
            };
        }
        let ending = Ending::of(self, Cause::Asked, now);
        let time = ending.time;
        let press_at = (!time.is_zero()).then(|| {
            now + if self.agent_open {
                AGENT_TIME.min(time / 3)
            } else {
                Duration::ZERO
            }
        });
        self.end_with(Ending {
            press_at,
            force_at: now + time,
            ..ending
        });
        let mut actions = if press_at.is_some() && self.agent_open {
            self.ask_to_shut_down()
        } else {
            Vec::new()
        };
        actions.extend(self.tick(now));
        actions
    }

    pub(super) fn power_off(&mut self, now: Duration) -> Vec<Action> {
        let mut ending = self
            .ending
            .take()
            .unwrap_or_else(|| Ending::of(self, Cause::Asked, now));
        ending.time = ending.time.min(now.saturating_sub(ending.since) + OFF_TIME);
        ending.as_configured = false;
        let force = ending.force;
        if force == Force::Kill {
            ending.force_at = ending.next_at();
        }
        self.end_with(ending);
        if force == Force::Quit {
            self.escalate(now)
        } else {
            Vec::new()
        }
    }

    pub(super) fn fail(&mut self, now: Duration, failure: Failure) -> Vec<Action> {
        self.end_with(Ending::of(self, Cause::Failed(failure), now));
        self.escalate(now)
    }

    pub(super) fn end_with(&mut self, ending: Ending) {
        self.phase = Phase::Terminating;
        self.deadline = None;
        self.ending = Some(ending);
    }

    pub(super) fn timeout_changed(&mut self, timeout: Duration) -> Vec<Action> {
        self.powerdown_timeout = timeout;
        // A guest that did not run when the end came has no time to shut down, nor has one whose power is off.
        if let Some(ending) = self.ending.as_mut().filter(|ending| ending.as_configured) {
            ending.time = timeout;
            match ending.force {
                Force::Quit => ending.force_at = ending.since + timeout,
                Force::Kill => ending.force_at = ending.next_at(),
                Force::Terminate | Force::GiveUp => {}
            }
        }
        Vec::new()
    }

    /// Uses the next way to end QEMU. Without its monitor that is a signal.
    pub(super) fn escalate(&mut self, now: Duration) -> Vec<Action> {
        let monitor = self.monitor == crate::runner::state::Monitor::Ready;
        let Some(ending) = &mut self.ending else {
            return Vec::new();
        };
        ending.press_at = None;
        let (action, next) = match ending.force {
            Force::Quit if monitor => (Action::Quit, Force::Terminate),
            Force::Quit | Force::Terminate => (Action::Terminate, Force::Kill),
            Force::Kill => (Action::Kill, Force::GiveUp),
            Force::GiveUp => return self.ended(None, ""),
        };
        (ending.force, ending.forced_at) = (next, now);
        ending.force_at = ending.next_at();
        vec![action]
    }

    /// QEMU has ended, with that exit code or minus that signal; or nothing can end it.
    pub(super) fn ended(&mut self, status: Option<i32>, last_words: &str) -> Vec<Action> {
        let started = self.phase != Phase::Starting;
        let how = || status.map_or_else(|| "nothing".to_owned(), failure::ending);
        let (reason, message) = match self.ending.take().map(|ending| ending.cause) {
            Some(Cause::Guest) => (EndReason::GuestShutdown, String::new()),
            Some(Cause::Asked) => (EndReason::Stopped, String::new()),
            Some(Cause::Failed(failure)) => (
                failure.reason,
                with_last_words(&failure.message, last_words),
            ),
            None if started => {
                let how = format!("QEMU ended by itself with {}", how());
                (EndReason::QemuCrashed, with_last_words(&how, last_words))
            }
            None => {
                let how = format!("QEMU ended with {} before the guest ran", how());
                (EndReason::StartFailed, with_last_words(&how, last_words))
            }
        };
        let message = match status {
            Some(_) => message,
            None => [message.as_str(), STUCK]
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

/// What is said of a QEMU that was killed and is still there: the kernel ends it when what it waits for answers.
const STUCK: &str = "QEMU was killed, and has not ended: it is stuck in the kernel, most likely because storage of the VM \
                     does not answer; see whether that is reachable from the node, or restart the node";

/// What QEMU says about a machine type that it does not have.
const NO_MACHINE_TYPE: &str = "unsupported machine type";

fn with_last_words(message: &str, last_words: &str) -> String {
    if last_words.contains(NO_MACHINE_TYPE) {
        return format!(
            "the VM was installed with a machine type that this image's QEMU does not have any more ({last_words}); use \
             an image with an older QEMU, or remove machineType from machine.json in the VM's data, and the guest finds \
             itself on newer hardware"
        );
    }
    failure::with_words(message, last_words)
}
