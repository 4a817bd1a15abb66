//! (pure) What becomes of the machine: one function over everything that can happen.
//!
//! ```text
//!            monitor ready, configured, continued          guest's agent answers
//!  Starting ------------------------------------> Booting <=====================> Booted
//!     |                                              |     reset, agent gone         |
//!     | asked to end: quit                           | asked to end, or guest off    |
//!     | deadline: fail                               v                               |
//!     +----------------------------------------> Terminating <-----------------------+
//!     |                                              |  agent, power button (again and again),
//!     |                                              |  at the time limit: quit, SIGTERM, SIGKILL
//!     v     QEMU has ended, or cannot be ended       v
//!   Stopped <----------------------------------------+
//! ```
//!
//! What always holds: QEMU's end leads to Stopped from every state at once, and nothing else does but a QEMU that does not
//! end when it is killed; from Terminating there is no way back, and each of its waits has an end; a monitor that is lost ends
//! nothing but a start, at that one's deadline.

mod ending;

use crate::api::runner::outcome::{EndReason, Outcome};
use crate::runner::failure::Failure;
use ending::Ending;
use std::time::Duration;

/// Time for QEMU to greet, and for its first configuration.
const START_TIME: Duration = Duration::from_secs(30);
/// Pauses before a silent agent is asked again: doubled from the first to the last.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Where the machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// QEMU starts; the guest has not run yet.
    Starting,
    /// The guest runs.
    Booting,
    /// The guest runs, and its agent has answered.
    Booted,
    /// The guest is shut down, then QEMU.
    Terminating,
    /// QEMU has ended.
    Stopped,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// QEMU's monitor has answered for the first time.
    MonitorReady,
    /// The monitor cannot be used any more.
    MonitorLost,
    /// The machine is as configured.
    Configured,
    /// The guest runs.
    Continued,
    /// QEMU does not let the guest run.
    ContinueFailed(String),
    /// The guest's agent has opened or closed its channel.
    AgentChannel(bool),
    /// The guest's agent has told what the guest is.
    AgentAnswered,
    /// The guest's agent has not told what the guest is, or not taken the request to shut down.
    AgentSilent,
    /// The machine was reset.
    Reset,
    /// The guest has powered itself off.
    GuestOff,
    /// QEMU has stopped the guest by itself, for good, and why.
    Halted(String),
    /// Somebody asks for the end.
    Stop,
    /// Somebody asks for the end at once, whatever becomes of the guest.
    PowerOff,
    /// The configured time to shut down has changed.
    PowerdownTimeout(Duration),
    /// QEMU has ended.
    QemuEnded {
        /// Exit code, or minus the signal.
        status: i32,
        /// What it said last.
        last_words: String,
    },
    /// Time has passed.
    Tick,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the machine as configured.
    Configure,
    /// Let the guest run.
    Continue,
    /// Ask the guest's agent what the guest is.
    AskAgent,
    /// Forget what is known of the guest: it boots anew.
    ForgetGuest,
    /// Forget what the guest's agent has told: it is gone.
    ForgetAgent,
    /// Ask the guest's agent to shut down.
    ShutDownByAgent,
    /// Press the power button.
    PressPowerButton,
    /// End QEMU through its monitor.
    Quit,
    /// End QEMU by SIGTERM.
    Terminate,
    /// End QEMU by SIGKILL.
    Kill,
    /// The runner's own end.
    Finish(Outcome),
}

/// QEMU's monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Monitor {
    /// It has not answered yet.
    Silent,
    /// It can be used.
    Ready,
    /// The connection has ended.
    Lost,
}

/// Everything that decisions depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    phase: Phase,
    monitor: Monitor,
    /// Whether QEMU is being told to let the guest run.
    continuing: bool,
    agent_open: bool,
    powerdown_timeout: Duration,
    /// Starting: when it has failed. Booting: when the agent is asked again.
    deadline: Option<Duration>,
    ask_again: Duration,
    ending: Option<Ending>,
}

impl State {
    /// QEMU was started at `now`; times count from any common point.
    pub fn new(now: Duration, powerdown_timeout: Duration) -> Self {
        Self {
            phase: Phase::Starting,
            monitor: Monitor::Silent,
            continuing: false,
            agent_open: false,
            powerdown_timeout,
            deadline: Some(now + START_TIME),
            ask_again: ASK_AGAIN.0,
            ending: None,
        }
    }

    /// Where the machine is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// When [`Event::Tick`] must come at the latest.
    pub fn deadline(&self) -> Option<Duration> {
        let ending = self
            .ending
            .as_ref()
            .filter(|_| self.phase == Phase::Terminating);
        let force = ending.map(|ending| ending.force_at);
        let press = ending.and_then(|ending| ending.press_at);
        [self.deadline, force, press].into_iter().flatten().min()
    }

