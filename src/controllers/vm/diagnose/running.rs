//! (pure) Reasons why the guest of a running VM does not work, from the conditions that its runner reports. A resize of the pod for which
//! the node has no room is among them.

use crate::api::conditions::{find, is_true};
use crate::api::vm::conditions::{self, CD_DRIVE_PREFIX, ConditionReason, ReadyReason as Reason};
use crate::api::vm::diagnosis::Diagnosis;
use crate::controllers::vm::images::{boot_image, is_remote};
use crate::controllers::vm::observe::{Observed, since};
use crate::k8s::views::{PodConditionType, PodView};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// The blocking condition of a VM that runs.
pub(super) fn explain(observed: &Observed, pod: &PodView) -> Option<Diagnosis> {
    if pod.has_ended() || !observed.is_running() {
        return None;
    }
    qemu_is_silent(observed, pod)
        .or_else(|| paused_by_disk(observed, pod))
        .or_else(|| boot_image_is_missing(observed))
        .or_else(|| resize_is_pending(observed, pod))
}

/// Time after the start of QEMU within which the runner reports the images of the start. A later report is about a changed image.
const MEDIA_REPORT_TIMEOUT: Duration = Duration::from_secs(60);

/// The first boot device is a CD drive that has been without its image since the start, and the guest has not booted.
fn boot_image_is_missing(observed: &Observed) -> Option<Diagnosis> {
    let (vm, all) = (&observed.vm, observed.conditions());
    let agents = [conditions::BOOTED, conditions::VMOP_AGENT_CONNECTED];
    let boots = vm.status.as_ref().and_then(|status| status.boots);
    // A guest that reboots has booted from another device before.
    if boots > Some(0) || agents.iter().any(|type_| is_true(all, type_)) {
        return None;
    }
    let (drive, image) = boot_image(vm)?;
    let started = find(all, conditions::RUNNING)?.last_transition_time.0;
    let unmet = |type_: &str| {
        let condition = find(all, type_).filter(|it| it.status == "False")?;
        let delay = since(started, condition.last_transition_time.0);
        (delay <= MEDIA_REPORT_TIMEOUT).then_some(condition)
    };
    let of_drive = format!("{CD_DRIVE_PREFIX}{drive}:");
    let in_repository =
        unmet(conditions::MEDIA_READY).filter(|it| it.message.starts_with(&of_drive));
    let is_empty = || {
        let files = &observed.config_map.as_ref()?.config.media;
        Some(files.get(drive).is_none_or(String::is_empty))
    };
    let by_url = || unmet(conditions::MEDIA_FETCHED).filter(|_| is_empty() == Some(true));
    let cause = match is_remote(image) {
        true => in_repository.or_else(by_url),
        false => in_repository,
    };
    let problem = format!(
        "the guest has not booted, because its CD image is missing ({})",
        cause?.message
    );
    Some(Diagnosis::documented(
        Reason::BootImageMissing,
        &problem,
        "",
    ))
}

/// Time after which a pending resize of the pod is reported. The kubelet usually decides within seconds.
const RESIZE_TIMEOUT: Duration = Duration::from_secs(60);

/// The node does not have the CPUs or the memory for the resize of the pod.
fn resize_is_pending(observed: &Observed, pod: &PodView) -> Option<Diagnosis> {
    let pending = pod.condition(PodConditionType::PodResizePending)?;
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
    let pending = pod.condition(PodConditionType::PodResizePending)?;
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

/// QEMU has paused the guest because of a disk. A full disk always pauses it.
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
