//! State that a controller keeps of each object besides the stores. It is lost when the process exits.

use crate::k8s::key::ObjectKey;
use crate::k8s::retry::{self, pause};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The part of a backoff delay that jitter can take away.
const BACKOFF_JITTER: f64 = 0.2;

#[derive(Default)]
struct ObjectState<T> {
    /// Failed reconciles in a row.
    failures: u32,
    /// The part that the controller defines.
    own: T,
}

#[derive(Default)]
struct Content<T> {
    entries: HashMap<ObjectKey, ObjectState<T>>,
    /// The number of entries with failures.
    failing: usize,
}

/// The states of all objects of a controller.
pub struct States<T> {
    content: Mutex<Content<T>>,
    first_backoff: Duration,
    jitter: fn() -> f64,
}

impl<T: Default> States<T> {
    /// No state yet. `jitter` returns numbers from 0 to 1. `first_backoff` is the delay after the first failure,
    /// without jitter.
    #[must_use]
    pub fn new(first_backoff: Duration, jitter: fn() -> f64) -> Self {
        Self {
            content: Mutex::default(),
            first_backoff,
            jitter,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Content<T>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A random number from 0 to 1.
    #[must_use]
    pub fn jitter(&self) -> f64 {
        (self.jitter)()
    }

    /// Changes the state of the object. A missing state is created with its default.
    pub fn change<R>(&self, key: &ObjectKey, change: impl FnOnce(&mut T) -> R) -> R {
        change(&mut self.lock().entries.entry(key.clone()).or_default().own)
    }

    /// Reads or changes the state of the object, if there is one.
    pub fn with<R>(&self, key: &ObjectKey, read: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut content = self.lock();
        let entry = content.entries.get_mut(key)?;
        Some(read(&mut entry.own))
    }

    /// Counts a failed reconcile. Returns the delay before the next one, see [`Self::backoff`].
    pub fn failed(&self, key: &ObjectKey) -> Duration {
        let failures = {
            let mut content = self.lock();
            let entry = content.entries.entry(key.clone()).or_default();
            entry.failures = entry.failures.saturating_add(1);
            let failures = entry.failures;
            content.failing += usize::from(failures == 1);
            failures
        };
        self.backoff(failures)
    }

    /// The delay after that many failures in a row: 1 s, 2 s, 4 s … 5 min, reduced by up to a fifth.
    #[must_use]
    pub fn backoff(&self, failures: u32) -> Duration {
        let factor = pause(failures).as_secs_f64();
        let delay = self.first_backoff.mul_f64(factor).min(retry::BACKOFF_MAX);
        delay.mul_f64(1.0 - BACKOFF_JITTER * self.jitter())
    }

    /// Resets the failure count of an object after a successful reconcile.
    pub fn succeeded(&self, key: &ObjectKey) {
        let mut content = self.lock();
        let failures = match content.entries.get_mut(key) {
            Some(entry) => std::mem::take(&mut entry.failures),
            None => 0,
        };
        content.failing -= usize::from(failures > 0);
    }

    /// The number of objects with a failed last reconcile.
    #[must_use]
    pub fn failing(&self) -> usize {
        self.lock().failing
    }

    /// Removes the state of a deleted object.
    pub fn forget(&self, key: &ObjectKey) {
        let mut content = self.lock();
        let removed = content.entries.remove(key);
        content.failing -= usize::from(removed.is_some_and(|entry| entry.failures > 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(jitter: fn() -> f64) -> States<()> {
        States::new(Duration::from_secs(1), jitter)
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("ns", name)
    }

    #[test]
    fn failures_are_counted_by_object_until_a_reconcile_succeeds() {
        let states = states(|| 0.0);
        assert_eq!(states.failed(&key("a")), pause(1));
        assert_eq!(states.failed(&key("a")), pause(2));
        assert_eq!(states.failed(&key("b")), pause(1));
        assert_eq!(states.failed(&ObjectKey::new("other", "a")), pause(1));
        states.succeeded(&key("a"));
        assert_eq!(states.failing(), 2);
        assert_eq!(states.failed(&key("a")), pause(1));
        assert_eq!(states.failing(), 3);
        states.forget(&key("a"));
        assert_eq!(states.failing(), 2);
    }

    #[test]
    fn jitter_takes_up_to_a_fifth_of_a_backoff_delay() {
        for (jitter, seconds) in [
            ((|| 0.0) as fn() -> f64, [1.0, 2.0]),
            (|| 0.5, [0.9, 1.8]),
            (|| 1.0, [0.8, 1.6]),
        ] {
            let states = states(jitter);
            let delays = [states.failed(&key("a")), states.failed(&key("a"))];
            assert_eq!(delays, seconds.map(Duration::from_secs_f64));
        }
    }
}
