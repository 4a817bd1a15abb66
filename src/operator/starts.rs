//! (pure) The VMs that are being started: since when, and whether many are at once.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::collections::HashMap;

/// VMs whose pods this operator has made, and that do not run yet.
#[derive(Debug, Default)]
pub struct Starts {
    since: HashMap<String, Timestamp>,
    /// The last one and the one before, with their times.
    last: [Option<(String, Timestamp)>; 2],
}

/// Pods that are made within that time of each other are made at once.
const AT_ONCE: SignedDuration = SignedDuration::from_millis(250);

/// A start that is longer ago has waited long enough for others.
const PATIENCE: SignedDuration = SignedDuration::from_secs(3);

impl Starts {
    /// A pod is made for the VM.
    pub fn add(&mut self, name: &str, now: Timestamp) {
        self.since.insert(name.to_owned(), now);
        let [last, before] = &mut self.last;
        if last.as_ref().is_none_or(|(last, _)| last != name) {
            *before = last.take();
        }
        *last = Some((name.to_owned(), now));
    }

    /// The VM runs, or is gone. Gives the time of its start.
    pub fn remove(&mut self, name: &str) -> Option<Timestamp> {
        self.since.remove(name)
    }

    /// Whether the VM's pod was made in the last three seconds, and pods of other VMs in the last 250 ms.
    #[must_use]
    pub fn is_one_of_many(&self, name: &str, now: Timestamp) -> bool {
        let is_new = self.since.get(name).is_some_and(|since| now.duration_since(*since) < PATIENCE);
        let others = self.last.iter().flatten().filter(|(other, _)| other != name);
        is_new && others.into_iter().any(|(_, at)| now.duration_since(*at) < AT_ONCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(ms).unwrap()
    }

    #[test]
    fn a_vm_that_is_started_alone_is_not_one_of_many() {
        let mut starts = Starts::default();
        starts.add("a", at(0));
        starts.add("a", at(1));
        assert!(!starts.is_one_of_many("a", at(1)));
        starts.add("b", at(251));
        assert!(!starts.is_one_of_many("b", at(251)));
        assert!(!starts.is_one_of_many("never-started", at(251)));
    }

    #[test]
    fn of_many_each_waits_until_no_other_starts_and_three_seconds_at_most() {
        let mut starts = Starts::default();
        starts.add("a", at(0));
        starts.add("b", at(100));
        assert!(starts.is_one_of_many("a", at(100)) && starts.is_one_of_many("b", at(100)));
        assert!(!starts.is_one_of_many("a", at(350)) && !starts.is_one_of_many("b", at(350)));
        for n in 0..40 {
            starts.add(&format!("c{n}"), at(400 + 100 * n));
        }
        assert!(starts.is_one_of_many("c20", at(4300)) && !starts.is_one_of_many("a", at(4300)));
        assert_eq!(starts.remove("c20"), Some(at(2400)));
        assert!(!starts.is_one_of_many("c20", at(4300)));
    }
}
