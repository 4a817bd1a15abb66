//! (pure) What becomes of a VM's pod. This is the only place that decides it; one of an earlier VM is for [`crate::controllers::vm::gates::orphans`].
//!
//! A pod is made once and ends once (its restart policy is `Never`); a VM that should run and whose pod has ended
//! gets a new one. How the pod ended is written into the VM's status *before* the pod goes, so that an operator that
//! dies in between forgets nothing; the dead pod stays until its successor is due, so that its log can be read.
//!
//! | wanted | pod | decision |
//! |---|---|---|
//! | Stopped | none, or not this VM's | keep |
//! | Running | not this VM's | wait |
//! | Running | being deleted, not by this operator, and not yet in the status | remember |
//! | any | being deleted | wait |
//! | Stopped | any other | delete |
//! | Running | none | create, or wait for the end of the pause, or for the image that the guest boots from |
//! | Running | alive | keep; delete if a restart is asked for, or if it has not run yet and would be made differently now |
//! | Running | ended by the guest, and `guestShutdownStops` | stop the VM by its spec |
//! | Running | ended, not yet in the status | remember |
//! | Running | ended, in the status | delete at the end of the pause |
//!
//! A restart that is asked for ([`restart::is_due`]) does not wait for the end of a pause.

use crate::api::conditions;
use crate::api::vm::{POD_DELETED, Restarts, State, names};
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::pod::restart;
use crate::controllers::vm::views::PodView;
use crate::controllers::vm::views::exit::{self, End, RAN_WELL};
use crate::k8s::controller::Outcome;
use crate::k8s::retry;
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
                Outcome::Recheck(
                    Duration::try_from(left)
                        .unwrap_or_default()
                        .max(Duration::from_millis(1)),
                )
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

    /// The same, but a pod that has not run yet is deleted if its template has changed: the cause that kept it from starting may be
    /// corrected, and nothing is lost. `template_hash` returns the hash of the present template
    /// ([`names::ANNOTATION_TEMPLATE_HASH`]) and is called only for such a pod.
    #[must_use]
    pub fn unless_outdated(
        self,
        observed: &Observed,
        template_hash: impl FnOnce() -> Option<String>,
    ) -> Self {
        if !matches!(self, Self::Keep | Self::Remember(_)) {
            return self;
        }
        let Some(pod) = observed
            .own_pod()
            .filter(|pod| !observed.has_begun() && !pod.has_ended())
        else {
            return self;
        };
        let before = pod.annotations().get(names::ANNOTATION_TEMPLATE_HASH);
        match (before, pod.uid(), &self) {
            (Some(before), ..) if template_hash().is_none_or(|now| now == *before) => self,
            (Some(_), Some(uid), Self::Keep) => Self::Delete {
                uid,
                why: DeleteReason::Outdated,
            },
            // An earlier operator has probably deleted it.
            (Some(_), _, Self::Remember(_)) => Self::Wait(WaitFor::PodEnd),
            _ => self,
        }
    }
}

/// Decides. `valid` says whether the VM's spec can be used.
#[must_use]
pub fn decide(observed: &Observed, valid: bool) -> Decision {
    let vm = &observed.vm;
    let wanted = vm.spec.vm.state;
    let past = vm
        .status
        .as_ref()
        .and_then(|status| status.restarts.as_ref());
    let restart = valid && restart::is_due(observed);
    let past_pause = past
        .map(|past| due(past, observed.now))
        .filter(|_| !restart);
    let Some(any_pod) = &observed.pod else {
        return match (wanted, past_pause) {
            (State::Stopped, ..) => Decision::Keep,
            (State::Running, ..) if !valid => Decision::Wait(WaitFor::ValidSpec),
            (State::Running, Some(until)) if until > observed.now => {
                Decision::Wait(WaitFor::Pause { until })
            }
            (State::Running, ..) => Decision::Create,
        };
    };
    let Some(pod) = observed.own_pod() else {
        return match wanted {
            State::Stopped => Decision::Keep,
            State::Running => Decision::Wait(WaitFor::OtherPod),
        };
    };
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let remembered = past.filter(|past| past.pod_uid == uid);
    if any_pod.metadata.deletion_timestamp.is_some() {
        let by_others = wanted == State::Running
            && !observed.deleted_by_operator
            && !restart
            && remembered.is_none();
        return if by_others {
            deleted_by_others(observed, pod, uid)
        } else {
            Decision::Wait(WaitFor::PodEnd)
        };
    }
    match wanted {
        State::Stopped => Decision::Delete {
            uid,
            why: DeleteReason::Stop,
        },
        State::Running if !pod.has_ended() && restart => Decision::Delete {
            uid,
            why: DeleteReason::Restart,
        },
        State::Running if !pod.has_ended() => Decision::Keep,
        State::Running => after_end(observed, pod, remembered, uid, restart),
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
            Decision::Delete {
                uid,
                why: DeleteReason::Ended,
            }
        };
    }
    if end.by_guest && observed.vm.spec.guest_shutdown_stops {
        return Decision::StopBySpec;
    }
    let attempts = attempts(observed, end.ran_well);
    // A node whose clock is ahead must not delay the next start.
    let time = Time(end.at.unwrap_or(observed.now).min(observed.now));
    Decision::Remember(Restarts {
        attempts,
        pod_uid: uid,
        reason: end.reason,
        message: end.message,
        time,
    })
}

/// A deletion that this operator has not requested, such as a drain, counts as an end: pods that are deleted again and again are
/// created later and later. A pod that is deleted at once, without time to end, is not counted.
fn deleted_by_others(observed: &Observed, pod: &PodView, uid: String) -> Decision {
    let running = conditions::find(observed.conditions(), conditions::RUNNING)
        .filter(|_| observed.is_running());
    let ran_well = running
        .is_some_and(|since| observed.now.duration_since(since.last_transition_time.0) >= RAN_WELL);
    let by = exit::by_others(pod).map(|(reason, message)| format!("{reason}: {message}"));
    Decision::Remember(Restarts {
        attempts: attempts(observed, ran_well),
        pod_uid: uid,
        reason: POD_DELETED.to_owned(),
        message: by.unwrap_or_default(),
        time: Time(observed.now),
    })
}

/// The number of ends in a row, with one that happens now.
fn attempts(observed: &Observed, ran_well: bool) -> u32 {
    let before = observed
        .vm
        .status
        .as_ref()
        .and_then(|status| status.restarts.as_ref())
        .filter(|_| !ran_well);
    before.map_or(1, |before| before.attempts.saturating_add(1))
}

/// The pause between such an end and the next start.
#[must_use]
pub fn pause(past: &Restarts) -> Duration {
    retry::pause(past.attempts)
}

/// When the next start is due. An end that lies in the future was noted by a clock that was ahead and has been set
/// right since: nobody waits until then.
fn due(past: &Restarts, now: Timestamp) -> Timestamp {
    if past.time.0 > now {
        now
    } else {
        pause_ends(past)
    }
}

/// When the pause ends.
#[must_use]
pub fn pause_ends(past: &Restarts) -> Timestamp {
    let pause = SignedDuration::try_from(pause(past)).unwrap_or(SignedDuration::ZERO);
    past.time.0.checked_add(pause).unwrap_or(past.time.0)
}

#[cfg(test)]
mod tests;
