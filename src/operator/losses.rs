//! (pure) Pods that somebody else than the operator deletes before the VM has run well: how many in a row, by VM.
//!
//! It is in memory; where a pause follows from it, that stands in the VM's status ([`POD_DELETED`]), by which a new operator
//! goes on. A pod that goes while no operator is there is not counted.
//!
//! [`POD_DELETED`]: crate::api::virtual_machine::POD_DELETED

use super::vm::end::RAN_WELL;
use k8s_openapi::jiff::Timestamp;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A pod that was deleted by somebody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its UID.
    pub uid: String,
    /// The how-manyth it is in a row, from 1 on.
    pub in_a_row: u32,
    /// When it was missed; whole seconds.
    pub at: Timestamp,
    /// What its status says of who deleted it, if anything.
    pub why: Option<String>,
}

/// The pods that VMs have, and those that they have lost.
#[derive(Default)]
pub struct Losses(Mutex<HashMap<String, Pod>>);

struct Pod {
    uid: Box<str>,
    /// Since when its guest runs.
    runs: Option<Timestamp>,
    /// How many were lost in a row before it.
    before: u32,
    why: Option<Box<str>>,
    /// When it was missed, and the how-manyth it then was.
    missed: Option<(Timestamp, u32)>,
}

impl Losses {
    fn pods(&self) -> MutexGuard<'_, HashMap<String, Pod>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The VM has that pod, whose guest runs since that time if it does. `before` says how many were lost in a row before
    /// it where nothing is known of an earlier one.
    pub fn alive(&self, vm: &str, uid: &str, runs: Option<Timestamp>, before: u32) {
        let mut pods = self.pods();
        let before = match pods.get_mut(vm) {
            Some(pod) if *pod.uid == *uid => {
                // It was not there to be seen for a moment: an old list.
                pod.missed = None;
                pod.runs = pod.runs.or(runs);
                return;
            }
            Some(earlier) => earlier.missed.map_or(earlier.before, |(_, in_a_row)| in_a_row),
            None => before,
        };
        pods.insert(vm.to_owned(), Pod { uid: uid.into(), runs, before, why: None, missed: None });
    }

    /// The VM's pod is being deleted; `why` is what its status says of that.
    pub fn is_leaving(&self, vm: &str, uid: &str, why: impl FnOnce() -> Option<String>) {
        if let Some(pod) = self.pods().get_mut(vm).filter(|pod| *pod.uid == *uid) {
            pod.why = why().map(String::into_boxed_str);
        }
    }

    /// There is no pod. Gives the one that was there before and that somebody else has deleted, if there was one.
    pub fn is_missed(&self, vm: &str, now: Timestamp) -> Option<Lost> {
        let mut pods = self.pods();
        let pod = pods.get_mut(vm)?;
        let ran_well = pod.runs.is_some_and(|since| now.duration_since(since) >= RAN_WELL);
        let in_a_row = if ran_well { 1 } else { pod.before.saturating_add(1) };
        // The API server keeps no more than seconds.
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let (at, in_a_row) = *pod.missed.get_or_insert((now, in_a_row));
        Some(Lost { uid: pod.uid.to_string(), in_a_row, at, why: pod.why.as_deref().map(str::to_owned) })
    }

    /// The operator deletes the pod itself, it has ended by itself, or the VM is stopped or gone: nobody's loss.
    pub fn forget(&self, vm: &str) {
        self.pods().remove(vm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// The how-manyth loss it is.
    fn missed(losses: &Losses, seconds: i64) -> Option<u32> {
        losses.is_missed("vm", at(seconds)).map(|lost| lost.in_a_row)
    }

    #[test]
    fn losses_are_counted_until_a_pod_has_run_for_ten_minutes() {
        let losses = Losses::default();
        assert_eq!(missed(&losses, 0), None, "nothing is known of any pod");
        losses.alive("vm", "a", None, 0);
        assert_eq!((missed(&losses, 1), missed(&losses, 2)), (Some(1), Some(1)), "one is missed once");
        // It lives long, and its guest runs for less than ten minutes.
        losses.alive("vm", "b", None, 0);
        losses.alive("vm", "b", Some(at(1000)), 0);
        assert_eq!(missed(&losses, 1599), Some(2));
        losses.alive("vm", "c", Some(at(2000)), 0);
        assert_eq!(missed(&losses, 2600), Some(1));
        losses.alive("vm", "d", None, 0);
        assert_eq!(missed(&losses, 2601), Some(2));
    }

    #[test]
    fn a_pod_that_comes_back_into_sight_was_not_lost() {
        let losses = Losses::default();
        for _ in 0..3 {
            losses.alive("vm", "a", None, 0);
            assert_eq!(missed(&losses, 1), Some(1));
        }
    }

    #[test]
    fn what_the_operator_does_itself_is_no_loss() {
        let losses = Losses::default();
        losses.alive("vm", "a", None, 4);
        losses.forget("vm");
        losses.is_leaving("vm", "a", || None);
        assert_eq!(missed(&losses, 1), None);
    }

    #[test]
    fn who_knows_of_no_earlier_pod_goes_on_from_what_was_told() {
        let losses = Losses::default();
        losses.alive("vm", "a", None, 3);
        losses.is_leaving("vm", "a", || Some("Evicted: a taint".to_owned()));
        losses.is_leaving("vm", "another", || Some("nothing to do with it".to_owned()));
        let lost = Lost { uid: "a".to_owned(), in_a_row: 4, at: at(7), why: Some("Evicted: a taint".to_owned()) };
        assert_eq!(losses.is_missed("vm", Timestamp::from_millisecond(7900).unwrap()), Some(lost));
    }
}
