//! (pure) State machine of a VM: an event leads to the next state and to actions.
//!
//! ```text
//!            QMP ready, configured, continued              guest agent answers
//!  Starting ------------------------------------> Booting <=====================> Booted
//!     |                                              |  reset, agent disconnected    |
//!     | shutdown requested: quit                     | shutdown requested, guest off |
//!     | deadline: fail                               v                               |
//!     +----------------------------------------> Terminating <-----------------------+
//!     |                                              |  agent, power button (repeated),
//!     |                                              |  after the timeout: quit, SIGINT, SIGKILL
//!     v     QEMU has exited, or cannot be ended      v
//!   Stopped <----------------------------------------+
//! ```
//!
//! Invariants: the exit of QEMU leads to Stopped from every state. Nothing else does, except a QEMU
//! that still runs after SIGKILL. Terminating leads to Stopped only, and each of its waits has a
//! timeout. A lost QMP connection ends a VM only while it starts, at the deadline.

mod shutdown;

use crate::api::runner::outcome::{EndReason, Outcome};
use crate::runner::failure::Failure;
use shutdown::Shutdown;
use std::time::Duration;
use strum::IntoStaticStr;

/// Time for QEMU to accept the QMP connection, and then to be configured.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after the start in which a failure of KVM means that KVM does not work on the node.
pub const KVM_TRIAL_TIME: Duration = Duration::from_secs(120);
/// Delay before a silent agent is queried again. It doubles up to the maximum.
const AGENT_RETRY_DELAY_MIN: Duration = Duration::from_secs(1);
const AGENT_RETRY_DELAY_MAX: Duration = Duration::from_secs(60);

/// Phase of the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum Phase {
    /// QEMU starts. The guest has not run yet.
    Starting,
    /// The guest runs.
    Booting,
    /// The guest runs and its agent has answered.
    Booted,
    /// The guest and then QEMU are shut down.
    Terminating,
    /// QEMU has exited.
    Stopped,
}

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// the QMP connection to QEMU is established.
    MonitorReady,
    /// The QMP connection has ended.
    MonitorLost,
    /// The VM is in the desired state.
    Configured,
    /// The guest runs.
    Continued,
    /// QEMU has refused to run the guest.
    ContinueFailed(String),
    /// The guest agent has opened or closed its channel.
    AgentChannel(bool),
    /// The guest agent has reported the guest's operating system.
    AgentAnswered,
    /// The guest agent has not answered a query, or has rejected a shutdown.
    AgentSilent,
    /// The VM was reset.
    Reset,
    /// The guest has powered itself off.
    GuestOff,
    /// The guest cannot react to its power button.
    PowerButtonUnused,
    /// QEMU has stopped the guest permanently, for that reason.
    GuestHalted(String),
    /// KVM has stopped the guest permanently, for that reason.
    KvmFailed(String),
    /// A shutdown is requested. A further request has no effect.
    Stop,
    /// A shutdown is requested from a terminal. A further request skips the time of the guest.
    Interrupt,
    /// A power-off is requested: an immediate end without the guest.
    PowerOff,
    /// The configured shutdown timeout has changed.
    PowerdownTimeout(Duration),
    /// QEMU has exited.
    QemuExited {
        /// Exit code or negative signal.
        status: i32,
        /// The last lines of its output.
        last_output: String,
    },
    /// The deadline has passed.
    Tick,
}

/// An action of the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Bring the VM to its desired state.
    Configure,
    /// Run the guest.
    Continue,
    /// Query the guest's operating system from its agent.
    AskAgent,
    /// Discard all knowledge of the guest, because it reboots.
    ForgetGuest,
    /// Discard the agent's answers, because it has disconnected.
    ForgetAgent,
    /// Request a shutdown from the guest agent.
    ShutDownByAgent,
    /// Press the power button.
    PressPowerButton,
    /// Find out whether the guest can react to its power button.
    CheckPowerButton,
    /// End QEMU by QMP.
    Quit,
    /// End QEMU by SIGINT. QEMU blocks SIGTERM, which a shutdown of the node sends to all processes of the container.
    Interrupt,
    /// End QEMU by SIGKILL.
    Kill,
    /// End the runner.
    Finish(Outcome),
}

/// State of the QMP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MonitorState {
    /// QEMU has not answered on the connection yet.
    Silent,
    /// Commands can be sent.
    Ready,
    /// The connection has ended.
    Lost,
}

/// The state that decisions depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    phase: Phase,
    monitor: MonitorState,
    /// Whether QEMU was requested to run the guest.
    continuing: bool,
    agent_open: bool,
    powerdown_timeout: Duration,
    /// If KVM runs the guest, the end of [`KVM_TRIAL_TIME`].
    kvm_trial_end: Option<Duration>,
    /// Starting: the time at which the start has failed. Booting: the time of the next query to the
    /// agent.
    deadline: Option<Duration>,
    agent_retry_delay: Duration,
    shutdown: Option<Shutdown>,
}

