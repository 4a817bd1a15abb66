//! (pure) How long ago something was that has a time of the wall clock, also where that clock is set meanwhile.
//!
//! The wall clock is believed once, when this operator sees the time first; from then on the monotonic clock counts.

use k8s_openapi::jiff::Timestamp;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is counted, by name.
#[derive(Default)]
pub struct Elapsed(Mutex<HashMap<String, Seen>>);

struct Seen {
    since: Timestamp,
    first: Instant,
    /// How long ago it was when it was seen first.
    before: Duration,
}

impl Elapsed {
    /// How long ago it was that has begun at that time, of which there is one at a time under a name. A time that lies in
    /// the future was noted by a clock that was ahead, or has been set back since: then it counts from when it is seen.
    pub fn of(&self, name: &str, since: Timestamp, now: Timestamp, instant: Instant) -> Duration {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.get(name).is_none_or(|seen| seen.since != since) {
            let before = Duration::try_from(now.duration_since(since)).unwrap_or_default();
            seen.insert(name.to_owned(), Seen { since, first: instant, before });
        }
        seen.get(name).map_or(Duration::ZERO, |seen| seen.before + instant.saturating_duration_since(seen.first))
    }

    /// It is over.
    pub fn forget(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Forgets all but those.
    pub fn retain(&self, names: impl Fn(&str) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|name, _| names(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_elapsed_does_not_depend_on_a_clock_that_is_set_meanwhile() {
        let (elapsed, start) = (Elapsed::default(), Instant::now());
        let of = |since: i64, now: i64, passed: u64| {
            let at = |seconds| Timestamp::from_second(seconds).unwrap();
            elapsed.of("vm", at(since), at(now), start + Duration::from_secs(passed)).as_secs()
        };
        assert_eq!((of(100, 105, 0), of(100, 115, 10)), (5, 15));
        // Set back by an hour, and ahead by two.
        assert_eq!((of(5000, 5000, 20), of(5000, 1410, 30), of(5000, 8620, 40)), (0, 10, 20));
        // It has begun anew, under a clock that was ahead.
        assert_eq!((of(9000, 8620, 40), of(9000, 8630, 50)), (0, 10));
        elapsed.forget("vm");
        assert_eq!(of(9000, 9001, 60), 1);
    }
}
