//! (pure) The import of images and copies onto disks: the disk that needs one, and the end of an import pod.
//!
//! An import pod has the VM's name and fills one disk. Several disks are filled one after the other. The status of the VM records each
//! filled PVC, and the VM's own pod is created only when it records all of them. Without a record, such as for a re-created VM, an import
//! pod looks again: the runner data tell it whether a disk is filled, so that no disk is filled twice.

use crate::api::runner::fetch::{FetchOutcome, FetchReason, Phase, Progress, UPLOAD_PORT, shown};
use crate::api::runner::outcome::{EndReason, Outcome};
use crate::api::vm::conditions::ReadyReason;
use crate::api::vm::diagnosis::Diagnosis;
use crate::api::vm::{Disk, DiskSource};
use crate::controllers::vm::claim_names;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::views::exit::{self, End};
use crate::k8s::views::PodView;
use kube::ResourceExt;
use std::sync::Arc;

/// The last step after a refusal, if neither the VM nor the configuration changes, such as for a corrected file on the server.
const RETRY: &str = "the operator tries again after a change of the VM's spec; if no other field must be changed, increase \
    spec.vm.restartRequest";

/// A disk that needs contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueImport<'a> {
    /// Position in `spec.vm.disks`.
    pub disk: usize,
    /// Name of the PVC.
    pub claim: String,
    /// The contents.
    pub source: &'a DiskSource,
}

/// The first disk that needs an image. `None` while a pod runs the VM: a later change of the source has no effect.
#[must_use]
pub fn due(observed: &Observed) -> Option<DueImport<'_>> {
    if observed
        .own_pod()
        .is_some_and(|pod| pod.import_claim().is_none())
    {
        return None;
    }
    // Most VMs have no source, and the names of disks cost more.
    let mut items = observed.vm.spec.vm.disks.iter();
    items.find_map(known_source)?;
    let disks = observed.vm.spec.vm.disks.iter().enumerate();
    let disks = disks.filter(|(_, disk)| disk.volume_claim_template.is_some());
    let named = disks.zip(claim_names::disk_names(&observed.vm));
    let mut sources = named.filter_map(|((disk, item), (name, claim))| {
        let claim = observed.claim_name(&name, claim);
        let source = known_source(item)?;
        Some(DueImport {
            disk,
            claim,
            source,
        })
    });
    sources.find(|it| recorded_import(observed, &it.claim) != Some(true))
}

/// The source, unless only a newer operator knows its kind.
fn known_source(disk: &Disk) -> Option<&DiskSource> {
    let source = disk.source.as_deref();
    source.filter(|it| it.http.is_some() || it.pvc.is_some() || it.upload.is_some())
}

/// Whether the status records an import for the present PVC of that name. `None` if it does not record the PVC.
#[must_use]
pub fn recorded_import(observed: &Observed, claim: &str) -> Option<bool> {
    let mut recorded = observed.recorded.iter();
    let recorded = recorded.find(|it| it.volume.claim_name == claim && !it.is_gone());
    recorded.map(|it| it.volume.imported)
}

/// The PVC of a complete import that the status does not record yet. A PVC that was replaced since needs another import.
#[must_use]
pub fn unrecorded(observed: &Observed, pod: &PodView) -> Option<String> {
    let claim = pod.import_claim()?;
    let is_new = recorded_import(observed, claim) == Some(false);
    is_new.then(|| claim.to_owned())
}

/// The end of an import pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportEnd {
    /// The disk has the image, or contents of this VM.
    Complete,
    /// Another attempt cannot succeed.
    Refused(FetchOutcome),
    /// Another attempt can succeed.
    Failed(End),
}

/// The end of that import pod, which has ended.
#[must_use]
pub fn end(pod: &PodView) -> ImportEnd {
    let mut end = End::of(pod);
    // A long import that fails is no healthy VM.
    end.resets_backoff = false;
    let Some(outcome) = pod.termination_message().and_then(FetchOutcome::parse) else {
        return ImportEnd::Failed(end);
    };
    let reason = outcome.reason;
    // An importer that was stopped does not know the cause.
    let stopped = exit::stopped_by_cluster(pod).filter(|_| reason == FetchReason::Interrupted);
    if reason.is_success() {
        return ImportEnd::Complete;
    }
    // Unknown: the program could not start, or its answer is that of a newer version.
    if !reason.may_retry() && reason != FetchReason::Unknown {
        return ImportEnd::Refused(outcome);
    }
    (end.reason, end.message) =
        stopped.unwrap_or((<&str>::from(reason).to_owned(), outcome.message));
    ImportEnd::Failed(end)
}

