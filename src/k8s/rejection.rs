//! Requests that the API server rejects: the cause, the time of the next try, and the message in the status.
//!
//! A rejection lasts until a person changes something, and no watch reports a changed quota, role or policy. So the request is sent again
//! after a fixed delay, and a condition reports the rejection until then.

use crate::k8s::error::Error;
use crate::k8s::key::ObjectKey;
use crate::k8s::state::States;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Minimum delay before a rejected request is sent again.
const RETRY_DELAY: Duration = Duration::from_secs(300);
/// Jitter, as a fraction of the delay, so that many objects do not retry at once.
const RETRY_JITTER: f64 = 0.2;
/// The delay in the words of messages.
pub const RETRY_TEXT: &str = "every 5 to 6 minutes";
/// Minimum time between two messages of a rejection. A webhook's message may differ each time, and each write of the status starts another
/// reconcile.
const MESSAGE_MIN_AGE: Duration = Duration::from_secs(60);

/// The cause of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// An object of another owner has the name.
    NameTaken,
    /// An object of a previous owner has the name and is going to be deleted.
    BeingRemoved,
    /// The Pod Security level of the namespace.
    PodSecurity,
    /// An admission policy or a webhook.
    Policy,
    /// A `LimitRange` of the namespace.
    LimitRange,
    /// A quota of the namespace.
    Quota,
    /// A quota of the namespace that requires an amount that the object does not name.
    MissingAmount,
    /// A missing permission of the operator.
    Rights,
    /// Any other cause, for example an invalid value.
    Other,
}

/// Fixed fragments of the API server's messages. An API test compares them with a real server.
const FRAGMENTS: [(Cause, &[&str]); 8] = [
    (Cause::PodSecurity, &["violates PodSecurity"]),
    (Cause::Quota, &["exceeded quota: "]),
    (Cause::MissingAmount, &["failed quota: ", ": must specify "]),
    (Cause::LimitRange, &["is forbidden: ", " usage per "]),
    (Cause::LimitRange, &["max limit to request ratio per "]),
    (Cause::Policy, &["denied the request"]),
    (Cause::Policy, &["denied request"]),
    (Cause::Rights, &[" cannot ", " resource \""]),
];

impl Cause {
    /// The cause of a rejection. The API server has no code for most of them, so the message decides.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        let message = match error {
            Error::OwnedByOther { .. } => return Self::NameTaken,
            Error::OwnedByPrevious { .. } => return Self::BeingRemoved,
            _ => error.to_string(),
        };
        let has_all = |texts: &[&str]| texts.iter().all(|text| message.contains(text));
        let found = FRAGMENTS.iter().find(|(_, texts)| has_all(texts));
        match found {
            Some((Self::Rights, _)) if error.code() != Some(403) => Self::Other,
            Some((cause, _)) => *cause,
            None => Self::Other,
        }
    }
}

/// The remembered rejections of one object's requests.
#[derive(Debug, Default)]
pub struct Rejections {
    /// The times of retries, by the type of the condition that reports the rejection.
    until: BTreeMap<&'static str, Instant>,
    /// The time of the last write of a rejection into the status.
    reported: Option<Instant>,
}

/// A state with rejections.
pub trait HasRejections {
    /// The rejections.
    fn rejections(&mut self) -> &mut Rejections;
}

impl HasRejections for Rejections {
    fn rejections(&mut self) -> &mut Rejections {
        self
    }
}

impl<T: Default + HasRejections> States<T> {
    fn next_retry(&self, now: Instant) -> Instant {
        now + RETRY_DELAY.mul_f64(1.0 + RETRY_JITTER * self.jitter())
    }

    /// Records that the API server has rejected a request. The condition reports it.
    pub fn rejected(&self, key: &ObjectKey, condition: &'static str, now: Instant) {
        self.retry_at(key, condition, self.next_retry(now));
    }

    /// Records a rejected request that is sent again at that time.
    pub fn retry_at(&self, key: &ObjectKey, condition: &'static str, until: Instant) {
        self.change(key, |state| {
            state.rejections().until.insert(condition, until)
        });
    }

    /// Whether it is too early to send a rejected request again. The delay of a rejection that a previous operator has reported starts now.
    pub fn is_retry_delayed(&self, key: &ObjectKey, condition: &'static str, now: Instant) -> bool {
        let until = self.next_retry(now);
        self.change(key, |state| {
            let rejections = state.rejections();
            *rejections.until.entry(condition).or_insert(until) > now
        })
    }

    /// Records that the API server accepts the requests that this condition reports.
    pub fn accepted(&self, key: &ObjectKey, condition: &'static str) {
        self.with(key, |state| state.rejections().until.remove(condition));
    }

    /// The time until the rejected request is sent again; zero if it is due.
    #[must_use]
    pub fn retry_after(
        &self,
        key: &ObjectKey,
        condition: &'static str,
        now: Instant,
    ) -> Option<Duration> {
        let until = self.with(key, |state| {
            state.rejections().until.get(condition).copied()
        })?;
        until.map(|until| until.saturating_duration_since(now))
    }

    /// Records that a rejection was written into the status.
    pub fn rejection_reported(&self, key: &ObjectKey, now: Instant) {
        self.change(key, |state| state.rejections().reported = Some(now));
    }

    /// Whether a reported rejection must keep its message for now.
    #[must_use]
    pub fn keeps_message(&self, key: &ObjectKey, now: Instant) -> bool {
        let reported = self
            .with(key, |state| state.rejections().reported)
            .flatten();
        reported.is_some_and(|at| now.saturating_duration_since(at) < MESSAGE_MIN_AGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_request_is_sent_again_after_five_minutes_plus_jitter() {
        for (jitter, seconds) in [((|| 0.0) as fn() -> f64, 300), (|| 0.5, 330), (|| 1.0, 360)] {
            let states = States::<Rejections>::new(Duration::from_secs(1), jitter);
            let (key, start) = (ObjectKey::new("ns", "a"), Instant::now());
            let at = |seconds| start + Duration::from_secs(seconds);
            assert_eq!(states.retry_after(&key, "c", start), None);
            states.rejected(&key, "c", start);
            assert_eq!(
                states.retry_after(&key, "c", at(100)),
                Some(Duration::from_secs(seconds - 100))
            );
            let put_off = [100, seconds - 1, seconds]
                .map(|seconds| states.is_retry_delayed(&key, "c", at(seconds)));
            assert_eq!(put_off, [true, true, false]);
            states.forget(&key);
            assert_eq!(states.retry_after(&key, "c", at(seconds)), None);
            // Reported by a previous operator.
            assert!(states.is_retry_delayed(&key, "c", at(1000)));
            assert!(!states.is_retry_delayed(&key, "c", at(1000 + seconds)));
            states.accepted(&key, "c");
            assert_eq!(states.retry_after(&key, "c", at(1000)), None);
        }
    }
}
