//! (pure) What becomes of a VM's pod. This is the only place that decides it.
//!
//! A pod is made once and ends once (its restart policy is `Never`); a VM that should run and whose pod has ended
//! gets a new one. How the pod ended is written into the VM's status *before* the pod goes, so that an operator that
//! dies in between forgets nothing; the dead pod stays until its successor is due, so that its log can be read.
//!
//! | wanted | pod | decision |
//! |---|---|---|
//! | any | not this VM's | wait |
//! | any | being deleted | wait |
//! | Stopped | none | keep |
//! | Stopped | any other | delete |
//! | Running | none | create, or wait for the end of the pause |
//! | Running | alive | keep |
//! | Running | ended by the guest, and `guestShutdownStops` | stop the VM by its spec |
//! | Running | ended, not yet in the status | remember |
//! | Running | ended, in the status | delete at the end of the pause |

use super::observe::Observed;
use crate::api::outcome::{EndReason, Outcome as RunnerOutcome};
use crate::api::virtual_machine::{Restarts, State};
use crate::operator::backoff;
use crate::operator::controller::Outcome;
use crate::operator::views::{PodView, TerminatedView};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// A VM that ran that long has run well: the pause before its next start is short again.
pub const RAN_WELL: SignedDuration = SignedDuration::from_mins(10);

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
    /// It has ended; how has to be written into the VM's status.
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
}

impl Decision {
    /// What it means for the next look at the VM.
    #[must_use]
    pub fn outcome(&self, now: Timestamp) -> Outcome {
        match self {
            Self::Wait(WaitFor::Pause { until }) => {
                let left = until.duration_since(now);
                Outcome::Recheck(Duration::try_from(left).unwrap_or_default().max(Duration::from_millis(1)))
            }
            // The status that was just written starts the next reconcile; this is the safety net.
            Self::Remember(_) | Self::StopBySpec => Outcome::Recheck(Duration::from_secs(1)),
            _ => Outcome::Done,
        }
    }
}

/// Decides. `valid` says whether the VM's spec can be used.
#[must_use]
pub fn decide(observed: &Observed, valid: bool) -> Decision {
    let vm = &observed.vm;
    let wanted = vm.spec.vm.state;
    let past = vm.status.as_ref().and_then(|status| status.restarts.as_ref());
    let Some(any_pod) = &observed.pod else {
        return match (wanted, past.map(due)) {
            (State::Stopped, _) => Decision::Keep,
            (State::Running, _) if !valid => Decision::Wait(WaitFor::ValidSpec),
            (State::Running, Some(until)) if until > observed.now => Decision::Wait(WaitFor::Pause { until }),
            (State::Running, _) => Decision::Create,
        };
    };
    let Some(pod) = observed.own_pod() else { return Decision::Wait(WaitFor::OtherPod) };
    if any_pod.metadata.deletion_timestamp.is_some() {
        return Decision::Wait(WaitFor::PodEnd);
    }
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    match wanted {
        State::Stopped => Decision::Delete { uid, why: DeleteReason::Stop },
        State::Running if !pod.has_ended() => Decision::Keep,
        State::Running => after_end(observed, pod, past.filter(|past| past.pod_uid == uid), uid.clone()),
    }
}

fn after_end(observed: &Observed, pod: &PodView, remembered: Option<&Restarts>, uid: String) -> Decision {
    let end = End::of(pod);
    if let Some(past) = remembered {
        let until = due(past);
        return if until > observed.now {
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
        Some(before) if !end.ran_well => before.attempts.saturating_add(1),
        _ => 1,
    };
    // A node whose clock is ahead must not delay the next start.
    let time = Time(end.at.unwrap_or(observed.now).min(observed.now));
    Decision::Remember(Restarts { attempts, pod_uid: uid, reason: end.reason, message: end.message, time })
}

/// When the next start is due.
fn due(past: &Restarts) -> Timestamp {
    let pause = SignedDuration::try_from(backoff::pause(past.attempts)).unwrap_or(SignedDuration::ZERO);
    past.time.0.checked_add(pause).unwrap_or(past.time.0)
}

/// How a pod ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// CamelCase.
    pub reason: String,
    /// What is known of it.
    pub message: String,
    /// Whether the guest powered itself off.
    pub by_guest: bool,
    /// Whether it had run for [`RAN_WELL`].
    pub ran_well: bool,
    /// When.
    pub at: Option<Timestamp>,
}

impl End {
    /// How that pod ended: by the runner's own word if there is one, else by the kubelet's.
    #[must_use]
    pub fn of(pod: &PodView) -> Self {
        let terminated = pod.container().and_then(|container| container.state.terminated.as_ref());
        let outcome = terminated.and_then(|t| RunnerOutcome::parse(t.message.as_deref()?));
        let (reason, message) = match (&outcome, terminated) {
            (Some(outcome), _) => (format!("{:?}", outcome.reason), outcome.message.clone()),
            (None, Some(t)) => without_outcome(pod, t),
            (None, None) => (
                pod.status.reason.clone().unwrap_or_else(|| "PodFailed".to_owned()),
                pod.status
                    .message
                    .clone()
                    .unwrap_or_else(|| "the pod ended before its container had started".to_owned()),
            ),
        };
        let time =
            |field: fn(&TerminatedView) -> &Option<Time>| terminated.and_then(|t| field(t).as_ref()).map(|t| t.0);
        let (started, finished) = (time(|t| &t.started_at), time(|t| &t.finished_at));
        let ran = started.zip(finished).map(|(started, finished)| finished.duration_since(started));
        Self {
            reason,
            message,
            by_guest: outcome.is_some_and(|o| o.by_guest && o.reason == EndReason::GuestShutdown),
            ran_well: ran.is_some_and(|ran| ran >= RAN_WELL),
            at: finished,
        }
    }
}

