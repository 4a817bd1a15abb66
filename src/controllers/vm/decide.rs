//! (pure) The decision about a VM's pod. No other module decides about it; [`crate::controllers::vm::gates::orphans`]
//! removes pods of previous VMs.
//!
//! A pod runs once, because its restart policy is `Never`. A VM with the desired state `Running` gets a new pod when its pod has
//! exited. The exit is written into the VM's status *before* the pod is deleted, so that it survives a restart of the operator. The
//! exited pod exists until the next start is due, so that its log can be read.
//!
//! | desired state | pod | decision |
//! |---|---|---|
//! | Stopped | none, or not this VM's | keep |
//! | Running | not this VM's | wait |
//! | Running | being deleted, not by this operator, and not in the status yet | remember |
//! | any | being deleted | wait |
//! | Stopped | any other | delete |
//! | Running | none | create, or wait for the end of the backoff, the deletion of a PVC, or the boot image |
//! | Running | running or starting | keep; delete if a restart is requested, or if it has not run yet and its template or a PVC has changed |
//! | Running | exited after a shutdown by the guest, and `guestShutdownStops` is set | stop the VM: the shutdown is recorded in its spec or status |
//! | Running | exited, not in the status yet | remember |
//! | Running | exited, in the status | delete at the end of the backoff |
//! | Running | import pod, complete | record the import, then delete |
//! | Running | import pod, its image cannot be imported; or a disk is no copy of its `dataSource` | wait for a change of the spec or of the pod's template |
//!
//! A requested restart ([`restart::is_due`]) does not wait for the end of the backoff. Neither does a VM with a changed
//! spec: the change may correct the cause of the exits.

use crate::api::conditions::find;
use crate::api::vm::conditions;
use crate::api::vm::{POD_DELETED, Restarts, State, names};
use crate::controllers::vm::import::{self, ImportEnd};
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::pod::restart;
use crate::controllers::vm::views::exit::{self, BACKOFF_RESET_UPTIME, End};
use crate::k8s::controller::Outcome;
use crate::k8s::retry;
use crate::k8s::views::PodView;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use std::time::Duration;
use strum::IntoStaticStr;

/// The action on the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// None: the pod is as desired.
    Keep,
    /// Create it.
    Create,
    /// Delete it.
    Delete {
        /// UID of the observed pod.
        uid: String,
        /// The reason.
        why: DeleteReason,
    },
    /// Write its exit or deletion into the VM's status.
    Remember(Restarts),
    /// Stop the VM, because the guest has shut itself down.
    StopAfterShutdown,
    /// Write into the VM's status that the image is on the PVC.
    RecordImport {
        /// Name of the PVC.
        claim: String,
    },
    /// Wait.
    Wait(WaitFor),
}

/// The reason for the deletion of a pod, with its text in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum DeleteReason {
    /// The desired state is `Stopped`.
    #[strum(to_string = "spec.vm.state is Stopped")]
    Stop,
    /// It has exited, and a new pod is due.
    #[strum(to_string = "the pod has exited, and a new pod is due")]
    Ended,
    /// A restart is requested.
    #[strum(to_string = "spec.vm.restartRequest requests a restart")]
    Restart,
    /// It has not run the VM yet, and its template has changed.
    #[strum(to_string = "the pod has not run the VM yet, and its template has changed")]
    Outdated,
    /// It has not run yet, and one of its PVCs was replaced or belongs to another VM.
    #[strum(
        to_string = "the pod has not run the VM yet, and a PVC was replaced or belongs to another VM"
    )]
    OtherClaim,
}

/// The event that ends a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// The end of the VM's pod, which is being deleted.
    PodEnd,
    /// The end of a pod with the VM's name and another owner.
    OtherPod,
    /// The end of the backoff.
    Pause {
        /// The time of the next start.
        until: Timestamp,
    },
    /// A valid spec, and the PVCs that the VM has used.
    ValidSpec,
    /// The completed deletion of a PVC of the VM.
    ClaimDeletion,
    /// A change of the spec, of the configuration or of the restart request, because a disk lacks its contents.
    Correction,
    /// The download of the CD image from which the guest boots.
    Medium {
        /// The time at which the VM starts without it.
        until: Timestamp,
    },
}

impl Decision {
    /// The time of the next reconcile.
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
            // The deletion of the image repository is reported only to VMs with images by URL.
            Self::Wait(WaitFor::ClaimDeletion) => Outcome::Recheck(Duration::from_secs(60)),
            // The watch usually triggers the next reconcile, because the status has just been written.
            Self::Remember(_) | Self::StopAfterShutdown | Self::RecordImport { .. } => {
                Outcome::Recheck(Duration::from_secs(1))
            }
            _ => Outcome::Done,
        }
    }
}

impl Decision {
    /// The decision if a start waits for the boot image. `deadline` is the end of that wait; `None` means that the
    /// image is present.
    #[must_use]
    pub fn unless_boot_image_is_missing(self, deadline: Option<Timestamp>) -> Self {
        match (self, deadline) {
            (Self::Create, Some(until)) => Self::Wait(WaitFor::Medium { until }),
            (decision, _) => decision,
        }
    }

