//! The traffic between one operator and the API server: how many requests, which of them are pending, and which kinds are
//! watched. It shows whether an operator is at rest, or is only slow to start.

use crate::signal::{Listener, Signal};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct Counts {
    requests: usize,
    under_way: BTreeMap<usize, String>,
    /// By kind: the number of the request that follows it.
    followed: BTreeMap<String, usize>,
}

/// The traffic of one operator.
#[derive(Clone)]
pub struct Traffic {
    /// Plural names of the kinds that it has to watch.
    follows: &'static [&'static str],
    counts: Arc<Mutex<Counts>>,
    changed: Signal,
}

/// Something that is under way until this is dropped.
pub struct UnderWay {
    traffic: Traffic,
    number: usize,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.traffic
            .counts
            .lock()
            .unwrap()
            .under_way
            .remove(&self.number);
        self.traffic.changed.raise();
    }
}

impl UnderWay {
    /// It follows that kind from now on, whatever else did so before. Gives the number by which it ends.
    pub fn follows(self, kind: &str) -> usize {
        self.traffic
            .counts
            .lock()
            .unwrap()
            .followed
            .insert(kind.to_owned(), self.number);
        self.number
    }
}

impl Traffic {
    /// No request yet of an operator that has to watch these kinds.
    #[must_use]
    pub fn new(follows: &'static [&'static str]) -> Self {
        Self {
            follows,
            counts: Arc::default(),
            changed: Signal::default(),
        }
    }

    /// Notified of each request that begins or ends.
    #[must_use]
    pub fn changes(&self) -> Listener {
        self.changed.listen()
    }

    /// A request, or an event that is late.
    pub fn begins(&self, what: &str) -> UnderWay {
        let mut counts = self.counts.lock().unwrap();
        counts.requests += 1;
        let number = counts.requests;
        counts.under_way.insert(number, what.to_owned());
        drop(counts);
        self.changed.raise();
        UnderWay {
            traffic: self.clone(),
            number,
        }
    }

    /// A kind is not followed any more by the request of that number.
    pub fn ends(&self, kind: &str, number: usize) {
        let mut counts = self.counts.lock().unwrap();
        if counts.followed.get(kind) == Some(&number) {
            counts.followed.remove(kind);
        }
        drop(counts);
        self.changed.raise();
    }

    /// How many there were.
    pub fn requests(&self) -> usize {
        self.counts.lock().unwrap().requests
    }

    /// What keeps the operator from being at rest, if anything does.
    pub fn unrest(&self) -> Option<String> {
        let counts = self.counts.lock().unwrap();
        if let Some(what) = counts.under_way.values().next() {
            return Some(format!("{what} is under way"));
        }
        let missing = self
            .follows
            .iter()
            .find(|kind| !counts.followed.contains_key(**kind));
        missing.map(|kind| format!("{kind} are not followed"))
    }
}

#[cfg(test)]
mod tests {
    use super::Traffic;

    const FOLLOWED: &[&str] = &["vms", "pods"];

    fn following() -> Traffic {
        let traffic = Traffic::new(FOLLOWED);
        for kind in FOLLOWED {
            traffic.begins("LIST").follows(kind);
        }
        traffic
    }

    #[test]
    fn an_operator_is_at_rest_that_follows_everything_and_waits_for_nothing() {
        assert_eq!(
            Traffic::new(FOLLOWED).unrest().unwrap(),
            "vms are not followed"
        );
        let traffic = following();
        assert_eq!(traffic.unrest(), None);
        let request = traffic.begins("POST pods/vm");
        assert_eq!(traffic.unrest().unwrap(), "POST pods/vm is under way");
        drop(request);
        assert_eq!(
            (traffic.unrest(), traffic.requests()),
            (None, FOLLOWED.len() + 1)
        );
    }

    #[test]
    fn an_old_watch_that_ends_ends_no_newer_one() {
        let traffic = following();
        let old = traffic.begins("LIST pods").follows("pods");
        let new = traffic.begins("LIST pods").follows("pods");
        traffic.ends("pods", old);
        assert_eq!(traffic.unrest(), None);
        traffic.ends("pods", new);
        assert_eq!(traffic.unrest().unwrap(), "pods are not followed");
    }
}
