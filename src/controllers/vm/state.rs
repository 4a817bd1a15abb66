//! The remembered state of each VM. It is lost with the process. Retry delays and one metric depend on it. So does whether the operator
//! has deleted a pod, and whether it saw the deletion of a PVC of a stopped VM.

use crate::controllers::vm::volumes::DeletionEvidence;
use crate::k8s::key::ObjectKey;
use crate::k8s::state::States;
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Minimum delay before a rejected request is sent again. No watch reports a changed quota, role or policy.
const REJECTION_RETRY_DELAY: Duration = Duration::from_secs(300);
/// Jitter, as a fraction of the delay, so that many VMs do not retry at once.
const REJECTION_RETRY_JITTER: f64 = 0.2;
/// The delay in the words of messages.
pub const REJECTION_RETRY_TEXT: &str = "every 5 to 6 minutes";
/// Minimum time between two messages of a rejection. A webhook's message may differ each time, and each write of the status starts another
/// reconcile.
const REJECTION_MESSAGE_MIN_AGE: Duration = Duration::from_secs(60);

/// Minimum time between two events about resets of a guest.
const RESET_EVENT_SPACING: Duration = Duration::from_secs(60);

/// The state of one VM.
#[derive(Default)]
pub struct VmState {
    /// The times of retries of rejected requests, by the type of the condition that reports the rejection.
    rejected_until: BTreeMap<&'static str, Instant>,
    /// Consecutive rejected creations of the image repository.
    repository_rejections: u32,
    /// The time of the last write of a rejection into the status.
    rejection_reported: Option<Instant>,
    /// The time of the pod's creation, until the VM runs.
    pod_created: Option<Timestamp>,
    /// UID of the last pod that this operator has deleted.
    deleted_pod: Option<String>,
    /// Whether the VM had a pod since the start of this operator.
    had_pod: bool,
    /// Observations of recorded PVCs, by UID.
    deletion_evidence: Vec<(String, DeletionEvidence)>,
    /// Consecutive internal errors of the API server.
    internal_errors: u32,
    /// The time of the last event about a reset of the guest.
    reset_reported: Option<Instant>,
    /// The time of the last copy of a report into the VM's status.
    report_copied: Option<Instant>,
}

/// The states of all VMs. The image repository of a namespace also has one, under the key of its PVC.
pub type VmStates = States<VmState>;

impl VmStates {
    fn next_retry(&self, now: Instant) -> Instant {
        now + REJECTION_RETRY_DELAY.mul_f64(1.0 + REJECTION_RETRY_JITTER * self.jitter())
    }

    /// Records that the API server has rejected a request. The condition reports it.
    pub fn rejected(&self, vm: &ObjectKey, condition: &'static str, now: Instant) {
        self.retry_at(vm, condition, self.next_retry(now));
    }

    fn retry_at(&self, vm: &ObjectKey, condition: &'static str, until: Instant) {
        self.change(vm, |state| state.rejected_until.insert(condition, until));
    }

    /// Records that the API server has rejected the image repository. It is retried with backoff. No VM waits for it, so it is not counted as
    /// a failed reconcile.
    pub fn repository_rejected(&self, claim: &ObjectKey, condition: &'static str, now: Instant) {
        let rejections = self.change(claim, |state| {
            state.repository_rejections = state.repository_rejections.saturating_add(1);
            state.repository_rejections
        });
        self.retry_at(claim, condition, now + self.backoff(rejections));
    }

    /// Whether it is too early to send a rejected request again. The delay of a rejection that a previous operator has reported starts now.
    pub fn is_retry_delayed(&self, vm: &ObjectKey, condition: &'static str, now: Instant) -> bool {
        let until = self.next_retry(now);
        self.change(vm, |state| {
            *state.rejected_until.entry(condition).or_insert(until) > now
        })
    }

    /// Records that no request that this condition reports is rejected any more.
    pub fn accepted(&self, vm: &ObjectKey, condition: &'static str) {
        self.with(vm, |state| {
            state.rejected_until.remove(condition);
            state.repository_rejections = 0;
        });
    }

    /// The time until the rejected request is sent again.
    #[must_use]
    pub fn retry_after(
        &self,
        vm: &ObjectKey,
        condition: &'static str,
        now: Instant,
    ) -> Option<Duration> {
        let until = self.with(vm, |state| state.rejected_until.get(condition).copied())?;
        until.map(|until| until.saturating_duration_since(now))
    }

    /// Records that a rejection was written into the status.
    pub fn rejection_reported(&self, vm: &ObjectKey, now: Instant) {
        self.change(vm, |state| state.rejection_reported = Some(now));
    }

    /// Whether a reported rejection must keep its message for now.
    #[must_use]
    pub fn keeps_message(&self, vm: &ObjectKey, now: Instant) -> bool {
        let reported = self.with(vm, |state| state.rejection_reported).flatten();
        reported.is_some_and(|at| now.saturating_duration_since(at) < REJECTION_MESSAGE_MIN_AGE)
    }