    /// The decision if a pod that has not run the VM yet is deleted after a change of its template. The change may correct the cause
    /// that keeps it from starting or importing, and no data is lost. `template_hash` returns the hash of the present template
    /// ([`names::ANNOTATION_TEMPLATE_HASH`]) and is called only for such a pod.
    #[must_use]
    pub fn unless_outdated(
        self,
        observed: &Observed,
        template_hash: impl FnOnce() -> Option<String>,
    ) -> Self {
        let is_refused = self == Self::Wait(WaitFor::Correction);
        if !is_refused && !matches!(self, Self::Keep | Self::Remember(_)) {
            return self;
        }
        let Some(pod) = observed
            .own_pod()
            .filter(|pod| is_refused || !observed.has_started() && !pod.has_ended())
        else {
            return self;
        };
        let before = pod.annotations().get(names::ANNOTATION_TEMPLATE_HASH);
        match (before, pod.uid(), &self) {
            (Some(before), ..) if template_hash().is_none_or(|now| now == *before) => self,
            (Some(_), Some(uid), Self::Keep | Self::Wait(_)) => Self::Delete {
                uid,
                why: DeleteReason::Outdated,
            },
            // A previous run of the operator has probably deleted it.
            (Some(_), _, Self::Remember(_)) => Self::Wait(WaitFor::PodEnd),
            _ => self,
        }
    }
}

/// Decides. `valid` is whether the VM's spec is valid.
#[must_use]
pub fn decide(observed: &Observed, valid: bool) -> Decision {
    let vm = &observed.vm;
    let wanted = observed.desired_state();
    let past = vm
        .status
        .as_ref()
        .and_then(|status| status.restarts.as_ref());
    let restart = valid && restart::is_due(observed);
    let at_once = restart || observed.has_changed_spec();
    let backoff_end = past
        .map(|past| due(past, observed.now))
        .filter(|_| !at_once);
    let Some(any_pod) = &observed.pod else {
        return match (wanted, backoff_end) {
            (State::Stopped, ..) => Decision::Keep,
            (State::Running, ..) if !valid => Decision::Wait(WaitFor::ValidSpec),
            (State::Running, Some(until)) if until > observed.now => {
                Decision::Wait(WaitFor::Pause { until })
            }
            (State::Running, ..) if !observed.terminating_claims().is_empty() => {
                Decision::Wait(WaitFor::ClaimDeletion)
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
        State::Running if !observed.has_started() && observed.has_other_claim() => {
            Decision::Delete {
                uid,
                why: DeleteReason::OtherClaim,
            }
        }
        State::Running if !pod.has_ended() => Decision::Keep,
        State::Running => after_end(observed, pod, remembered, uid, at_once),
    }
}

fn after_end(
    observed: &Observed,
    pod: &PodView,
    remembered: Option<&Restarts>,
    uid: String,
    at_once: bool,
) -> Decision {
    let delete = Decision::Delete {
        uid: uid.clone(),
        why: DeleteReason::Ended,
    };
    if let Some(past) = remembered {
        let until = due(past, observed.now);
        return if until > observed.now && !at_once {
            Decision::Wait(WaitFor::Pause { until })
        } else {
            delete
        };
    }
    let end = if pod.import_claim().is_none() {
        if import::refusal(pod).is_some() && !at_once {
            return Decision::Wait(WaitFor::Correction);
        }
        End::of(pod)
    } else {
        match import::end(pod) {
            ImportEnd::Failed(end) => end,
            ImportEnd::Refused(_) if !at_once => return Decision::Wait(WaitFor::Correction),
            ImportEnd::Refused(_) => return delete,
            ImportEnd::Complete => {
                let claim = import::unrecorded(observed, pod);
                return claim.map_or(delete, |claim| Decision::RecordImport { claim });
            }
        }
    };
    if end.by_guest && observed.vm.spec.guest_shutdown_stops {
        return Decision::StopAfterShutdown;
    }
    let attempts = attempts(observed, end.resets_backoff);
    // The clock of the node may be ahead, which must not delay the next start.
    let time = Time(end.at.unwrap_or(observed.now).min(observed.now));
    Decision::Remember(Restarts {
        attempts,
        pod_uid: uid,
        reason: end.reason,
        message: end.message,
        time,
    })
}

/// A deletion by another client, such as a drain, counts as an exit, so that the backoff grows with repeated deletions.
/// A pod that is deleted without a grace period does not count.
fn deleted_by_others(observed: &Observed, pod: &PodView, uid: String) -> Decision {
    let running =
        find(observed.conditions(), conditions::RUNNING).filter(|_| observed.is_running());
    let resets_backoff = running.is_some_and(|since| {
        observed.now.duration_since(since.last_transition_time.0) >= BACKOFF_RESET_UPTIME
    });
    let by = exit::stopped_by_cluster(pod).map(|(reason, message)| format!("{reason}: {message}"));
    Decision::Remember(Restarts {
        attempts: attempts(observed, resets_backoff),
        pod_uid: uid,
        reason: POD_DELETED.to_owned(),
        message: by.unwrap_or_default(),
        time: Time(observed.now),
    })
}

/// The number of exits in a row, including the present one. A change of the spec begins a new row.
fn attempts(observed: &Observed, resets_backoff: bool) -> u32 {
    let before = observed
        .vm
        .status
        .as_ref()
        .and_then(|status| status.restarts.as_ref())
        .filter(|_| !resets_backoff && !observed.has_changed_spec());
    before.map_or(1, |before| before.attempts.saturating_add(1))
}

/// The delay between the exit and the next start.
#[must_use]
pub fn pause(past: &Restarts) -> Duration {
    retry::pause(past.attempts)
}

/// The time of the next start. An exit in the future was recorded by a clock that was ahead, and causes no wait.
fn due(past: &Restarts, now: Timestamp) -> Timestamp {
    if past.time.0 > now {
        now
    } else {
        pause_ends(past)
    }
}

/// The end of the backoff.
#[must_use]
pub fn pause_ends(past: &Restarts) -> Timestamp {
    let pause = SignedDuration::try_from(pause(past)).unwrap_or(SignedDuration::ZERO);
    past.time.0.checked_add(pause).unwrap_or(past.time.0)
}

#[cfg(test)]
mod tests;
