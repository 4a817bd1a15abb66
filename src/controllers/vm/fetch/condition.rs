//! (pure) The condition `MediaFetched`: all images that the VM names by URL, in one condition.

use crate::api::conditions::{self, ConditionReason, Wanted};
use crate::api::quantity::Bytes;
use crate::api::runner::fetch::{Progress, shown};
use crate::controllers::vm::fetch::{Fetch, State};

/// The progress is told in steps of so many percent, as each is a write.
const STEP: u64 = 5;

/// The condition, if the VM names an image by URL and somebody waits for it.
#[must_use]
pub fn condition(fetches: &[Fetch]) -> Option<Wanted> {
    if fetches.is_empty() || fetches.iter().any(|fetch| fetch.state == State::NotWanted) {
        return None;
    }
    let missing: Vec<&Fetch> = fetches
        .iter()
        .filter(|fetch| fetch.state != State::Fetched)
        .collect();
    let told = if missing.is_empty() {
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
    let message = told
        .iter()
        .map(|fetch| format!("{}: {}", fetch.remote.field(), words(fetch)));
    let message = message.collect::<Vec<_>>().join("; ");
    Some(Wanted {
        type_: conditions::MEDIA_FETCHED,
        status: missing.is_empty(),
        reason,
        message,
    })
}

fn words(fetch: &Fetch) -> String {
    let url = shown(&fetch.remote.url);
    match &fetch.state {
        State::Fetched | State::NotWanted => format!("{url} is in the image repository"),
        State::Fetching(None) => format!("{url} is going to be fetched"),
        State::Fetching(Some(progress)) => far(*progress, &url),
        State::Failed(diagnosis) => format!("{url}: {diagnosis}"),
    }
}

fn far(Progress { bytes, total }: Progress, url: &str) -> String {
    match total.filter(|total| *total > 0) {
        Some(total) => {
            let percent = u128::from(bytes.min(total)) * 100 / u128::from(total);
            let percent = percent as u64 / STEP * STEP;
            format!("{percent} % of {} of {url}", rounded(total))
        }
        // Of a size that nobody knows: told when it has doubled.
        None => format!(
            "{} so far of {url}",
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
