//! (pure) When a request is made again that the API server has refused though nothing is wrong with the VM: nobody tells
//! when a quota is raised, or a role or a policy is another.
//!
//! The refusal itself stands in the VM's status. An operator that finds one there that it has not heard itself puts it off
//! from then on, so that a start over many VMs asks nothing at once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The shortest pause.
const PAUSE: Duration = Duration::from_secs(300);
/// The part of it that may come on top, by chance.
const BY_CHANCE: f64 = 0.2;
/// The same for people.
pub const AGAIN: &str = "every 5 to 6 minutes";

/// When what is asked for again, by VM and by the type of the condition that tells it.
pub struct Refusals {
    due: Mutex<HashMap<(String, &'static str), Instant>>,
    chance: fn() -> f64,
}

impl Refusals {
    /// None yet. `chance` gives from 0 to 1.
    #[must_use]
    pub fn new(chance: fn() -> f64) -> Self {
        Self { due: Mutex::default(), chance }
    }

    fn due(&self) -> MutexGuard<'_, HashMap<(String, &'static str), Instant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause(&self) -> Duration {
        PAUSE.mul_f64(1.0 + BY_CHANCE * (self.chance)())
    }

    /// It was refused now.
    pub fn refused(&self, vm: &str, condition: &'static str, now: Instant) {
        let due = now + self.pause();
        self.due().insert((vm.to_owned(), condition), due);
    }

    /// Whether it is too early to ask again for what was refused.
    pub fn is_put_off(&self, vm: &str, condition: &'static str, now: Instant) -> bool {
        let pause = self.pause();
        *self.due().entry((vm.to_owned(), condition)).or_insert(now + pause) > now
    }

    /// Nothing is refused any more.
    pub fn over(&self, vm: &str, condition: &'static str) {
        self.due().remove(&(vm.to_owned(), condition));
    }

    /// After what time it is asked for again, if it was refused.
    pub fn recheck(&self, vm: &str, condition: &'static str, now: Instant) -> Option<Duration> {
        self.due().get(&(vm.to_owned(), condition)).map(|due| due.saturating_duration_since(now))
    }

    /// Forgets a VM that is gone.
    pub fn forget(&self, vm: &str) {
        self.due().retain(|(of, _), _| of != vm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_put_off_for_five_minutes_and_a_chance() {
        for (chance, seconds) in [((|| 0.0) as fn() -> f64, 300), (|| 0.5, 330), (|| 1.0, 360)] {
            let (refusals, start) = (Refusals::new(chance), Instant::now());
            let at = |seconds| start + Duration::from_secs(seconds);
            assert_eq!(refusals.recheck("vm", "c", start), None);
            refusals.refused("vm", "c", start);
            assert_eq!(refusals.recheck("vm", "c", at(100)), Some(Duration::from_secs(seconds - 100)));
            let put_off = [100, seconds - 1, seconds].map(|seconds| refusals.is_put_off("vm", "c", at(seconds)));
            assert_eq!(put_off, [true, true, false]);
            refusals.forget("vm");
            assert_eq!(refusals.recheck("vm", "c", at(seconds)), None);
            // Of another operator.
            assert!(refusals.is_put_off("vm", "c", at(1000)) && !refusals.is_put_off("vm", "c", at(1000 + seconds)));
            refusals.over("vm", "c");
            assert_eq!(refusals.recheck("vm", "c", at(1000)), None);
        }
    }
}
