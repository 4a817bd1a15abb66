//! (pure) How far fetches are, as it was read last: one reading serves all VMs that wait for an image.

use crate::api::runner::fetch::Progress;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What was read last, by the pod's name.
#[derive(Default)]
pub struct Progresses(Mutex<HashMap<String, (Timestamp, Option<Progress>)>>);

impl Progresses {
    /// What was read last of that pod, and whether that is no longer ago than `pause`.
    pub fn known(&self, pod: &str, now: Timestamp, pause: Duration) -> (Option<Progress>, bool) {
        let pause = SignedDuration::try_from(pause).unwrap_or(SignedDuration::ZERO);
        match self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(pod)
        {
            // It was not read in the future: the clock was set back.
            Some((at, progress)) => (
                *progress,
                (SignedDuration::ZERO..pause).contains(&now.duration_since(*at)),
            ),
            None => (None, false),
        }
    }

    /// This was read now.
    pub fn keep(&self, pod: &str, now: Timestamp, progress: Option<Progress>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(pod.to_owned(), (now, progress));
    }

    /// Forgets all pods but those.
    pub fn retain(&self, pods: impl Fn(&str) -> bool) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|pod, _| pods(pod));
    }
}
