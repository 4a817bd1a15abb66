//! (pure) The condition `MediaFetched`: all images that the VM names by URL, in one condition.

use crate::api::quantity::Bytes;
use crate::api::runner::fetch::{FetchReason, Progress, shown};
use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition};
use crate::controllers::vm::fetch::{Fetch, State};

/// Step of the reported progress in percent. Each step is a write.
const STEP_PERCENT: u64 = 5;

/// The condition, if the VM names images by URL and needs them.
#[must_use]
pub fn condition(fetches: &[Fetch]) -> Option<DesiredCondition> {
    if fetches.is_empty() || fetches.iter().any(|fetch| fetch.state == State::NotWanted) {
        return None;
    }
    let missing: Vec<&Fetch> = fetches
        .iter()
        .filter(|fetch| fetch.state != State::Fetched)
        .collect();
    let reported = if missing.is_empty() {
        fetches.iter().collect()
    } else {
        missing.clone()
    };
    let failed = missing.iter().find_map(|fetch| match &fetch.state {
        State::Failed(diagnosis) => Some(diagnosis.reason),
        _ => None,
    });
    let reason = match failed {
        Some(reason) => reason,
        None if missing.is_empty() => ConditionReason::Fetched,
        None => ConditionReason::Fetching,
    };
    let message = reported
        .iter()
        .map(|fetch| format!("{}: {}", fetch.remote.field(), message_of(fetch)));
    let message = message.collect::<Vec<_>>().join("; ");
    Some(DesiredCondition {
        type_: conditions::MEDIA_FETCHED,
        status: missing.is_empty(),
        reason,
        message,
    })
}

fn message_of(fetch: &Fetch) -> String {
    let url = shown(&fetch.remote.url);
    match &fetch.state {
        State::Fetched | State::NotWanted => {
            format!("the CD image of {url} is in the image repository")
        }
        State::Fetching(None) => format!("the download of {url} is pending"),
        State::Fetching(Some(progress)) => progress_message(*progress, &url),
        State::Failed(diagnosis) => format!("cannot download {url}: {diagnosis}"),
    }
}

fn progress_message(Progress { bytes, total, .. }: Progress, url: &str) -> String {
    match total.filter(|total| *total > 0) {
        Some(total) => {
            let percent = u128::from(bytes.min(total)) * 100 / u128::from(total);
            let percent = percent as u64 / STEP_PERCENT * STEP_PERCENT;
            format!(
                "{percent} % of {url} is downloaded (total size: {})",
                rounded(total)
            )
        }
        // Without a total size, the progress is reported each time that it has doubled.
        None => format!(
            "at least {} of {url} is downloaded; the server does not report the total size",
            Bytes(bytes.checked_ilog2().map_or(0, |log| 1 << log))
        ),
    }
}

fn rounded(size: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, shift)| size >> shift > 0);
    let Some((unit, shift)) = unit else {
        return format!("{size} bytes");
    };
    let tenths = (u128::from(size) * 10) >> shift;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// The condition's reason for the outcome of a download.
pub(super) fn condition_reason(reason: FetchReason) -> ConditionReason {
    match reason {
        FetchReason::Fetched | FetchReason::AlreadyThere => ConditionReason::Fetched,
        FetchReason::SchemeNotAllowed => ConditionReason::SchemeNotAllowed,
        FetchReason::InvalidUrl => ConditionReason::InvalidUrl,
        FetchReason::ServerUnreachable => ConditionReason::ServerUnreachable,
        FetchReason::ServerRefused => ConditionReason::ServerRefused,
        FetchReason::ServerFailed => ConditionReason::ServerFailed,
        FetchReason::TooLarge => ConditionReason::TooLarge,
        FetchReason::ChecksumMismatch => ConditionReason::ChecksumMismatch,
        FetchReason::RepositoryNotWritable => ConditionReason::RepositoryNotWritable,
        FetchReason::RepositoryFull => ConditionReason::RepositoryFull,
        FetchReason::DeadlineExceeded => ConditionReason::DeadlineExceeded,
        FetchReason::Interrupted => ConditionReason::Interrupted,
        // All but the first are reasons of imports onto disks only.
        FetchReason::Unknown
        | FetchReason::FormatNotSupported
        | FetchReason::ImageRefused
        | FetchReason::AddressRefused
        | FetchReason::DiskNotEmpty
        | FetchReason::DataMissing
        | FetchReason::DiskInUse
        | FetchReason::SourceInUse
        | FetchReason::SourceMissing
        | FetchReason::DiskNotCloned => ConditionReason::FetchPodFailed,
    }
}
