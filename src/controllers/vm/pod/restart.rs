//! (pure) Restarts: requested by `spec.vm.restartRequest`, or required by changed fields.
//!
//! An annotation of the pod has the number of the restart request at its creation. It separates pods from before a
//! request from those after it, so each request is carried out once, also after failed writes.

use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition};
use crate::api::vm::{State, names};
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::pod::resources;
use crate::k8s::store::packed_map::Texts;
use crate::k8s::views::PodView;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::collections::BTreeMap;

/// The entry of all fields that the short form of the hashes of a pod's fields does not contain.
pub const OTHER_FIELDS: &str = "all other fields";

fn pod_request(pod: &PodView) -> Option<i64> {
    pod.annotations()
        .get(names::ANNOTATION_RESTART_REQUEST)?
        .parse()
        .ok()
}

fn reported_request(observed: &Observed) -> Option<i64> {
    observed.vm.status.as_ref()?.observed_restart_request
}

/// Whether a requested restart is due: neither the status nor the pod has its number.
#[must_use]
pub fn is_due(observed: &Observed) -> bool {
    let done = reported_request(observed)
        .max(observed.own_pod().and_then(|pod| pod_request(pod)))
        .unwrap_or(0);
    observed
        .vm
        .spec
        .vm
        .restart_request
        .is_some_and(|requested| requested > done)
}

/// The number of the last request that was carried out, for the status. `created` means that the pod was created in this reconcile.
#[must_use]
pub fn carried_out(observed: &Observed, created: bool) -> Option<i64> {
    let requested = observed.vm.spec.vm.restart_request;
    let now = match observed.own_pod() {
        Some(pod) => pod_request(pod),
        None if created => requested,
        // A request for a stopped VM is complete without a restart.
        None => requested
            .filter(|_| observed.desired_state() == State::Stopped && observed.pod.is_none()),
    };
    // 0 requests no restart. It is reported as complete for clients that wait for it.
    now.max(reported_request(observed))
        .max(requested.filter(|requested| *requested == 0))
}

/// The condition that lists the changed fields that need a restart, if there are any. `shutdown_period` is
/// [`VirtualMachineSpec::shutdown_period`](crate::api::VirtualMachineSpec::shutdown_period).
#[must_use]
pub fn required(desired: &Pod, shutdown_period: i64, pod: &PodView) -> Option<DesiredCondition> {
    // Pods of the Java VM-Operator have no such annotation. Their fields are unknown.
    let before = started_with(pod.annotations())?;
    let now = started_with(desired.annotations())?;
    // Without an entry for all other fields, those that another version of the operator did not hash are not known to differ.
    let changed = now.iter().filter(|(field, hash)| {
        let before = before.get(*field).or_else(|| before.get(OTHER_FIELDS));
        before.is_some_and(|before| before != *hash)
    });
    let mut fields: Vec<&str> = changed.map(|(field, _)| field.as_str()).collect();
    // Not compared with the grace period of a new pod: another version of the operator may have added less to the shutdown period.
    if pod
        .spec
        .termination_grace_period_seconds
        .is_some_and(|present| present < shutdown_period)
    {
        fields.push(
            "spec.vm.powerdownTimeout (a node drain uses the old timeout until the VM restarts; a stop by spec.vm.state uses the new \
             timeout)",
        );
    }
    let removed = resources::removed(desired, pod);
    fields.extend(removed.iter().map(String::as_str));
    (!fields.is_empty()).then(|| DesiredCondition {
        type_: conditions::RESTART_REQUIRED,
        status: true,
        reason: ConditionReason::SpecChanged,
        message: format!(
            "changes that take effect only in a new pod of the VM: {}; to restart the VM with a new pod, increase spec.vm.restartRequest",
            fields.join(", ")
        ),
    })
}

fn started_with(annotations: &impl Texts) -> Option<BTreeMap<String, String>> {
    serde_json::from_str(annotations.text(names::ANNOTATION_STARTED_WITH)?).ok()
}

#[cfg(test)]
mod tests;
