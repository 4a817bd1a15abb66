//! The traffic between one operator and the API server: the number of requests, those in progress, and the watched
//! kinds. It distinguishes an idle operator from one that is still starting.

use crate::signal::{Listener, Signal};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct Counts {
    requests: usize,
    in_progress: BTreeMap<usize, String>,
    /// By kind: the number of the watch request.
    watched: BTreeMap<String, usize>,
}

/// The traffic of one operator.
#[derive(Clone)]
pub struct Traffic {
    /// Plural names of the kinds that the operator must watch.
    follows: &'static [&'static str],
    counts: Arc<Mutex<Counts>>,
    changed: Signal,
}

/// A request in progress. It ends when this is dropped.
pub struct InProgress {
    traffic: Traffic,
    number: usize,
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.traffic
            .counts
            .lock()
            .unwrap()
            .in_progress
            .remove(&self.number);
        self.traffic.changed.raise();
    }
}

impl InProgress {
    /// Marks the kind as watched, instead of any earlier watch. Returns the number of this watch.
    pub fn into_watch(self, kind: &str) -> usize {
        self.traffic
            .counts
            .lock()
            .unwrap()
            .watched
            .insert(kind.to_owned(), self.number);
        self.number
    }
}

impl Traffic {
    /// The traffic of an operator that has to watch these kinds and has sent nothing yet.
    #[must_use]
    pub fn new(follows: &'static [&'static str]) -> Self {
        Self {
            follows,
            counts: Arc::default(),
            changed: Signal::default(),
        }
    }

    /// Raised when a request starts or ends.
    #[must_use]
    pub fn changes(&self) -> Listener {
        self.changed.listen()
    }

    /// A request, or a delayed event.
    pub fn start(&self, what: &str) -> InProgress {
        let mut counts = self.counts.lock().unwrap();
        counts.requests += 1;
        let number = counts.requests;
        counts.in_progress.insert(number, what.to_owned());
        drop(counts);
        self.changed.raise();
        InProgress {
            traffic: self.clone(),
            number,
        }
    }

    /// The watch with that number has ended.
    pub fn end_watch(&self, kind: &str, number: usize) {
        let mut counts = self.counts.lock().unwrap();
        if counts.watched.get(kind) == Some(&number) {
            counts.watched.remove(kind);
        }
        drop(counts);
        self.changed.raise();
    }

    /// The number of requests.
    pub fn requests(&self) -> usize {
        self.counts.lock().unwrap().requests
    }

    /// The reason why the operator is not idle, if there is one.
    pub fn busy_reason(&self) -> Option<String> {
        let counts = self.counts.lock().unwrap();
        if let Some(what) = counts.in_progress.values().next() {
            return Some(format!("{what} is in progress"));
        }
        let missing = self
            .follows
            .iter()
            .find(|kind| !counts.watched.contains_key(**kind));
        missing.map(|kind| format!("{kind} are not watched"))
    }
}

#[cfg(test)]
mod tests {
    use super::Traffic;

    const WATCHED: &[&str] = &["vms", "pods"];

    fn watching() -> Traffic {
        let traffic = Traffic::new(WATCHED);
        for kind in WATCHED {
            traffic.start("LIST").into_watch(kind);
        }
        traffic
    }

    #[test]
    fn an_operator_is_at_rest_that_follows_everything_and_waits_for_nothing() {
        assert_eq!(
            Traffic::new(WATCHED).busy_reason().unwrap(),
            "vms are not watched"
        );
        let traffic = watching();
        assert_eq!(traffic.busy_reason(), None);
        let request = traffic.start("POST pods/vm");
        assert_eq!(
            traffic.busy_reason().unwrap(),
            "POST pods/vm is in progress"
        );
        drop(request);
        assert_eq!(
            (traffic.busy_reason(), traffic.requests()),
            (None, WATCHED.len() + 1)
        );
    }

    #[test]
    fn an_old_watch_that_ends_ends_no_newer_one() {
        let traffic = watching();
        let old = traffic.start("LIST pods").into_watch("pods");
        let new = traffic.start("LIST pods").into_watch("pods");
        traffic.end_watch("pods", old);
        assert_eq!(traffic.busy_reason(), None);
        traffic.end_watch("pods", new);
        assert_eq!(traffic.busy_reason().unwrap(), "pods are not watched");
    }
}
