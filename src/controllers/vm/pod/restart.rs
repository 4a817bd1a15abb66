//! (pure) Restarts: those that are asked for, and those that are needed.
//!
//! A pod carries the number of the restart request that it was made for. So a request is carried out once, whatever
//! fails on the way: the pod that came after it cannot be taken for one from before.

use crate::api::conditions::{self, ConditionReason, Wanted};
use crate::api::vm::{State, names};
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::views::PodView;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::collections::BTreeMap;

fn of_pod(pod: &PodView) -> Option<i64> {
    pod.annotations()
        .get(names::ANNOTATION_RESTART_REQUEST)?
        .parse()
        .ok()
}

fn told(observed: &Observed) -> Option<i64> {
    observed.vm.status.as_ref()?.observed_restart_request
}

/// Whether a restart is asked for that neither the status nor the pod knows of.
#[must_use]
pub fn is_due(observed: &Observed) -> bool {
    let done = told(observed)
        .max(observed.own_pod().and_then(|pod| of_pod(pod)))
        .unwrap_or(0);
    observed
        .vm
        .spec
        .vm
        .restart_request
        .is_some_and(|asked| asked > done)
}

/// The last request that is carried out, as it should stand in the status. `created` says whether the pod is made now.
#[must_use]
pub fn carried_out(observed: &Observed, created: bool) -> Option<i64> {
    let asked = observed.vm.spec.vm.restart_request;
    let now = match observed.own_pod() {
        Some(pod) => of_pod(pod),
        None if created => asked,
        // Where nothing runs there is nothing to restart.
        None => {
            asked.filter(|_| observed.vm.spec.vm.state == State::Stopped && observed.pod.is_none())
        }
    };
    // The count begins at 0, with which nothing is asked for: whoever waits for it has it.
    now.max(told(observed))
        .max(asked.filter(|asked| *asked == 0))
}

/// The condition that says which fields wait for the next start, if there are such. `shutdown_period` is
/// [`VirtualMachineSpec::shutdown_period`](crate::api::VirtualMachineSpec::shutdown_period).
#[must_use]
pub fn required(wanted: &Pod, shutdown_period: i64, pod: &PodView) -> Option<Wanted> {
    // A pod without the annotation is the reference's: nobody knows what it was made from.
    let before = started_with(pod.annotations())?;
    let now = started_with(wanted.annotations())?;
    // What another version did not hash is not known to differ.
    let changed = now
        .iter()
        .filter(|(field, hash)| before.get(*field).is_some_and(|before| before != *hash));
    let mut fields: Vec<&str> = changed.map(|(field, _)| field.as_str()).collect();
    // Not compared with the grace period of a new pod: another version of the operator may have added less to the shutdown period.
    if pod
        .spec
        .termination_grace_period_seconds
        .is_some_and(|present| present < shutdown_period)
    {
        fields.push(
            "spec.vm.powerdownTimeout (for drains; a stop by the VM's state has the new time)",
        );
    }
    (!fields.is_empty()).then(|| Wanted {
        type_: conditions::RESTART_REQUIRED,
        status: true,
        reason: ConditionReason::SpecChanged,
        message: format!(
            "changed since the VM was started, and in force from its next start on: {}; raise spec.vm.restartRequest to \
             restart it",
            fields.join(", ")
        ),
    })
}

fn started_with(annotations: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    serde_json::from_str(annotations.get(names::ANNOTATION_STARTED_WITH)?).ok()
}

#[cfg(test)]
mod tests;
