//! (pure) Reasons why the guest of a running VM does not work, from the conditions that its runner reports. A resize of the pod for which
//! the node has no room is among them.

use crate::api::conditions::find;
use crate::api::vm::conditions::{self, ConditionReason, ReadyReason as Reason};
use crate::api::vm::diagnosis::Diagnosis;
use crate::controllers::vm::observe::{Observed, since};
use crate::k8s::views::{POD_RESIZE_PENDING, PodView};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// The blocking condition of a VM that runs.
pub(super) fn explain(observed: &Observed, pod: &PodView) -> Option<Diagnosis> {
    if pod.has_ended() || !observed.is_running() {
        return None;
    }
    qemu_is_silent(observed, pod)
        .or_else(|| paused_by_disk(observed, pod))
        .or_else(|| resize_is_pending(observed, pod))
}

/// Time after which a pending resize of the pod is reported. The kubelet usually decides within seconds.
const RESIZE_TIMEOUT: Duration = Duration::from_secs(60);

/// The node does not have the CPUs or the memory for the resize of the pod.
fn resize_is_pending(observed: &Observed, pod: &PodView) -> Option<Diagnosis> {
    let pending = pod.condition(POD_RESIZE_PENDING)?;
    if since(pending.last_transition_time.as_ref()?.0, observed.now) < RESIZE_TIMEOUT {
        return None;
    }
    let cause = pending
        .message
        .as_deref()
        .unwrap_or("the kubelet does not report the cause");
    let problem =
        format!("the VM runs, but its node cannot provide the requested CPUs or memory ({cause})");
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    Some(Diagnosis::documented(
        Reason::PodResizePending,
        &problem,
        name,
    ))
}

/// The time until a pending resize of the pod is reported.
pub(super) fn resize_recheck(pod: &PodView, now: Timestamp) -> Option<Duration> {
    let pending = pod.condition(POD_RESIZE_PENDING)?;
    let waited = since(pending.last_transition_time.as_ref()?.0, now);
    Some(RESIZE_TIMEOUT.saturating_sub(waited)).filter(|left| !left.is_zero())
}

/// QEMU does not answer its runner.
fn qemu_is_silent(observed: &Observed, pod: &PodView) -> Option<Diagnosis> {
    let silent = find(observed.conditions(), conditions::QEMU_RESPONSIVE)
        .filter(|it| it.reason == ConditionReason::QemuSilent.as_str())?;
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    Some(Diagnosis::documented(
        Reason::QemuSilent,
        &silent.message,
        name,
    ))
}

/// QEMU has paused the guest because of a disk. Runners of earlier versions report only full disks as such.
fn paused_by_disk(observed: &Observed, pod: &PodView) -> Option<Diagnosis> {
    let find = |type_| find(observed.conditions(), type_);
    let storage = find(conditions::STORAGE_HEALTHY).filter(|it| it.status == "False")?;
    let is_full = storage.reason == ConditionReason::DiskFull.as_str();
    let is_paused = find(conditions::CPUS_IN_SYNC)
        .is_some_and(|it| it.reason == ConditionReason::GuestPaused.as_str());
    let reason = match (is_full, is_paused) {
        (true, _) => Reason::DiskFull,
        (false, true) => Reason::DiskError,
        (false, false) => return None,
    };
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    Some(Diagnosis::documented(reason, &storage.message, name))
}
