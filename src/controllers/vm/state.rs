//! What the operator remembers of each VM besides the caches. It is lost with the process: only the pace of retries, one metric and
//! the blame for a deleted pod depend on it.

use crate::k8s::retry::{self, pause};
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time before a rejected request is sent again: nothing reports when a quota is raised, or a role or policy changed.
const REJECTION_RETRY: Duration = Duration::from_secs(300);
/// Up to this part of it is added, so that many VMs do not retry at once.
const REJECTION_RETRY_JITTER: f64 = 0.2;
/// The same for people.
pub const REJECTION_RETRY_TEXT: &str = "every 5 to 6 minutes";
/// The part of a backoff delay that jitter can take away.
const BACKOFF_JITTER: f64 = 0.2;
/// How long a reported rejection keeps its message. The message of a webhook may differ each time, and each write of the status is
/// followed by another reconcile.
const REJECTION_MESSAGE_MIN_AGE: Duration = Duration::from_secs(60);

/// The state of one VM.
#[derive(Default)]
struct VmState {
    /// Failed reconciles in a row.
    failures: u32,
    /// When rejected requests are sent again, by the type of the condition that reports the rejection.
    rejected_until: BTreeMap<&'static str, Instant>,
    /// When a rejection was written into the status.
    rejection_reported: Option<Instant>,
    /// When the pod was created, until the VM runs.
    pod_created: Option<Timestamp>,
    /// UID of the pod that this operator has deleted last.
    deleted_pod: Option<String>,
}

/// The states of all VMs, by name.
pub struct VmStates {
    states: Mutex<HashMap<String, VmState>>,
    first_delay: Duration,
    jitter: fn() -> f64,
}

impl VmStates {
    /// No state yet. `jitter` returns numbers from 0 to 1; `first_delay` is the delay after the first failure, without jitter.
    #[must_use]
    pub fn new(first_delay: Duration, jitter: fn() -> f64) -> Self {
        Self {
            states: Mutex::default(),
            first_delay,
            jitter,
        }
    }

