//! (pure) What becomes of a VM's pod. This is the only place that decides it; one of an earlier VM is for [`super::leftovers`].
//!
//! A pod is made once and ends once (its restart policy is `Never`); a VM that should run and whose pod has ended
//! gets a new one. How the pod ended is written into the VM's status *before* the pod goes, so that an operator that
//! dies in between forgets nothing; the dead pod stays until its successor is due, so that its log can be read.
//!
//! | wanted | pod | decision |
//! |---|---|---|
//! | Stopped | none, or not this VM's | keep |
//! | Running | not this VM's | wait |
//! | any | being deleted | wait |
//! | Stopped | any other | delete |
//! | Running | none, as others delete it again and again | remember |
//! | Running | none | create, or wait for the end of the pause, or for the image that the guest boots from |
//! | Running | alive | keep; delete if a restart is asked for, or if it has not run yet and would be made differently now |
//! | Running | ended by the guest, and `guestShutdownStops` | stop the VM by its spec |
//! | Running | ended, not yet in the status | remember |
//! | Running | ended, in the status | delete at the end of the pause |
//!
//! A restart that is asked for ([`restart::is_due`]) does not wait for the end of a pause.

use super::end::End;
use super::observe::Observed;
use super::{loss, restart};
use crate::api::names;
use crate::api::virtual_machine::{POD_DELETED, Restarts, State};
use crate::operator::backoff;
use crate::operator::controller::Outcome;
use crate::operator::views::PodView;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use std::time::Duration;

/// What becomes of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is as it should be: there, or not there.
    Keep,
    /// It has to be made.
    Create,
    /// It has to go; the UID is that of the pod that was looked at.
    Delete {
        /// UID of the pod.
        uid: String,
        /// Why.
        why: DeleteReason,
    },
    /// It has ended, or is gone; how has to be written into the VM's status.
    Remember(Restarts),
    /// It has ended by the guest's will, which stops the VM.
    StopBySpec,
    /// Nothing can be done now.
    Wait(WaitFor),
}

/// Why a pod goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteReason {
    /// The VM should not run.
    Stop,
    /// It has ended and a new one is due.
    Ended,
    /// A restart is asked for.
    Restart,
    /// It has not run yet, and what it is made of has changed.
    Outdated,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// The pod is on its way out.
    PodEnd,
    /// A pod that is not this VM's has the name.
    OtherPod,
    /// The pause before the next start.
    Pause {
        /// Its end.
        until: Timestamp,
    },
    /// A spec that can be used.
    ValidSpec,
    /// The image that the guest boots from.
    Medium {
        /// When the VM starts without it.
        until: Timestamp,
    },
}

impl Decision {
    /// What it means for the next look at the VM.
    #[must_use]
    pub fn outcome(&self, now: Timestamp) -> Outcome {
        match self {
            Self::Wait(WaitFor::Pause { until } | WaitFor::Medium { until }) => {
                let left = until.duration_since(now);
                Outcome::Recheck(Duration::try_from(left).unwrap_or_default().max(Duration::from_millis(1)))
            }
            // The status that was just written starts the next reconcile; this is the safety net.
            Self::Remember(_) | Self::StopBySpec => Outcome::Recheck(Duration::from_secs(1)),
            _ => Outcome::Done,
        }
    }
}

impl Decision {
    /// The same; a start waits until then for the image that the guest boots from, if there is such a time.
    #[must_use]
    pub fn once_there(self, medium: Option<Timestamp>) -> Self {
        match (self, medium) {
            (Self::Create, Some(until)) => Self::Wait(WaitFor::Medium { until }),
            (decision, _) => decision,
        }
    }

    /// The same; a pod that has not run yet goes if it would be made differently now: what kept it from starting may be
    /// mended, and nothing is lost. `made_of` tells what it would be made of ([`names::ANNOTATION_MADE_OF`]), and is asked
    /// only of such a pod.
    #[must_use]
    pub fn unless_outdated(self, observed: &Observed, made_of: impl FnOnce() -> Option<String>) -> Self {
        let (Self::Keep, Some(pod)) = (&self, observed.own_pod().filter(|_| !observed.has_begun())) else {
            return self;
        };
        let before = pod.annotations().get(names::ANNOTATION_MADE_OF);
        match (before, pod.uid()) {
            (Some(before), Some(uid)) if made_of().is_some_and(|now| now != *before) => {
                Self::Delete { uid, why: DeleteReason::Outdated }
            }
            _ => self,
        }
    }
}