impl State {
    /// The state after QEMU was started at `now`, with KVM or without it. All times count from the same point.
    pub fn new(now: Duration, powerdown_timeout: Duration, with_kvm: bool) -> Self {
        Self {
            phase: Phase::Starting,
            monitor: MonitorState::Silent,
            continuing: false,
            agent_open: false,
            powerdown_timeout,
            kvm_trial_end: with_kvm.then_some(now + KVM_TRIAL_TIME),
            deadline: Some(now + START_TIMEOUT),
            agent_retry_delay: AGENT_RETRY_DELAY_MIN,
            shutdown: None,
        }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The latest time of the next [`Event::Tick`].
    pub fn deadline(&self) -> Option<Duration> {
        let shutdown = self
            .shutdown
            .as_ref()
            .filter(|_| self.phase == Phase::Terminating);
        let force = shutdown.map(|shutdown| shutdown.force_at);
        let press = shutdown.and_then(|shutdown| shutdown.press_at);
        let check = shutdown.and_then(|shutdown| shutdown.check_at);
        let all = [self.deadline, force, press, check];
        all.into_iter().flatten().min()
    }

    /// The next state after the event at `now`, and the actions.
    #[must_use]
    pub fn step(mut self, now: Duration, event: Event) -> (Self, Vec<Action>) {
        let actions = match event {
            _ if self.phase == Phase::Stopped => Vec::new(),
            Event::QemuExited {
                status,
                last_output,
            } => self.qemu_exited(now, Some(status), &last_output),
            Event::MonitorReady => self.monitor_ready(now),
            Event::MonitorLost => {
                self.monitor = MonitorState::Lost;
                Vec::new()
            }
            Event::Configured
                if self.phase == Phase::Starting
                    && self.monitor == MonitorState::Ready
                    && !self.continuing =>
            {
                self.continuing = true;
                vec![Action::Continue]
            }
            Event::Continued if self.phase == Phase::Starting => self.continued(),
            Event::ContinueFailed(why) if self.phase == Phase::Starting => self.fail(
                now,
                Failure::start(format!("the runner cannot start the guest: {why}")),
            ),
            Event::AgentChannel(open) => self.agent_channel(open),
            Event::AgentAnswered => self.agent_answered(),
            Event::AgentSilent => self.agent_silent(now),
            Event::Reset => self.reset(),
            Event::GuestOff => self.guest_off(now),
            Event::PowerButtonUnused => self.power_button_unused(now),
            Event::GuestHalted(why) => {
                self.guest_halted(now, Failure::new(EndReason::GuestHalted, why))
            }
            Event::KvmFailed(why) => {
                self.guest_halted(now, Failure::new(self.kvm_failure_reason(now), why))
            }
            Event::Stop => self.stop(now),
            Event::Interrupt => self.interrupt(now),
            Event::PowerOff => self.power_off(now),
            Event::PowerdownTimeout(timeout) => self.timeout_changed(timeout),
            Event::Tick => self.tick(now),
            _ => Vec::new(),
        };
        (self, actions)
    }

    fn monitor_ready(&mut self, now: Duration) -> Vec<Action> {
        if self.phase == Phase::Starting {
            self.deadline = Some(now + START_TIMEOUT);
        }
        self.monitor = MonitorState::Ready;
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
        self.agent_retry_delay = AGENT_RETRY_DELAY_MIN;
        match (self.phase, open) {
            (Phase::Booting, true) => vec![Action::AskAgent],
            (Phase::Booting | Phase::Booted, false) => {
                self.phase = Phase::Booting;
                self.deadline = None;
                vec![Action::ForgetAgent]
            }
            // A guest that was booting at the request can now be shut down by its agent.
            (Phase::Terminating, true) => self.request_agent_shutdown(),
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
        match (self.phase, &mut self.shutdown) {
            (Phase::Booting, _) if self.agent_open => {
                self.deadline = Some(now + self.agent_retry_delay);
                self.agent_retry_delay = (self.agent_retry_delay * 2).min(AGENT_RETRY_DELAY_MAX);
            }
            (Phase::Terminating, Some(shutdown)) => {
                shutdown.agent_asked = false;
                shutdown.press_at = shutdown.press_at.map(|_| now);
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
        // The guest has forgotten a request to its agent.
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.agent_asked = false;
        }
        vec![Action::ForgetGuest]
    }

    fn tick(&mut self, now: Duration) -> Vec<Action> {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            return match self.phase {
                Phase::Starting => self.start_timed_out(now),
                Phase::Booting if self.agent_open => vec![Action::AskAgent],
                _ => Vec::new(),
            };
        }
        let Some(shutdown) = &mut self.shutdown else {
            return Vec::new();
        };
        if shutdown.force_at <= now {
            return self.escalate(now);
        }
        if shutdown.press_at.is_some_and(|press_at| press_at <= now) {
            // Guests ignore the button while they boot, and some ask their user first.
            let delay_max = (self.powerdown_timeout / 6).max(Duration::from_secs(1));
            shutdown.press_at = Some(now + shutdown.press_delay.min(delay_max));
            shutdown.press_delay = (shutdown.press_delay * 2).min(delay_max);
            return vec![Action::PressPowerButton];
        }
        if shutdown.check_at.is_some_and(|check_at| check_at <= now) {
            shutdown.check_at = None;
            return vec![Action::CheckPowerButton];
        }
        Vec::new()
    }

    /// The start has timed out.
    fn start_timed_out(&mut self, now: Duration) -> Vec<Action> {
        let seconds = START_TIMEOUT.as_secs();
        let failure = match self.monitor {
            MonitorState::Ready => Failure::start(format!(
                "QEMU has started, but the runner could not configure QEMU over QMP within {seconds} s (the node may be overloaded)"
            )),
            MonitorState::Silent => Failure::start(format!(
                "QEMU has started, but has not answered on its QMP connection within {seconds} s (the node may be overloaded)"
            )),
            MonitorState::Lost => Failure::new(
                EndReason::MonitorLost,
                "QEMU closed its QMP connection before the guest started".to_owned(),
            ),
        };
        self.fail(now, failure)
    }
}

#[cfg(test)]
mod tests;
