//! (pure) A start that waits for a CD image.

use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition, ReadyReason};
use crate::api::vm::diagnosis::Diagnosis;
use crate::controllers::vm::decide::{Decision, WaitFor};

/// The reason of the wait: the download of the image is in progress, or fails.
#[must_use]
pub fn explain(decision: &Decision, notes: &[DesiredCondition]) -> Option<Diagnosis> {
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
    let problem = format!("the VM waits for a CD image: {}", note.message);
    let next_step = format!("at {until}, the VM starts without the CD image");
    Some(Diagnosis::new(reason, problem, next_step))
}
