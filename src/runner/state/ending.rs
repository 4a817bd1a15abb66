//! (pure) The way from a running machine to its end: whom to ask, when to force, and what is said about it.

use super::{Action, Phase, State};
use crate::api::outcome::{EndReason, Outcome};
use crate::runner::failure::{self, Failure};
use std::time::Duration;

/// Time between the ways to end QEMU: its monitor, SIGTERM, SIGKILL.
const FORCE_TIME: Duration = Duration::from_secs(2);
/// Longest time that the guest's agent has alone before the power button is pressed too.
const AGENT_TIME: Duration = Duration::from_secs(30);

/// What is known of the end while it lasts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ending {
    pub(super) cause: Cause,
    pub(super) since: Duration,
    pub(super) agent_asked: bool,
    pub(super) press_at: Option<Duration>,
    pub(super) force: Force,
    pub(super) force_at: Duration,
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
    Nothing,
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
        let since = now;
        match &mut self.ending {
            // It was asked to: whoever asked is the cause.
            Some(ending) if ending.force == Force::Quit => ending.press_at = None,
            Some(_) => return Vec::new(),
            None => {
                let (force, force_at) = (Force::Quit, now);
                let ending = Ending { cause: Cause::Guest, since, agent_asked: false, press_at: None, force, force_at };
                self.end_with(ending);
            }
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
        if self.ending.is_some() {
            // Asked again: no more patience.
            return self.escalate(now);
        }
        let guest_runs = matches!(self.phase, Phase::Booting | Phase::Booted);
        let time = if guest_runs { self.powerdown_timeout } else { Duration::ZERO };
        let press_at =
            (!time.is_zero()).then(|| now + if self.agent_open { AGENT_TIME.min(time / 3) } else { Duration::ZERO });
        self.end_with(Ending {
            cause: Cause::Asked,
            since: now,
            agent_asked: false,
            press_at,
            force: Force::Quit,
            force_at: now + time,
        });
        let mut actions = if press_at.is_some() && self.agent_open { self.ask_to_shut_down() } else { Vec::new() };
        actions.extend(self.tick(now));
        actions
    }

    pub(super) fn fail(&mut self, now: Duration, failure: Failure) -> Vec<Action> {
        self.end_with(Ending {
            cause: Cause::Failed(failure),
            since: now,
            agent_asked: false,
            press_at: None,
            force: Force::Quit,
            force_at: now,
        });
        self.escalate(now)
    }

    pub(super) fn end_with(&mut self, ending: Ending) {
        self.phase = Phase::Terminating;
        self.deadline = None;
        self.ending = Some(ending);
    }

    pub(super) fn timeout_changed(&mut self, timeout: Duration) -> Vec<Action> {
        self.powerdown_timeout = timeout;
        if let Some(ending) = &mut self.ending
            && ending.force == Force::Quit
        {
            ending.force_at = ending.since + timeout;
        }
        Vec::new()
    }

    /// Uses the next way to end QEMU. Without its monitor that is a signal.
    pub(super) fn escalate(&mut self, now: Duration) -> Vec<Action> {
        let monitor = self.monitor;
        let Some(ending) = &mut self.ending else { return Vec::new() };
        ending.press_at = None;
        ending.force_at = now + FORCE_TIME;
        let (action, next) = match ending.force {
            Force::Quit if monitor => (Action::Quit, Force::Terminate),
            Force::Quit | Force::Terminate => (Action::Terminate, Force::Kill),
            Force::Kill => (Action::Kill, Force::Nothing),
            Force::Nothing => return Vec::new(),
        };
        ending.force = next;
        vec![action]
    }

    pub(super) fn ended(&mut self, status: i32, last_words: &str) -> Vec<Action> {
        let started = self.phase != Phase::Starting;
        let (reason, message) = match self.ending.take().map(|ending| ending.cause) {
            Some(Cause::Guest) => (EndReason::GuestShutdown, String::new()),
            Some(Cause::Asked) => (EndReason::Stopped, String::new()),
            Some(Cause::Failed(failure)) => (failure.reason, with_last_words(&failure.message, last_words)),
            None if started => {
                let how = format!("QEMU ended by itself with {}", failure::ending(status));
                (EndReason::QemuCrashed, with_last_words(&how, last_words))
            }
            None => {
                let how = format!("QEMU ended with {} before the guest ran", failure::ending(status));
                (EndReason::StartFailed, with_last_words(&how, last_words))
            }
        };
        self.phase = Phase::Stopped;
        self.deadline = None;
        let by_guest = reason == EndReason::GuestShutdown;
        vec![Action::Finish(Outcome { reason, message, qemu_exit: Some(status), by_guest })]
    }
}

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
