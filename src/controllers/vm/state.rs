//! The remembered state of each VM. It is lost with the process. Retry delays and one metric depend on it. So does whether the operator
//! has deleted a pod, and whether it saw the deletion of a PVC of a stopped VM.

use crate::controllers::vm::volumes::DeletionEvidence;
use crate::k8s::key::ObjectKey;
use crate::k8s::rejection::{HasRejections, Rejections};
use crate::k8s::state::States;
use k8s_openapi::jiff::Timestamp;
use std::time::{Duration, Instant};

/// Minimum time between two events about resets of a guest.
const RESET_EVENT_SPACING: Duration = Duration::from_secs(60);

/// The state of one VM.
#[derive(Default)]
pub struct VmState {
    /// Rejected requests.
    rejections: Rejections,
    /// Consecutive rejected creations of the image repository.
    repository_rejections: u32,
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

impl HasRejections for VmState {
    fn rejections(&mut self) -> &mut Rejections {
        &mut self.rejections
    }
}

impl VmStates {
    /// Records that the API server has rejected the image repository. It is retried with backoff. No VM waits for it, so it is not counted as
    /// a failed reconcile.
    pub fn repository_rejected(&self, claim: &ObjectKey, condition: &'static str, now: Instant) {
        let rejections = self.change(claim, |state| {
            state.repository_rejections = state.repository_rejections.saturating_add(1);
            state.repository_rejections
        });
        self.retry_at(claim, condition, now + self.backoff(rejections));
    }

    /// Records that the API server has accepted the image repository.
    pub fn repository_accepted(&self, claim: &ObjectKey, condition: &'static str) {
        self.accepted(claim, condition);
        self.with(claim, |state| state.repository_rejections = 0);
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
