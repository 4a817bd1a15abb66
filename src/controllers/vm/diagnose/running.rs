//! (pure) Reasons why the guest of a running VM does not work, from the conditions that its runner reports.

use crate::api::conditions::find;
use crate::api::vm::conditions::{self, ConditionReason, ReadyReason as Reason};
use crate::api::vm::diagnosis::Diagnosis;
use crate::controllers::vm::observe::Observed;
use crate::k8s::views::PodView;

/// The blocking condition of a VM that runs.
pub(super) fn explain(observed: &Observed, pod: &PodView) -> Option<Diagnosis> {
    if pod.has_ended() || !observed.is_running() {
        return None;
    }
    qemu_is_silent(observed, pod).or_else(|| paused_by_disk(observed, pod))
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
