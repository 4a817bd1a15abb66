//! (pure) What is in a VM's way, in the words of somebody who has to mend it.
//!
//! | module | what |
//! |---|---|
//! | [`starting`] | a pod that does not start |
//! | [`scheduling`] | a pod that no node takes |
//! | [`ending`] | a pod that does not end, or whose node does not answer |
//! | [`reasons`] | the closed list of reasons, each with its next step |

pub mod ending;
pub mod reasons;
pub mod scheduling;
pub mod starting;

use super::observe::Observed;
use super::plan::Invalid;
use crate::api::conditions::ReadyReason;
use crate::api::virtual_machine::State;
use crate::operator::error::Error;
use crate::operator::views::PodView;
use crate::operator::warnings::Warning;
use crate::operator::whose::Whose;
use starting::Finding;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Something in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What kind of thing.
    pub reason: ReadyReason,
    /// What is wrong, where, and what to do.
    pub message: String,
}

impl From<&Invalid> for Problem {
    fn from(invalid: &Invalid) -> Self {
        let Invalid { field, why, next_step } = invalid;
        Self { reason: ReadyReason::InvalidSpec, message: format!("{field}: {why}; {next_step}") }
    }
}

impl Problem {
    /// The API server's refusal of an object.
    #[must_use]
    pub fn rejected(error: &Error) -> Self {
        if let Error::Foreign { kind, name, whose } = error {
            let message = format!("{error}; {}", whose.next_step(kind, name, ""));
            return Self { reason: ReadyReason::NameTaken, message };
        }
        let what = error.to_string();
        if matches!(error, Error::OfEarlier { .. }) {
            return Self { reason: ReadyReason::Starting, message: what };
        }
        if what.contains("violates PodSecurity") {
            let message = format!("{what}; {}", reasons::POD_SECURITY);
            return Self { reason: ReadyReason::PolicyRefused, message };
        }
        let says = |words: &[&str]| words.iter().any(|words| what.contains(words));
        let reason = if says(&["exceeded quota"]) {
            ReadyReason::QuotaExceeded
        } else if says(&["denied the request", "denied request", "must specify", "LimitRange"]) {
            ReadyReason::PolicyRefused
        } else if error.code() == Some(403)
            && says(&[
                "cannot create resource",
                "cannot patch resource",
                "cannot get resource",
                "cannot delete resource",
            ])
        {
            ReadyReason::NotAuthorized
        } else {
            ReadyReason::Rejected
        };
        Self::new(reason, &what, "")
    }
}

/// What is in the way of a VM.
#[must_use]
pub fn explain(observed: &Observed) -> Option<Problem> {
    match finding(observed)? {
        Finding::Now(problem) | Finding::Waiting(problem, _) => Some(problem),
        Finding::After(_) => None,
    }
}

/// When to look again, if something may become a problem by lasting.
#[must_use]
pub fn recheck(observed: &Observed) -> Option<Duration> {
    match finding(observed)? {
        Finding::Now(_) => None,
        Finding::Waiting(_, left) | Finding::After(left) => Some(left),
    }
}

/// What is in the way of a pod that fetches an image and has not begun; and when to look again.
#[must_use]
pub fn of_fetch(
    observed: &Observed,
    pod: &PodView,
    warning: Option<Arc<Warning>>,
) -> (Option<Problem>, Option<Duration>) {
    // Of claims, it has the image repository's only.
    let seen = Observed { claims: BTreeMap::new(), pod_warning: warning, ..observed.clone() };
    match starting::explain(&seen, pod) {
        Some(Finding::Now(problem)) => (Some(problem), None),
        Some(Finding::Waiting(_, left) | Finding::After(left)) => (None, Some(left)),
        None => (None, None),
    }
}

fn finding(observed: &Observed) -> Option<Finding> {
    let any_pod = observed.pod.as_ref()?;
    let is_ending = any_pod.metadata.deletion_timestamp.is_some();
    let wanted = observed.vm.spec.vm.state == State::Running;
    match observed.own_pod() {
        None if wanted && observed.earlier_pod().is_some() => ending::explain(observed, any_pod),
        None if is_ending || !wanted => None,
        None => Some(Finding::Now(taken(any_pod))),
        Some(pod) => ending::explain(observed, pod).or_else(|| {
            let starts = || starting::explain(observed, pod).or_else(|| starting::runner_says_nothing(observed, pod));
            starts().filter(|_| wanted && !is_ending)
        }),
    }
}

fn taken(pod: &PodView) -> Problem {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let next = Whose::of(pod, name).next_step("pod", name, "");
    let message = format!("a pod named {name:?} is there and does not belong to this VM; {next}");
    Problem { reason: ReadyReason::NameTaken, message }
}

#[cfg(test)]
mod tests;