    /// What the event at `now` makes of the state, and what is to be done about it.
    #[must_use]
    pub fn step(mut self, now: Duration, event: Event) -> (Self, Vec<Action>) {
        let actions = match event {
            _ if self.phase == Phase::Stopped => Vec::new(),
            Event::QemuEnded { status, last_words } => self.ended(Some(status), &last_words),
            Event::MonitorReady => self.monitor_ready(now),
            Event::MonitorLost => {
                self.monitor = Monitor::Lost;
                Vec::new()
            }
            Event::Configured
                if self.phase == Phase::Starting
                    && self.monitor == Monitor::Ready
                    && !self.continuing =>
            {
                self.continuing = true;
                vec![Action::Continue]
            }
            Event::Continued if self.phase == Phase::Starting => self.continued(),
            Event::ContinueFailed(why) if self.phase == Phase::Starting => self.fail(
                now,
                Failure::start(format!("QEMU does not start the guest: {why}")),
            ),
            Event::AgentChannel(open) => self.agent_channel(open),
            Event::AgentAnswered => self.agent_answered(),
            Event::AgentSilent => self.agent_silent(now),
            Event::Reset => self.reset(),
            Event::GuestOff => self.guest_off(now),
            Event::Halted(why) => self.halted(now, why),
            Event::Stop => self.stop(now),
            Event::PowerOff => self.power_off(now),
            Event::PowerdownTimeout(timeout) => self.timeout_changed(timeout),
            Event::Tick => self.tick(now),
            _ => Vec::new(),
        };
        (self, actions)
    }

    fn monitor_ready(&mut self, now: Duration) -> Vec<Action> {
        if self.phase == Phase::Starting {
            self.deadline = Some(now + START_TIME);
        }
        self.monitor = Monitor::Ready;
        if self.phase == Phase::Terminating {
            Vec::new()
        } else {
            vec![Action::Configure]
        }
    }

    fn continued(&mut self) -> Vec<Action> {
        self.phase = Phase::Booting;
        self.deadline = None;
        if self.agent_open {
            vec![Action::AskAgent]
        } else {
            Vec::new()
        }
    }

    fn agent_channel(&mut self, open: bool) -> Vec<Action> {
        self.agent_open = open;
        self.ask_again = ASK_AGAIN.0;
        match (self.phase, open) {
            (Phase::Booting, true) => vec![Action::AskAgent],
            (Phase::Booting | Phase::Booted, false) => {
                self.phase = Phase::Booting;
                self.deadline = None;
                vec![Action::ForgetAgent]
            }
            // A guest that was still booting when it was asked to shut down can now be asked properly.
            (Phase::Terminating, true) => self.ask_to_shut_down(),
            _ => Vec::new(),
        }
    }

    fn agent_answered(&mut self) -> Vec<Action> {
        if self.phase == Phase::Booting && self.agent_open {
            self.phase = Phase::Booted;
            self.deadline = None;
        }
        Vec::new()
    }

    fn agent_silent(&mut self, now: Duration) -> Vec<Action> {
        match (self.phase, &mut self.ending) {
            (Phase::Booting, _) if self.agent_open => {
                self.deadline = Some(now + self.ask_again);
                self.ask_again = (self.ask_again * 2).min(ASK_AGAIN.1);
            }
            (Phase::Terminating, Some(ending)) if ending.press_at.is_some() => {
                ending.press_at = Some(now)
            }
            _ => {}
        }
        self.tick(now)
    }

    fn reset(&mut self) -> Vec<Action> {
        self.agent_open = false;
        if matches!(self.phase, Phase::Booting | Phase::Booted) {
            self.phase = Phase::Booting;
            self.deadline = None;
        }
        vec![Action::ForgetGuest]
    }

    fn tick(&mut self, now: Duration) -> Vec<Action> {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            return match self.phase {
                Phase::Starting => self.late(now),
                Phase::Booting if self.agent_open => vec![Action::AskAgent],
                _ => Vec::new(),
            };
        }
        let Some(ending) = &mut self.ending else {
            return Vec::new();
        };
        if ending.force_at <= now {
            return self.escalate(now);
        }
        if ending.press_at.is_some_and(|press_at| press_at <= now) {
            // Guests miss the button while they boot, and some ask a person first.
            ending.press_at = Some(now + (self.powerdown_timeout / 6).max(Duration::from_secs(1)));
            return vec![Action::PressPowerButton];
        }
        Vec::new()
    }

    /// The start has taken too long.
    fn late(&mut self, now: Duration) -> Vec<Action> {
        let seconds = START_TIME.as_secs();
        let failure = match self.monitor {
            Monitor::Ready => Failure::start(format!("QEMU was not configured within {seconds} s")),
            Monitor::Silent => Failure::start(format!(
                "QEMU's monitor has not answered within {seconds} s"
            )),
            Monitor::Lost => Failure::new(
                EndReason::MonitorLost,
                "the connection to QEMU's monitor has ended before the guest ran".to_owned(),
            ),
        };
        self.fail(now, failure)
    }
}

#[cfg(test)]
mod tests;
