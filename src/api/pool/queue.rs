//! (pure) The queue of a pool. Controllers and front ends share it, so that users see the place by which they get a VM.

use crate::api::pool::AssignedVm;
use k8s_openapi::jiff::Timestamp;

/// An assignment in the queue of its pool. The order of these values is the order in which the assignments get VMs: the oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Queued<'a> {
    /// Time of its creation, in whole seconds.
    pub created: Timestamp,
    /// Name of the object. It decides between assignments of the same second.
    pub name: &'a str,
}

/// A place among assignments that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// 1 for the assignment that gets the next VM.
    pub place: usize,
    /// Number of assignments that wait.
    pub of: usize,
}

impl<'a> Queued<'a> {
    /// Whether an assignment waits for a VM. `vm` is that of its status.
    #[must_use]
    pub fn waits(is_named_well: bool, vm: Option<&AssignedVm>) -> bool {
        is_named_well && vm.is_none()
    }

    /// The place of this assignment, which waits, among all that wait.
    #[must_use]
    pub fn place(self, waiting: impl IntoIterator<Item = Queued<'a>>) -> QueuePlace {
        let others = waiting.into_iter().filter(|other| *other != self);
        let others: Vec<_> = others.collect();
        QueuePlace {
            place: others.iter().filter(|other| **other < self).count() + 1,
            of: others.len() + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(second: i64, name: &str) -> Queued<'_> {
        let created = Timestamp::from_second(second).unwrap();
        Queued { created, name }
    }

    #[test]
    fn older_assignment_is_first_and_the_name_decides_within_a_second() {
        let all = [
            queued(2, "a"),
            queued(1, "c"),
            queued(1, "b"),
            queued(3, "a"),
        ];
        let places = all.map(|own| own.place(all).place);
        assert_eq!(places, [3, 2, 1, 4]);
        // A cache can lack the assignment itself.
        let place = queued(2, "b").place(all);
        assert_eq!(place, QueuePlace { place: 4, of: 5 });
        assert_eq!(queued(1, "a").place([]), QueuePlace { place: 1, of: 1 });
    }
}