    /// Counts internal errors of the API server in a row. Returns their number.
    pub fn count_internal_errors(&self, vm: &ObjectKey, is_internal_error: bool) -> u32 {
        if !is_internal_error {
            self.with(vm, |state| state.internal_errors = 0);
            return 0;
        }
        self.change(vm, |state| {
            state.internal_errors = state.internal_errors.saturating_add(1);
            state.internal_errors
        })
    }

    /// Whether a reset of the guest causes an event. A guest in a loop of resets causes few.
    pub fn reports_reset(&self, vm: &ObjectKey, now: Instant) -> bool {
        self.change(vm, |state| {
            let is_due = |at| now.saturating_duration_since(at) >= RESET_EVENT_SPACING;
            let is_reported = state.reset_reported.is_none_or(is_due);
            if is_reported {
                state.reset_reported = Some(now);
            }
            is_reported
        })
    }

    /// Records that a report was copied into the VM's status.
    pub fn report_copied(&self, vm: &ObjectKey, now: Instant) {
        self.change(vm, |state| state.report_copied = Some(now));
    }

    /// The time until a report may be copied, with that time between two copies.
    #[must_use]
    pub fn report_delay(&self, vm: &ObjectKey, spacing: Duration, now: Instant) -> Duration {
        let copied = self.with(vm, |state| state.report_copied).flatten();
        copied.map_or(Duration::ZERO, |at| {
            (at + spacing).saturating_duration_since(now)
        })
    }

    /// Records that the VM has a pod.
    pub fn pod_seen(&self, vm: &ObjectKey) {
        self.change(vm, |state| state.had_pod = true);
    }

    /// Whether the VM had a pod since the start of this operator.
    #[must_use]
    pub fn has_seen_pod(&self, vm: &ObjectKey) -> bool {
        self.with(vm, |state| state.had_pod).unwrap_or_default()
    }

    /// The observation of a recorded PVC.
    #[must_use]
    pub fn deletion_evidence(&self, vm: &ObjectKey, uid: &str) -> Option<DeletionEvidence> {
        let find = |state: &mut VmState| {
            let mut all = state.deletion_evidence.iter();
            all.find(|(of, _)| of == uid).map(|(_, evidence)| *evidence)
        };
        self.with(vm, find).flatten()
    }

    /// Replaces the observations of the VM's recorded PVCs.
    pub fn set_deletion_evidence(&self, vm: &ObjectKey, evidence: Vec<(String, DeletionEvidence)>) {
        if !evidence.is_empty() {
            self.change(vm, |state| state.deletion_evidence = evidence);
        } else {
            // A cleared list would keep its memory.
            self.with(vm, |state| state.deletion_evidence = Vec::new());
        }
    }

    /// Records the creation of the VM's pod.
    pub fn pod_created(&self, vm: &ObjectKey, now: Timestamp) {
        self.change(vm, |state| state.pod_created = Some(now));
    }

    /// Records that the VM runs. Returns the time of its pod's creation, once and only if this operator has created the pod.
    pub fn started(&self, vm: &ObjectKey) -> Option<Timestamp> {
        self.with(vm, |state| state.pod_created.take()).flatten()
    }

    /// Records that this operator deletes the pod with this UID.
    pub fn deletes_pod(&self, vm: &ObjectKey, uid: &str) {
        self.change(vm, |state| state.deleted_pod = Some(uid.to_owned()));
    }

    /// Whether this operator has deleted the pod with this UID.
    #[must_use]
    pub fn has_deleted_pod(&self, vm: &ObjectKey, uid: &str) -> bool {
        let is_deleted = |state: &mut VmState| state.deleted_pod.as_deref() == Some(uid);
        self.with(vm, is_deleted).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_request_is_put_off_for_five_minutes_plus_jitter() {
        for (jitter, seconds) in [((|| 0.0) as fn() -> f64, 300), (|| 0.5, 330), (|| 1.0, 360)] {
            let states = VmStates::new(Duration::from_secs(1), jitter);
            let (vm, start) = (ObjectKey::new("ns", "vm"), Instant::now());
            let at = |seconds| start + Duration::from_secs(seconds);
            assert_eq!(states.retry_after(&vm, "c", start), None);
            states.rejected(&vm, "c", start);
            assert_eq!(
                states.retry_after(&vm, "c", at(100)),
                Some(Duration::from_secs(seconds - 100))
            );
            let put_off = [100, seconds - 1, seconds]
                .map(|seconds| states.is_retry_delayed(&vm, "c", at(seconds)));
            assert_eq!(put_off, [true, true, false]);
            states.forget(&vm);
            assert_eq!(states.retry_after(&vm, "c", at(seconds)), None);
            // Reported by a previous operator.
            assert!(states.is_retry_delayed(&vm, "c", at(1000)));
            assert!(!states.is_retry_delayed(&vm, "c", at(1000 + seconds)));
            states.accepted(&vm, "c");
            assert_eq!(states.retry_after(&vm, "c", at(1000)), None);
        }
    }
}