    fn states(&self) -> MutexGuard<'_, HashMap<String, VmState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, vm: &str, change: impl FnOnce(&mut VmState) -> T) -> T {
        change(self.states().entry(vm.to_owned()).or_default())
    }

    /// Counts a failed reconcile. Returns the delay before the next one: 1 s, 2 s, 4 s … 5 min, less up to a fifth.
    pub fn failed(&self, vm: &str) -> Duration {
        let failures = self.change(vm, |state| {
            state.failures = state.failures.saturating_add(1);
            state.failures
        });
        let delay = self
            .first_delay
            .mul_f64(pause(failures).as_secs_f64())
            .min(retry::LONGEST);
        delay.mul_f64(1.0 - BACKOFF_JITTER * (self.jitter)())
    }

    /// A reconcile has succeeded.
    pub fn succeeded(&self, vm: &str) {
        if let Some(state) = self.states().get_mut(vm) {
            state.failures = 0;
        }
    }

    /// The number of VMs whose last reconcile has failed.
    #[must_use]
    pub fn failing(&self) -> usize {
        self.states()
            .values()
            .filter(|state| state.failures > 0)
            .count()
    }

    fn next_retry(&self, now: Instant) -> Instant {
        now + REJECTION_RETRY.mul_f64(1.0 + REJECTION_RETRY_JITTER * (self.jitter)())
    }

    /// The API server has rejected a request that this condition reports.
    pub fn rejected(&self, vm: &str, condition: &'static str, now: Instant) {
        self.retry_at(vm, condition, self.next_retry(now));
    }

    /// The API server has rejected a request that this condition reports; it is sent again at that time.
    pub fn retry_at(&self, vm: &str, condition: &'static str, until: Instant) {
        self.change(vm, |state| state.rejected_until.insert(condition, until));
    }

    /// Whether it is too early to send a rejected request again. A rejection that another operator has reported is put off from now on.
    pub fn is_put_off(&self, vm: &str, condition: &'static str, now: Instant) -> bool {
        let until = self.next_retry(now);
        self.change(vm, |state| {
            *state.rejected_until.entry(condition).or_insert(until) > now
        })
    }

    /// Nothing that this condition reports is rejected any more.
    pub fn accepted(&self, vm: &str, condition: &'static str) {
        if let Some(state) = self.states().get_mut(vm) {
            state.rejected_until.remove(condition);
        }
    }

    /// The time until the rejected request is sent again.
    #[must_use]
    pub fn retry_after(&self, vm: &str, condition: &'static str, now: Instant) -> Option<Duration> {
        let states = self.states();
        states
            .get(vm)?
            .rejected_until
            .get(condition)
            .map(|until| until.saturating_duration_since(now))
    }

    /// A rejection was written into the status.
    pub fn rejection_reported(&self, vm: &str, now: Instant) {
        self.change(vm, |state| state.rejection_reported = Some(now));
    }

    /// Whether a reported rejection must keep its message for now.
    #[must_use]
    pub fn keeps_message(&self, vm: &str, now: Instant) -> bool {
        let reported = self
            .states()
            .get(vm)
            .and_then(|state| state.rejection_reported);
        reported.is_some_and(|at| now.saturating_duration_since(at) < REJECTION_MESSAGE_MIN_AGE)
    }

    /// The VM's pod was created.
    pub fn pod_created(&self, vm: &str, now: Timestamp) {
        self.change(vm, |state| state.pod_created = Some(now));
    }

    /// The VM runs. Returns when its pod was created, once and only if this operator has created it.
    pub fn started(&self, vm: &str) -> Option<Timestamp> {
        self.states().get_mut(vm)?.pod_created.take()
    }

    /// This operator deletes the pod of that UID.
    pub fn deletes_pod(&self, vm: &str, uid: &str) {
        self.change(vm, |state| state.deleted_pod = Some(uid.to_owned()));
    }

    /// Whether this operator has deleted the pod of that UID.
    #[must_use]
    pub fn has_deleted_pod(&self, vm: &str, uid: &str) -> bool {
        self.states()
            .get(vm)
            .is_some_and(|state| state.deleted_pod.as_deref() == Some(uid))
    }

    /// The VM is gone.
    pub fn forget(&self, vm: &str) {
        self.states().remove(vm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(jitter: fn() -> f64) -> VmStates {
        VmStates::new(Duration::from_secs(1), jitter)
    }

    #[test]
    fn failures_are_counted_by_vm_until_a_reconcile_succeeds() {
        let states = states(|| 0.0);
        assert_eq!(
            (states.failed("a"), states.failed("a"), states.failed("b")),
            (pause(1), pause(2), pause(1))
        );
        states.succeeded("a");
        assert_eq!(
            (states.failing(), states.failed("a"), states.failing()),
            (1, pause(1), 2)
        );
    }

    #[test]
    fn jitter_takes_up_to_a_fifth_of_a_backoff_delay() {
        for (jitter, seconds) in [
            ((|| 0.0) as fn() -> f64, [1.0, 2.0]),
            (|| 0.5, [0.9, 1.8]),
            (|| 1.0, [0.8, 1.6]),
        ] {
            let states = states(jitter);
            assert_eq!(
                seconds.map(Duration::from_secs_f64),
                [states.failed("a"), states.failed("a")]
            );
        }
    }

    #[test]
    fn a_rejected_request_is_put_off_for_five_minutes_plus_jitter() {
        for (jitter, seconds) in [((|| 0.0) as fn() -> f64, 300), (|| 0.5, 330), (|| 1.0, 360)] {
            let (states, start) = (states(jitter), Instant::now());
            let at = |seconds| start + Duration::from_secs(seconds);
            assert_eq!(states.retry_after("vm", "c", start), None);
            states.rejected("vm", "c", start);
            assert_eq!(
                states.retry_after("vm", "c", at(100)),
                Some(Duration::from_secs(seconds - 100))
            );
            let put_off = [100, seconds - 1, seconds]
                .map(|seconds| states.is_put_off("vm", "c", at(seconds)));
            assert_eq!(put_off, [true, true, false]);
            states.forget("vm");
            assert_eq!(states.retry_after("vm", "c", at(seconds)), None);
            // Reported by another operator.
            assert!(
                states.is_put_off("vm", "c", at(1000))
                    && !states.is_put_off("vm", "c", at(1000 + seconds))
            );
            states.accepted("vm", "c");
            assert_eq!(states.retry_after("vm", "c", at(1000)), None);
        }
    }
}
