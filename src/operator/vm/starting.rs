//! (client) Takes note of how far the start of a VM is, which is told when its guest runs and when it has booted. No request
//! is made.

use super::observe::Observed;
use crate::api::conditions;
use crate::api::start_times::StartTimes;
use crate::operator::context::Context;

/// Takes note of what is seen.
pub fn note(observed: &Observed, ctx: &Context) {
    let Some(pod) = observed.own_pod() else { return };
    let name = observed.name();
    if pod.condition("PodScheduled").is_some() {
        ctx.scheduled(&name, observed.now);
    }
    if !observed.is_running() {
        return;
    }
    let running = conditions::find(observed.conditions(), conditions::RUNNING);
    let times = running.and_then(|condition| StartTimes::read(&condition.message));
    ctx.runs(&name, times, observed.now);
    if conditions::is_true(observed.conditions(), conditions::BOOTED) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        ctx.booted(&name, uid, times.unwrap_or_default(), observed.now);
    }
}
