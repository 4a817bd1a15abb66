//! (pure) The VMs that are being started: since when, how far they are, and whether many are at once.

use super::trace::{Change, Made, Start, Trace};
use crate::api::start_times::StartTimes;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::collections::HashMap;

/// VMs that are being started.
#[derive(Debug, Default)]
pub struct Starts {
    /// Changes of VMs that no reconcile has dealt with, by VM.
    changes: HashMap<String, Change>,
    /// VMs whose pods this operator has made, and that do not run yet.
    under_way: HashMap<String, Start>,
    /// VMs that run and whose guests have not booted, with the time at which that was seen.
    booting: HashMap<String, Timestamp>,
    /// The last one and the one before, with their times.
    last: [Option<(String, Timestamp)>; 2],
}

/// Pods that are made within that time of each other are made at once.
const AT_ONCE: SignedDuration = SignedDuration::from_millis(250);

/// A start that is longer ago has waited long enough for others. (The controller's queue has no order: what may be written
/// is written before the last of many VMs has its pod.)
const PATIENCE: SignedDuration = SignedDuration::from_secs(10);

/// A guest that has not booted after that time has no agent that would tell.
const LONGEST_BOOT: SignedDuration = SignedDuration::from_mins(15);

impl Starts {
    /// The watch shows a VM. `settled`: the generation that was dealt with last, by whichever operator.
    pub fn saw(&mut self, name: &str, change: Change, settled: Option<i64>) {
        if settled == Some(change.generation) {
            self.changes.remove(name);
        } else if self.changes.get(name).is_none_or(|known| known.generation != change.generation) {
            self.changes.insert(name.to_owned(), change);
        }
    }

    /// A reconcile has done what follows from that generation of the VM.
    pub fn dealt_with(&mut self, name: &str, generation: i64) {
        if self.changes.get(name).is_some_and(|change| change.generation <= generation) {
            self.changes.remove(name);
        }
    }

    /// A pod is made for the VM.
    pub fn add(&mut self, name: &str, made: Made) {
        let now = made.began;
        let start = Start { change: self.changes.remove(name), made, scheduled: None };
        self.booting.remove(name);
        self.under_way.insert(name.to_owned(), start);
        let [last, before] = &mut self.last;
        if last.as_ref().is_none_or(|(last, _)| last != name) {
            *before = last.take();
        }
        *last = Some((name.to_owned(), now));
    }

    /// A node was found for the VM's pod, as is seen now, if it was not before.
    pub fn scheduled(&mut self, name: &str, now: Timestamp) {
        if let Some(start) = self.under_way.get_mut(name) {
            start.scheduled.get_or_insert(now);
        }
    }

    /// The guest runs. Gives when the pod was begun to be made and what there is to tell of the start, once.
    pub fn runs(&mut self, name: &str, times: Option<StartTimes>, now: Timestamp) -> Option<(Timestamp, Trace)> {
        let start = self.under_way.remove(name)?;
        self.booting.retain(|_, since| now.duration_since(*since) < LONGEST_BOOT);
        self.booting.insert(name.to_owned(), now);
        Some((start.made.began, start.running(name, times, now)))
    }

    /// The guest has booted. Gives what there is to tell of that, once.
    pub fn booted(&mut self, name: &str, pod_uid: &str, times: StartTimes, now: Timestamp) -> Option<Trace> {
        self.booting.remove(name)?;
        Trace::booted(name, pod_uid, times, now)
    }

    /// The VM is gone.
    pub fn forget(&mut self, name: &str) {
        self.changes.remove(name);
        self.under_way.remove(name);
        self.booting.remove(name);
    }

    /// Whether the VM's pod was made in the last ten seconds, and pods of other VMs in the last 250 ms.
    #[must_use]
    pub fn is_one_of_many(&self, name: &str, now: Timestamp) -> bool {
        let is_new = self.under_way.get(name).is_some_and(|start| now.duration_since(start.made.began) < PATIENCE);
        let others = self.last.iter().flatten().filter(|(other, _)| other != name);
        is_new && others.into_iter().any(|(_, at)| now.duration_since(*at) < AT_ONCE)
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace::Cause;
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(ms).unwrap()
    }

    fn made(ms: i64) -> Made {
        Made { began: at(ms), objects: Vec::new(), asked: at(ms), made: at(ms), pod_uid: "uid".to_owned() }
    }

    fn change(generation: i64, ms: i64) -> Change {
        Change { generation, at: at(ms), unseen: (generation == 1).then_some(0) }
    }

    #[test]
    fn a_vm_that_is_started_alone_is_not_one_of_many() {
        let mut starts = Starts::default();
        starts.add("a", made(0));
        starts.add("a", made(1));
        assert!(!starts.is_one_of_many("a", at(1)));
        starts.add("b", made(251));
        assert!(!starts.is_one_of_many("b", at(251)));
        assert!(!starts.is_one_of_many("never-started", at(251)));
    }

    #[test]
    fn of_many_each_waits_until_no_other_starts_and_ten_seconds_at_most() {
        let mut starts = Starts::default();
        starts.add("a", made(0));
        starts.add("b", made(100));
        assert!(starts.is_one_of_many("a", at(100)) && starts.is_one_of_many("b", at(100)));
        assert!(!starts.is_one_of_many("a", at(350)) && !starts.is_one_of_many("b", at(350)));
        for n in 0..100 {
            starts.add(&format!("c{n}"), made(400 + 100 * n));
        }
        assert!(starts.is_one_of_many("c20", at(10_300)) && !starts.is_one_of_many("a", at(10_300)));
        assert_eq!(starts.runs("c20", None, at(10_300)).unwrap().0, at(2400));
        assert!(!starts.is_one_of_many("c20", at(10_300)));
    }

    #[test]
    fn a_start_begins_with_the_change_that_it_follows_from() {
        let mut starts = Starts::default();
        starts.saw("a", change(1, 10), None);
        starts.saw("a", change(1, 15), None);
        starts.add("a", made(20));
        let (_, first) = starts.runs("a", None, at(30)).unwrap();
        assert_eq!((first.cause, first.steps[0].from), (Some(Cause::Created), at(10)));
        assert_eq!(starts.runs("a", None, at(31)), None, "it is told once");
        // Stopped, and later started.
        starts.saw("a", change(2, 40), Some(1));
        starts.dealt_with("a", 2);
        starts.saw("a", change(3, 50), Some(2));
        starts.dealt_with("a", 2);
        starts.add("a", made(60));
        let (_, second) = starts.runs("a", None, at(70)).unwrap();
        assert_eq!((second.cause, second.steps[0].from), (Some(Cause::Changed), at(50)));
        // Crashed; and what another operator has done is none of ours.
        starts.saw("a", change(4, 80), Some(3));
        starts.saw("a", change(4, 81), Some(4));
        starts.add("a", made(90));
        let (_, third) = starts.runs("a", None, at(95)).unwrap();
        assert_eq!((third.cause, third.steps[0].from), (Some(Cause::Again), at(90)));
    }

    #[test]
    fn a_boot_is_told_once_after_a_start_that_was_seen() {
        let mut starts = Starts::default();
        let times = StartTimes { guest: Some(100), boot: Some(900), ..StartTimes::default() };
        assert_eq!(starts.booted("a", "uid", times, at(0)), None);
        starts.add("a", made(0));
        starts.runs("a", Some(times), at(200)).unwrap();
        assert_eq!(starts.booted("a", "uid", times, at(1000)).unwrap().steps[0].millis(), 800.0);
        assert_eq!(starts.booted("a", "uid", times, at(1001)), None);
    }
}
