//! (io) How long the steps of the start took, from the beginning of this process on.

use super::Driver;
use crate::runner::state::Phase;
use std::time::Instant;

/// Milliseconds since then.
pub(super) fn since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Driver {
    /// The monitor has answered for the first time.
    pub(super) fn monitor_took(&mut self) {
        self.observed.times.monitor = Some(since(self.process_began));
    }

    /// The machine has come to a phase; what is told is when it did for the first time.
    pub(super) fn took(&mut self, phase: Phase) {
        let now = since(self.process_began);
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
