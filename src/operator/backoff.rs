//! (pure) Pauses that grow: after a failed reconcile, and before a VM that ended by itself starts again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The longest pause.
pub const LONGEST: Duration = Duration::from_secs(300);

/// The pause after that many failures in a row: none, 1 s, 2 s, 4 s … 5 min.
#[must_use]
pub fn pause(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        n => Duration::from_secs(1u64.checked_shl(n - 1).unwrap_or(u64::MAX)).min(LONGEST),
    }
}

/// The pause before the next pod where that many were deleted by others in a row: none, none, 10 s, 20 s, 40 s … 5 min.
#[must_use]
pub fn pause_after_deletions(deletions: u32) -> Duration {
    (pause(deletions.saturating_sub(1)) * 10).min(LONGEST)
}

/// The part of a pause that is left to chance, so that what has failed at once is not tried again at once.
const BY_CHANCE: f64 = 0.2;

/// Failures in a row, by object.
pub struct Failures {
    counts: Mutex<HashMap<String, u32>>,
    first: Duration,
    chance: fn() -> f64,
}

impl Failures {
    /// None yet; the pause after the first is that, and nothing is left to chance.
    #[must_use]
    pub fn pausing(first: Duration) -> Self {
        Self { counts: Mutex::default(), first, chance: || 0.0 }
    }

    /// None yet; the pause after the first is 1 s, but for what `chance`, from 0 to 1, takes away.
    #[must_use]
    pub fn by_chance(chance: fn() -> f64) -> Self {
        Self { chance, ..Self::pausing(Duration::from_secs(1)) }
    }

    /// Counts a failure and gives the pause that it calls for: up to a fifth less than in [`pause`], by chance.
    pub fn failed(&self, object: &str) -> Duration {
        let mut failures = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(object.to_owned()).or_default();
        *count = count.saturating_add(1);
        let pause = self.first.mul_f64(pause(*count).as_secs_f64()).min(LONGEST);
        pause.mul_f64(1.0 - BY_CHANCE * (self.chance)())
    }

    /// Forgets an object's failures: it went well, or is gone.
    pub fn forget(&self, object: &str) {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).remove(object);
    }

    /// How many objects wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_minutes() {
        let seconds: Vec<u64> = [0, 1, 2, 3, 9, 10, 64, 65, u32::MAX].map(|n| pause(n).as_secs()).into();
        assert_eq!(seconds, [0, 1, 2, 4, 256, 300, 300, 300, 300]);
    }

    #[test]
    fn the_first_pod_that_others_delete_is_replaced_at_once_and_the_next_ones_later_and_later() {
        let seconds: Vec<u64> = [0, 1, 2, 3, 4, 6, 7, 8, u32::MAX].map(|n| pause_after_deletions(n).as_secs()).into();
        assert_eq!(seconds, [0, 0, 10, 20, 40, 160, 300, 300, 300]);
    }

    #[test]
    fn failures_are_counted_by_object_until_it_goes_well() {
        let failures = Failures::pausing(Duration::from_secs(1));
        assert_eq!((failures.failed("a"), failures.failed("a"), failures.failed("b")), (pause(1), pause(2), pause(1)));
        failures.forget("a");
        assert_eq!((failures.failed("a"), failures.len()), (pause(1), 2));
    }

    #[test]
    fn chance_takes_up_to_a_fifth_of_a_pause() {
        for (chance, seconds) in [((|| 0.0) as fn() -> f64, [1.0, 2.0]), (|| 0.5, [0.9, 1.8]), (|| 1.0, [0.8, 1.6])] {
            let failures = Failures::by_chance(chance);
            assert_eq!(seconds.map(Duration::from_secs_f64), [failures.failed("a"), failures.failed("a")]);
        }
    }
}