/// The blocking condition of a VM whose import cannot succeed, or whose disk is no copy of its `dataSource`.
#[must_use]
pub fn refusal(pod: &PodView) -> Option<Diagnosis> {
    if pod.import_claim().is_none() {
        let outcome = Outcome::parse(pod.termination_message()?)?;
        let refused = (outcome.reason == EndReason::DiskNotCloned).then_some(outcome.message);
        return refused.map(|problem| Diagnosis::new(ReadyReason::DiskNotCloned, problem, RETRY));
    }
    let ImportEnd::Refused(outcome) = end(pod) else {
        return None;
    };
    let reason = match outcome.reason {
        FetchReason::TooLarge => ReadyReason::ImageTooLarge,
        FetchReason::FormatNotSupported => ReadyReason::FormatNotSupported,
        FetchReason::ImageRefused => ReadyReason::ImageRefused,
        FetchReason::AddressRefused => ReadyReason::AddressRefused,
        FetchReason::ChecksumMismatch => ReadyReason::ChecksumMismatch,
        FetchReason::DiskNotEmpty => ReadyReason::DiskNotEmpty,
        FetchReason::DataMissing => ReadyReason::DataMissing,
        FetchReason::DiskNotCloned => ReadyReason::DiskNotCloned,
        _ => ReadyReason::ImportFailed,
    };
    let claim = pod.import_claim().unwrap_or_default();
    let problem = format!(
        "the operator cannot import the image onto PVC {claim:?}: {}",
        outcome.message
    );
    Some(Diagnosis::new(reason, problem, RETRY))
}

/// The state of a VM with an import in progress, or with one that is due.
#[must_use]
pub fn message(observed: &Observed) -> Option<String> {
    let due = due(observed)?;
    let claim = &due.claim;
    let action = match due.source {
        DiskSource { pvc: Some(pvc), .. } => format!("PVC {:?} is being copied", pvc.name),
        DiskSource {
            http: Some(http), ..
        } => format!("{} is being imported", shown(&http.url)),
        _ => "an uploaded image is being imported".to_owned(),
    };
    let is_complete = |pod: &&Arc<PodView>| pod.has_ended() && end(pod) == ImportEnd::Complete;
    let progress = match observed.import_progress {
        Some(progress) => shown_progress(&progress),
        None if observed.own_pod().filter(is_complete).is_some() => "complete".to_owned(),
        None => "starting".to_owned(),
    };
    // Later, the command would begin the upload anew.
    let is_awaited = |it: Progress| it.phase == Phase::Upload && it.total.is_none();
    let commands = observed.import_progress.is_some_and(is_awaited);
    let commands = commands.then(|| upload_commands(observed));
    Some(format!(
        "{action} onto PVC {claim:?}: {progress}{}",
        commands.unwrap_or_default()
    ))
}

/// What the user does for an upload that has not begun.
fn upload_commands(observed: &Observed) -> String {
    format!(
        "; run `kubectl port-forward --namespace {} pod/{} {UPLOAD_PORT}` and `curl --fail-with-body -T FILE http://127.0.0.1:{UPLOAD_PORT}/`",
        observed.vm.namespace().unwrap_or_default(),
        observed.name()
    )
}

/// Phase and share, in steps of 10 %: each step is a write of the status.
fn shown_progress(progress: &Progress) -> String {
    let phase = match progress.phase {
        Phase::Download => "download",
        Phase::Conversion => "conversion",
        Phase::Copy => "copy",
        Phase::Upload => "upload",
    };
    match progress.total {
        Some(total) if total > 0 => {
            let tenths = u128::from(progress.bytes) * 10 / u128::from(total);
            format!("{phase}, {} %", tenths.min(10) * 10)
        }
        _ if progress.phase == Phase::Upload => "waiting for the upload".to_owned(),
        _ => phase.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_shown_in_steps_of_ten_per_cent() {
        let shown = |phase, bytes, total| {
            shown_progress(&Progress {
                bytes,
                total,
                phase,
            })
        };
        assert_eq!(shown(Phase::Download, 0, None), "download");
        assert_eq!(shown(Phase::Download, 99, Some(1000)), "download, 0 %");
        assert_eq!(
            shown(Phase::Conversion, 999, Some(1000)),
            "conversion, 90 %"
        );
        assert_eq!(shown(Phase::Copy, u64::MAX, Some(u64::MAX)), "copy, 100 %");
        assert_eq!(shown(Phase::Upload, 0, None), "waiting for the upload");
        assert_eq!(shown(Phase::Upload, 1, Some(2)), "upload, 50 %");
    }
}
