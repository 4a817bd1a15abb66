//! (pure but for the note) Pods that somebody else than the operator deletes: a `NoExecute` taint, a descheduler, a webhook,
//! a person. The first is replaced at once, as a drain is not to be delayed; where the next ones go too before the VM has
//! run for ten minutes, those after them are made after 10 s, 20 s … 5 min. No request is made.

use super::end::{self, RAN_WELL};
use super::lifecycle;
use super::observe::Observed;
use crate::api::conditions;
use crate::api::virtual_machine::{POD_DELETED, Restarts, State};
use crate::operator::losses::{Losses, Lost};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// How many pods in a row are replaced at once.
const AT_ONCE: u32 = 1;

/// Takes note of the pod that is seen, and gives the observation with the one that is missed.
pub fn note(observed: Observed, losses: &Losses) -> Observed {
    let name = observed.name();
    let is_new = observed.vm.status.as_ref().is_none_or(|status| status.observed_generation.unwrap_or(0) == 0);
    if is_new || observed.vm.spec.vm.state == State::Stopped {
        // What an earlier VM of the name has lost is none of its own.
        losses.forget(&name);
        return observed;
    }
    let Some(pod) = observed.own_pod() else {
        let lost = observed.pod.is_none().then(|| losses.is_missed(&name, observed.now)).flatten();
        return Observed { lost, ..observed };
    };
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    if pod.metadata.deletion_timestamp.is_some() {
        losses.is_leaving(&name, uid, || end::by_others(pod).map(|(reason, words)| format!("{reason}: {words}")));
    } else if pod.has_ended() {
        // That is an end, and counted as such.
        losses.forget(&name);
    } else {
        let made = pod.metadata.creation_timestamp.as_ref().map_or(observed.now, |time| time.0);
        losses.alive(&name, uid, runs_since(&observed), told_before(&observed, made));
    }
    observed
}

/// Since when the guest runs, by the runner's word.
fn runs_since(observed: &Observed) -> Option<Timestamp> {
    let running = conditions::find(observed.conditions(), conditions::RUNNING).filter(|_| observed.is_running())?;
    Some(running.last_transition_time.0.min(observed.now))
}

/// How many pods in a row were lost before the one made at that time, by the VM's status.
#[must_use]
pub fn told_before(observed: &Observed, made: Timestamp) -> u32 {
    let past = observed.vm.status.as_ref().and_then(|status| status.restarts.as_ref());
    let Some(past) = past.filter(|past| past.reason == POD_DELETED) else { return 0 };
    // Later, another one came between that has run well.
    let is_next = made.duration_since(lifecycle::pause_ends(past)) < RAN_WELL;
    if is_next { past.attempts } else { 0 }
}

/// What has to be written into the status before a pod is made in the place of the lost one: after this a pause follows.
#[must_use]
pub fn to_remember(observed: &Observed) -> Option<Restarts> {
    let Lost { uid, in_a_row, at, why } = observed.lost.clone().filter(|lost| lost.in_a_row > AT_ONCE)?;
    let past = observed.vm.status.as_ref().and_then(|status| status.restarts.as_ref());
    if past.is_some_and(|past| past.pod_uid == uid) {
        return None;
    }
    let (reason, message) = (POD_DELETED.to_owned(), why.unwrap_or_default());
    Some(Restarts { attempts: in_a_row, pod_uid: uid, reason, message, time: Time(at) })
}
