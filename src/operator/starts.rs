//! (pure) The VMs that are being started: since when, and whether many are at once.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::collections::HashMap;

/// VMs that are being started.
#[derive(Debug, Default)]
pub struct Starts {
    /// When this operator created the pods of VMs that do not run yet, by VM.
    under_way: HashMap<String, Timestamp>,
    /// The last VM whose pod was created and the one before, with their times.
    last: [Option<(String, Timestamp)>; 2],
}

/// Pods that are created within that time of each other are created at once.
const AT_ONCE: SignedDuration = SignedDuration::from_millis(250);

/// A start that is longer ago has waited long enough for others. (The controller's queue has no order: what may be written
/// is written before the last of many VMs has its pod.)
const PATIENCE: SignedDuration = SignedDuration::from_secs(10);

impl Starts {
    /// The VM's pod was created.
    pub fn created(&mut self, name: &str, now: Timestamp) {
        self.under_way.insert(name.to_owned(), now);
        let [last, before] = &mut self.last;
        if last.as_ref().is_none_or(|(last, _)| last != name) {
            *before = last.take();
        }
        *last = Some((name.to_owned(), now));
    }

    /// The VM runs. Returns when its pod was created, the first time.
    pub fn runs(&mut self, name: &str) -> Option<Timestamp> {
        self.under_way.remove(name)
    }

    /// The VM is gone.
    pub fn forget(&mut self, name: &str) {
        self.under_way.remove(name);
    }

    /// Whether the VM's pod was created in the last ten seconds, and pods of other VMs in the last 250 ms.
    #[must_use]
    pub fn is_one_of_many(&self, name: &str, now: Timestamp) -> bool {
        let is_new = self.under_way.get(name).is_some_and(|created| now.duration_since(*created) < PATIENCE);
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
        starts.created("a", at(0));
        starts.created("a", at(1));
        assert!(!starts.is_one_of_many("a", at(1)));
        starts.created("b", at(251));
        assert!(!starts.is_one_of_many("b", at(251)));
        assert!(!starts.is_one_of_many("never-started", at(251)));
    }

    #[test]
    fn of_many_each_waits_until_no_other_starts_and_ten_seconds_at_most() {
        let mut starts = Starts::default();
        starts.created("a", at(0));
        starts.created("b", at(100));
        assert!(starts.is_one_of_many("a", at(100)) && starts.is_one_of_many("b", at(100)));
        assert!(!starts.is_one_of_many("a", at(350)) && !starts.is_one_of_many("b", at(350)));
        for n in 0..100 {
            starts.created(&format!("c{n}"), at(400 + 100 * n));
        }
        assert!(starts.is_one_of_many("c20", at(10_300)) && !starts.is_one_of_many("a", at(10_300)));
        assert_eq!(starts.runs("c20"), Some(at(2400)));
        assert!(!starts.is_one_of_many("c20", at(10_300)));
        assert_eq!(starts.runs("c20"), None);
    }
}
