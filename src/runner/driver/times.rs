//! (io) How long the steps of the start took, from the beginning of this process on.

use super::Driver;
use crate::runner::state::Phase;
use std::time::{Duration, Instant};

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// From one moment to a later one.
pub(super) fn between(began: Instant, then: Instant) -> u64 {
    millis(then.saturating_duration_since(began))
}

impl Driver {
    /// The monitor has answered for the first time.
    pub(super) fn monitor_took(&mut self) {
        self.observed.times.monitor = Some(millis(self.process_began.elapsed()));
    }

    /// The machine has come to a phase; what is told is when it did for the first time.
    pub(super) fn took(&mut self, phase: Phase) {
        let now = millis(self.process_began.elapsed());
        let times = &mut self.observed.times;
        let step = match phase {
            Phase::Booting => &mut times.guest,
            Phase::Booted => &mut times.boot,
            Phase::Starting | Phase::Terminating | Phase::Stopped => return,
        };
        if step.is_none() {
            *step = Some(now);
            tracing::info!("{}", self.observed.times);
        }
    }
}
