//! (pure) What was done lately, so that it is not done again at once. By the clock that nobody sets.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Whatever comes within it is the same: it is shorter than each pause.
const MOMENT: Duration = Duration::from_millis(500);

/// How often it was done, and when last, by name.
#[derive(Default)]
pub struct Lately(Mutex<HashMap<String, (u32, Instant)>>);

impl Lately {
    fn done(&self) -> MutexGuard<'_, HashMap<String, (u32, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is done now. What several do at the same moment counts once.
    pub fn note(&self, name: &str, now: Instant) {
        let mut done = self.done();
        let (times, at) = done.entry(name.to_owned()).or_insert((0, now));
        if *times == 0 || now.saturating_duration_since(*at) >= MOMENT {
            (*times, *at) = (times.saturating_add(1), now);
        }
    }

    /// Whether it was done less than so long ago, where that may depend on how often it was done.
    #[must_use]
    pub fn was(&self, name: &str, now: Instant, within: impl Fn(u32) -> Duration) -> bool {
        self.done().get(name).is_some_and(|(times, at)| now.saturating_duration_since(*at) < within(*times))
    }

    /// How long it is still less than that, if it was done.
    #[must_use]
    pub fn left(&self, name: &str, now: Instant, within: impl Fn(u32) -> Duration) -> Option<Duration> {
        let done = self.done();
        done.get(name).map(|(times, at)| within(*times).saturating_sub(now.saturating_duration_since(*at)))
    }

    /// Nobody asks any more.
    pub fn forget(&self, name: &str) {
        self.done().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_lately_for_that_long() {
        let (lately, start) = (Lately::default(), Instant::now());
        let minutes = |times| Duration::from_secs(60) * times;
        let was = |seconds| lately.was("a", start + Duration::from_secs(seconds), minutes);
        assert!(!was(0));
        lately.note("a", start);
        assert_eq!((was(59), was(60)), (true, false));
        lately.note("a", start + Duration::from_millis(100));
        assert_eq!((was(59), was(60)), (true, false), "at the same moment");
        lately.note("a", start + Duration::from_secs(1));
        assert_eq!((was(120), was(121)), (true, false));
        let left = |seconds| lately.left("a", start + Duration::from_secs(seconds), minutes).map(|left| left.as_secs());
        assert_eq!((left(1), left(120), left(121), left(200)), (Some(120), Some(1), Some(0), Some(0)));
        assert_eq!(lately.left("b", start, minutes), None);
        assert!(!lately.was("b", start, |_| Duration::MAX));
        lately.forget("a");
        assert!(!was(0));
    }
}
