//! (pure) A VM whose start waits for an image.

use crate::api::conditions::{self, ConditionReason, ReadyReason, Wanted};
use crate::controllers::vm::decide::{Decision, WaitFor};
use crate::controllers::vm::diagnose::Problem;

/// The blocking condition of a VM whose start waits for an image that cannot be fetched, or the state of one whose image is being fetched.
#[must_use]
pub fn explain(decision: &Decision, notes: &[Wanted]) -> Option<Problem> {
    let Decision::Wait(WaitFor::Medium { until }) = decision else {
        return None;
    };
    let note = notes
        .iter()
        .find(|note| note.type_ == conditions::MEDIA_FETCHED)?;
    let reason = match note.reason {
        ConditionReason::Fetching => ReadyReason::Starting,
        _ => ReadyReason::MediaFetchFailed,
    };
    let message = format!(
        "the start waits for {}; the VM starts without it at {until}",
        note.message
    );
    Some(Problem { reason, message })
}