/// The kubelet's word, where the runner left none.
fn without_outcome(pod: &PodView, terminated: &TerminatedView) -> (String, String) {
    let code = terminated.exit_code;
    let own_reason = pod.status.reason.clone();
    let kubelets = terminated.reason.clone().filter(|reason| !matches!(reason.as_str(), "Error" | "Completed"));
    let reason = own_reason.or(kubelets).unwrap_or_else(|| "RunnerKilled".to_owned());
    let words = [pod.status.message.as_deref(), terminated.message.as_deref()];
    let words = words.into_iter().flatten().map(str::trim).find(|text| !text.is_empty());
    let message = words.map_or_else(|| format!("the runner ended with code {code} and left no word"), str::to_owned);
    (reason, message)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{alone, ended, now, pod, vm, with_pod};
    use super::*;
    use crate::api::VirtualMachine;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const CRASHED: &str = r#"{"reason":"QemuCrashed","message":"signal 9","qemuExit":-9}"#;
    const POWERED_OFF: &str = r#"{"reason":"GuestShutdown","byGuest":true}"#;

    fn running() -> VirtualMachine {
        vm(json!({"state": "Running"}))
    }

    fn with_past(attempts: u32, pod_uid: &str, seconds_ago: i64) -> VirtualMachine {
        let mut vm = running();
        let time = Time(now().checked_sub(SignedDuration::from_secs(seconds_ago)).unwrap());
        let (reason, message) = ("QemuCrashed".to_owned(), String::new());
        let past = Restarts { attempts, pod_uid: pod_uid.to_owned(), reason, message, time };
        vm.status.as_mut().unwrap().restarts = Some(past);
        vm
    }

    fn delete(why: DeleteReason) -> Decision {
        Decision::Delete { uid: "pod-uid".to_owned(), why }
    }

    #[test]
    fn a_vm_that_should_run_gets_a_pod_and_keeps_it() {
        assert_eq!(decide(&alone(running()), true), Decision::Create);
        for phase in ["Pending", "Running", "Unknown", ""] {
            assert_eq!(decide(&with_pod(running(), pod(json!({"phase": phase}))), true), Decision::Keep, "{phase}");
        }
    }

    #[test]
    fn a_vm_whose_spec_cannot_be_used_gets_no_pod_and_keeps_the_one_it_has() {
        assert_eq!(decide(&alone(running()), false), Decision::Wait(WaitFor::ValidSpec));
        assert_eq!(decide(&with_pod(running(), pod(json!({"phase": "Running"}))), false), Decision::Keep);
    }

    #[test]
    fn a_stopped_vm_has_no_pod_whatever_its_spec() {
        let stopped = || vm(json!({"state": "Stopped"}));
        for valid in [true, false] {
            assert_eq!(decide(&alone(stopped()), valid), Decision::Keep);
            for status in [json!({"phase": "Running"}), ended(CRASHED, 5)] {
                assert_eq!(decide(&with_pod(stopped(), pod(status)), valid), delete(DeleteReason::Stop));
            }
        }
    }

    #[test]
    fn a_pod_on_its_way_out_is_waited_for() {
        let mut ending = pod(json!({"phase": "Running"}));
        ending.metadata.deletion_timestamp = Some(Time(now()));
        for state in ["Running", "Stopped"] {
            let observed = with_pod(vm(json!({"state": state})), ending.clone());
            assert_eq!(decide(&observed, true), Decision::Wait(WaitFor::PodEnd));
        }
    }

    #[test]
    fn a_namesakes_pod_is_never_adopted_nor_deleted() {
        let mut foreign = pod(ended(CRASHED, 5));
        foreign.metadata.owner_references.as_mut().unwrap()[0].uid = "another".to_owned();
        for state in ["Running", "Stopped"] {
            let observed = with_pod(vm(json!({"state": state})), foreign.clone());
            assert_eq!(decide(&observed, true), Decision::Wait(WaitFor::OtherPod));
        }
    }

    #[test]
    fn an_end_is_remembered_before_the_pod_goes_and_the_pod_stays_until_the_pause_is_over() {
        let Decision::Remember(past) = decide(&with_pod(running(), pod(ended(CRASHED, 5))), true) else { panic!() };
        assert_eq!((past.attempts, past.reason.as_str(), past.message.as_str()), (1, "QemuCrashed", "signal 9"));
        assert_eq!(past.time.0, now());
        let later = |ago| decide(&with_pod(with_past(3, "pod-uid", ago), pod(ended(CRASHED, 5))), true);
        let until = now().checked_add(SignedDuration::from_secs(1)).unwrap();
        assert_eq!(later(3), Decision::Wait(WaitFor::Pause { until }));
        assert_eq!(later(4), delete(DeleteReason::Ended));
    }

    #[test]
    fn ends_in_a_row_are_counted_and_a_good_run_begins_anew() {
        let attempts = |ran| match decide(&with_pod(with_past(4, "earlier", 60), pod(ended(CRASHED, ran))), true) {
            Decision::Remember(past) => past.attempts,
            other => panic!("{other:?}"),
        };
        assert_eq!((attempts(599), attempts(600)), (5, 1));
    }

    #[test]
    fn a_shutdown_by_the_guest_stops_the_vm_only_where_that_is_wanted() {
        let mut stops = running();
        stops.spec.guest_shutdown_stops = true;
        assert_eq!(decide(&with_pod(stops.clone(), pod(ended(POWERED_OFF, 5))), true), Decision::StopBySpec);
        // B26, B33: a crash never looks like a stop by the user.
        assert!(matches!(decide(&with_pod(stops, pod(ended(CRASHED, 5))), true), Decision::Remember(_)));
        let observed = with_pod(running(), pod(ended(POWERED_OFF, 5)));
        let Decision::Remember(past) = decide(&observed, true) else { panic!() };
        assert_eq!((past.attempts, past.reason.as_str()), (1, "GuestShutdown"));
    }

    #[test]
    fn a_clock_that_is_ahead_does_not_delay_the_next_start() {
        let mut status = ended(CRASHED, 5);
        let ahead = now().checked_add(SignedDuration::from_hours(1)).unwrap();
        status["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = json!(ahead);
        let Decision::Remember(past) = decide(&with_pod(running(), pod(status)), true) else { panic!() };
        assert_eq!(past.time.0, now());
    }

    #[test]
    fn an_injected_container_neither_keeps_a_dead_vm_alive_nor_ends_a_living_one() {
        let terminated = json!({"terminated": {"exitCode": 0}});
        let containers =
            |vm: Value, other: Value| json!([{"name": "other", "state": other}, {"name": "vm", "state": vm}]);
        let status = |containers| json!({"phase": "Running", "containerStatuses": containers});
        let dead = pod(status(containers(terminated.clone(), json!({}))));
        assert!(matches!(decide(&with_pod(running(), dead), true), Decision::Remember(_)));
        let alive = pod(status(containers(json!({}), terminated)));
        assert_eq!(decide(&with_pod(running(), alive), true), Decision::Keep);
    }

    #[test]
    fn an_end_without_the_runners_word_has_the_kubelets_reason() {
        let reason = |status| End::of(&pod(status)).reason;
        assert_eq!(reason(json!({"phase": "Failed", "reason": "Evicted", "message": "disk"})), "Evicted");
        assert_eq!(reason(json!({"phase": "Failed"})), "PodFailed");
        let killed = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        let containers = json!([{"name": "vm", "state": killed}]);
        assert_eq!(reason(json!({"phase": "Failed", "containerStatuses": containers})), "OOMKilled");
        assert_eq!(reason(ended("garbled {", 5)), "RunnerKilled");
    }

    proptest! {
        /// Whatever there is: a pod is made only where there is none, and deleted only if it is this VM's.
        #[test]
        fn never_two_pods_and_never_anothers_pod(
            wanted in prop::sample::select(vec!["Running", "Stopped"]),
            phase in prop::sample::select(vec!["", "Pending", "Running", "Succeeded", "Failed", "Unknown"]),
            present: bool, own: bool, ending: bool, valid: bool, stops: bool, by_guest: bool,
            past in prop::option::of((0u32..40, 0i64..1000, prop::sample::select(vec!["pod-uid", "earlier"]))),
        ) {
            let mut machine = past.map_or_else(running, |(attempts, ago, uid)| with_past(attempts, uid, ago));
            machine.spec.vm.state = if wanted == "Running" { State::Running } else { State::Stopped };
            machine.spec.guest_shutdown_stops = stops;
            let mut status = ended(if by_guest { POWERED_OFF } else { CRASHED }, 5);
            status["phase"] = phase.into();
            if !matches!(phase, "Succeeded" | "Failed") { status["containerStatuses"] = json!([]); }
            let mut it = pod(status);
            if !own { it.metadata.owner_references = None; }
            if ending { it.metadata.deletion_timestamp = Some(Time(now())); }
            let observed = if present { with_pod(machine, it) } else { alone(machine) };
            match decide(&observed, valid) {
                Decision::Create => prop_assert!(!present && valid && wanted == "Running"),
                Decision::Delete { uid, .. } => prop_assert!(present && own && !ending && uid == "pod-uid"),
                Decision::StopBySpec => prop_assert!(stops && by_guest && own && wanted == "Running"),
                Decision::Remember(_) => prop_assert!(present && own && !ending && wanted == "Running"),
                Decision::Keep | Decision::Wait(_) => {}
            }
        }
    }
}