/// Decides. `valid` says whether the VM's spec can be used.
#[must_use]
pub fn decide(observed: &Observed, valid: bool) -> Decision {
    let vm = &observed.vm;
    let wanted = vm.spec.vm.state;
    let past = vm.status.as_ref().and_then(|status| status.restarts.as_ref());
    let restart = valid && restart::is_due(observed);
    let past_pause = past.map(|past| due(past, observed.now)).filter(|_| !restart);
    let lost = loss::to_remember(observed).filter(|_| !restart);
    let Some(any_pod) = &observed.pod else {
        return match (wanted, lost, past_pause) {
            (State::Stopped, ..) => Decision::Keep,
            (State::Running, ..) if !valid => Decision::Wait(WaitFor::ValidSpec),
            (State::Running, Some(lost), _) => Decision::Remember(lost),
            (State::Running, _, Some(until)) if until > observed.now => Decision::Wait(WaitFor::Pause { until }),
            (State::Running, ..) => Decision::Create,
        };
    };
    let Some(pod) = observed.own_pod() else {
        return match wanted {
            State::Stopped => Decision::Keep,
            State::Running => Decision::Wait(WaitFor::OtherPod),
        };
    };
    if any_pod.metadata.deletion_timestamp.is_some() {
        return Decision::Wait(WaitFor::PodEnd);
    }
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    match wanted {
        State::Stopped => Decision::Delete { uid, why: DeleteReason::Stop },
        State::Running if !pod.has_ended() && restart => Decision::Delete { uid, why: DeleteReason::Restart },
        State::Running if !pod.has_ended() => Decision::Keep,
        State::Running => {
            // One that was taken for deleted, as an old list did not have it, has ended all the same.
            let remembered = past.filter(|past| past.pod_uid == uid && past.reason != POD_DELETED);
            after_end(observed, pod, remembered, uid.clone(), restart)
        }
    }
}

fn after_end(
    observed: &Observed,
    pod: &PodView,
    remembered: Option<&Restarts>,
    uid: String,
    restart: bool,
) -> Decision {
    let end = End::of(pod);
    if let Some(past) = remembered {
        let until = due(past, observed.now);
        return if until > observed.now && !restart {
            Decision::Wait(WaitFor::Pause { until })
        } else {
            Decision::Delete { uid, why: DeleteReason::Ended }
        };
    }
    if end.by_guest && observed.vm.spec.guest_shutdown_stops {
        return Decision::StopBySpec;
    }
    let before = observed.vm.status.as_ref().and_then(|status| status.restarts.as_ref());
    let attempts = match before {
        Some(before) if !end.ran_well && before.reason != POD_DELETED => before.attempts.saturating_add(1),
        _ => 1,
    };
    // A node whose clock is ahead must not delay the next start.
    let time = Time(end.at.unwrap_or(observed.now).min(observed.now));
    Decision::Remember(Restarts { attempts, pod_uid: uid, reason: end.reason, message: end.message, time })
}

/// The pause between such an end and the next start.
#[must_use]
pub fn pause(past: &Restarts) -> Duration {
    match past.reason.as_str() {
        POD_DELETED => backoff::pause_after_deletions(past.attempts),
        _ => backoff::pause(past.attempts),
    }
}

/// When the next start is due. An end that lies in the future was noted by a clock that was ahead and has been set
/// right since: nobody waits until then.
fn due(past: &Restarts, now: Timestamp) -> Timestamp {
    if past.time.0 > now { now } else { pause_ends(past) }
}

/// When the pause ends.
#[must_use]
pub fn pause_ends(past: &Restarts) -> Timestamp {
    let pause = SignedDuration::try_from(pause(past)).unwrap_or(SignedDuration::ZERO);
    past.time.0.checked_add(pause).unwrap_or(past.time.0)
}

#[cfg(test)]
mod tests;
