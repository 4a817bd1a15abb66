//! (pure) The queue of a controller: objects that are due for a reconcile, first in, first out, and objects whose reconcile is delayed.
//!
//! kube's controller takes any of the objects that are due. In a burst, all others could overtake one object.

use crate::k8s::key::ObjectKey;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Instant;

/// The number of objects with priority in a row, after which an object without priority is next.
const PRIORITY_RUN_MAX: usize = 8;

#[derive(Clone, Copy)]
enum Place {
    Due,
    /// The reconcile is due at that time.
    Delayed(Instant),
    Running,
    /// The object has changed at that time, while its reconcile runs.
    Changed(Instant),
}

/// The objects that wait for a reconcile, each of them once, and those whose reconcile runs.
#[derive(Default)]
pub struct Queue {
    places: HashMap<ObjectKey, Place>,
    /// The due objects with priority, with the time since which they are due.
    prioritized: VecDeque<(ObjectKey, Instant)>,
    /// The due objects without priority.
    others: VecDeque<(ObjectKey, Instant)>,
    delayed: BTreeSet<(Instant, ObjectKey)>,
    /// The number of objects with priority that were taken in a row.
    priority_run: usize,
}

impl Queue {
    /// Adds a changed object, which is due now. If its reconcile runs, another one follows. If its reconcile is delayed, the delay ends.
    /// Returns whether the object did not wait before.
    pub fn add(&mut self, key: &ObjectKey, has_priority: bool, now: Instant) -> bool {
        match self.places.get(key).copied() {
            Some(Place::Due | Place::Changed(_)) => false,
            Some(Place::Running) => {
                self.places.insert(key.clone(), Place::Changed(now));
                true
            }
            Some(Place::Delayed(due)) => {
                self.delayed.remove(&(due, key.clone()));
                self.push(key.clone(), has_priority, now);
                false
            }
            None => {
                self.push(key.clone(), has_priority, now);
                true
            }
        }
    }

    /// Takes the next object, and the time since which it is due. Until [`Self::finish`] it counts as running.
    pub fn take(&mut self) -> Option<(ObjectKey, Instant)> {
        let is_turn_of_others = self.priority_run >= PRIORITY_RUN_MAX && !self.others.is_empty();
        let prioritized = match is_turn_of_others {
            true => None,
            false => self.prioritized.pop_front(),
        };
        self.priority_run = match &prioritized {
            Some(_) => self.priority_run.saturating_add(1),
            None => 0,
        };
        let (key, since) = prioritized.or_else(|| self.others.pop_front())?;
        self.places.insert(key.clone(), Place::Running);
        Some((key, since))
    }

    /// Ends the reconcile of an object. The object is due if it has changed in the meantime. Otherwise it is due at the time
    /// `next`, if there is one. Returns whether the delay has added it to the queue.
    pub fn finish(&mut self, key: &ObjectKey, has_priority: bool, next: Option<Instant>) -> bool {
        match (self.places.remove(key), next) {
            (Some(Place::Changed(since)), _) => self.push(key.clone(), has_priority, since),
            (_, Some(due)) => {
                self.places.insert(key.clone(), Place::Delayed(due));
                return self.delayed.insert((due, key.clone()));
            }
            (_, None) => {}
        }
        false
    }

    /// The end of the shortest delay.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.delayed.first().map(|(due, _)| *due)
    }

    /// Makes the objects due whose delay has ended.
    pub fn end_delays(&mut self, now: Instant, has_priority: impl Fn(&ObjectKey) -> bool) {
        while self.next_due().is_some_and(|due| due <= now) {
            let Some((due, key)) = self.delayed.pop_first() else {
                return;
            };
            let has_priority = has_priority(&key);
            self.push(key, has_priority, due);
        }
    }

    /// The number of objects that are due.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.prioritized.len() + self.others.len()
    }

    fn push(&mut self, key: ObjectKey, has_priority: bool, since: Instant) {
        self.places.insert(key.clone(), Place::Due);
        let queue = match has_priority {
            true => &mut self.prioritized,
            false => &mut self.others,
        };
        queue.push_back((key, since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("ns", name)
    }

    /// Takes all objects that are due.
    fn taken(queue: &mut Queue) -> Vec<String> {
        let taken = std::iter::from_fn(|| queue.take());
        taken.map(|(key, _)| key.name().to_owned()).collect()
    }

    #[test]
    fn objects_without_priority_wait_for_eight_others_at_most() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for name in ["z", "a", "z"] {
            queue.add(&key(name), false, now);
        }
        for n in 0..17 {
            queue.add(&key(&n.to_string()), true, now);
        }
        assert_eq!(queue.depth(), 19);
        let order = "0 1 2 3 4 5 6 7 z 8 9 10 11 12 13 14 15 a 16";
        assert_eq!(taken(&mut queue).join(" "), order);
    }

    #[test]
    fn changes_during_a_reconcile_lead_to_one_more() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        assert!(queue.add(&key("a"), false, now));
        assert!(!queue.add(&key("a"), false, now));
        assert_eq!(taken(&mut queue), ["a"]);
        assert!(queue.add(&key("a"), false, now));
        assert!(!queue.add(&key("a"), false, now));
        assert_eq!(taken(&mut queue).len(), 0);
        assert!(!queue.finish(&key("a"), false, Some(now)));
        assert_eq!((queue.next_due(), taken(&mut queue).len()), (None, 1));
        assert!(!queue.finish(&key("a"), false, None));
        assert_eq!((queue.depth(), queue.places.len()), (0, 0));
    }

    #[test]
    fn delay_ends_at_its_time_or_with_a_change() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        for (name, seconds) in [("a", 3), ("b", 2), ("c", 1)] {
            assert!(queue.finish(&key(name), false, Some(after(seconds))));
        }
        assert!(!queue.add(&key("a"), false, now));
        assert_eq!(queue.next_due(), Some(after(1)));
        queue.end_delays(after(2), |_| false);
        assert_eq!(queue.next_due(), None);
        assert_eq!(queue.take(), Some((key("a"), now)));
        assert_eq!(queue.take(), Some((key("c"), after(1))));
        assert_eq!(taken(&mut queue), ["b"]);
    }
}
