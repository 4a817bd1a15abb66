//! The blocking condition of a VM, with the next step for the administrator.
//!
//! | module | content |
//! |---|---|
//! | `claims` | (pure) PVCs that are being deleted |
//! | `starting` | (pure) a pod that does not start |
//! | `scheduling` | (pure) a pod without a node |
//! | `running` | (pure) a running VM with a paused guest, without its boot image, or on a node without room for its changed size |
//! | `ending` | (pure) a pod that does not stop, or on a node that does not answer |
//! | [`media`] | (pure) a start that waits for a CD image |
//! | [`ignored`] | (pure) fields that have no effect |
//! | [`memory_limit`] | (pure) a memory limit that guest and QEMU can exceed |
//! | [`unnamed_disks`] | (pure) disks without a name: the position of such a disk selects its PVC |
//! | [`warnings`] | (client) events about a pod that does not start |

mod claims;
mod ending;
pub mod ignored;
pub mod media;
pub mod memory_limit;
mod running;
mod scheduling;
mod starting;
pub mod unnamed_disks;
pub mod warnings;

use crate::api::vm::conditions::ReadyReason;
use crate::api::vm::diagnosis::Diagnosis;
use crate::api::vm::{State, VirtualMachineSpec};
use crate::controllers::vm::observe::{Observed, since};
use crate::controllers::vm::ownership::{next_step, user};
use crate::k8s::error::Error;
use crate::k8s::rejection::Cause;
use crate::k8s::views::{ClaimView, PodView};
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Time after which the status explains why a pod waits for a volume or its containers. Volumes are usually provided in seconds. An
/// earlier explanation would cost a write and an event for every VM of a node that starts many VMs.
pub const EXPLAIN_DELAY: Duration = Duration::from_secs(10);
/// Time without a report after which a kubelet or a runner counts as silent. They usually report in seconds, but take longer on a
/// node that starts many VMs.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);

/// The next step if none of the VM's fields explains the rejection by Pod Security. With these settings, pods of VMs do not comply
/// with the level `restricted`.
const POD_SECURITY_SETTINGS: &str = "remove accelerator.privileged, deviceAccess and tap.hostPath from the operator's \
    ConfigMap, or run the VM in a namespace with a Pod Security level that admits the VM's pod; see docs/security.md";

/// The next step if a quota requires an amount, such as a limit, that the pod does not name.
const MISSING_AMOUNT_STEP: &str = "set the amounts that the message names in spec.resources of the VM, or create a LimitRange with \
    defaults in the namespace";

/// The next step if a `LimitRange` rejects an object of this kind.
fn limit_range_step(kind: &str) -> &'static str {
    match kind {
        "PersistentVolumeClaim" => {
            "change the size in spec.vm.disks[].volumeClaimTemplate, or the LimitRange of the namespace (see kubectl describe limitrange)"
        }
        _ => {
            "change spec.resources of the VM, or the LimitRange of the namespace (see kubectl describe limitrange)"
        }
    }
}

/// Prefix of the annotations with which a pod selects an AppArmor profile.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The next step if Pod Security rejects the pod of a VM: it names the fields of the VM that violate the level `restricted`.
fn pod_security_step(problem: &str, vm: Option<&VirtualMachineSpec>) -> String {
    let Some(vm) = vm else {
        return POD_SECURITY_SETTINGS.to_owned();
    };
    let mut annotations = vm.pod_annotations.iter().flat_map(BTreeMap::keys);
    let mut fields: Vec<String> = Vec::new();
    if problem.contains("AppArmor") && annotations.any(|key| key.starts_with(APPARMOR_ANNOTATION)) {
        fields.push("spec.podAnnotations".to_owned());
    }
    let networks = vm.vm.networks.iter().enumerate();
    let taps = networks.filter(|(_, network)| network.tap.is_some());
    fields.extend(taps.map(|(n, _)| format!("spec.vm.networks[{n}].tap")));
    if fields.is_empty() {
        return POD_SECURITY_SETTINGS.to_owned();
    }
    format!(
        "remove {}, or run the VM in a namespace with a Pod Security level that admits the VM's pod; see docs/security.md",
        fields.join(" and ")
    )
}

/// The blocking condition if the API server rejects an object of a VM, or the object's name is in use. `vm` is the spec
/// that the object is built from, or `None` if the object does not depend on the spec.
#[must_use]
pub fn rejected(error: &Error, vm: Option<&VirtualMachineSpec>) -> Diagnosis {
    let problem = error.to_string();
    let reason = match (Cause::of(error), error) {
        (_, Error::OwnedByOther { kind, name, owner }) => {
            let next_step = next_step(owner.as_deref(), kind, name);
            return Diagnosis::new(ReadyReason::NameTaken, problem, next_step);
        }
        (Cause::BeingRemoved, _) => return Diagnosis::new(ReadyReason::Starting, problem, ""),
        (Cause::PodSecurity, _) => {
            let next_step = pod_security_step(&problem, vm);
            return Diagnosis::new(ReadyReason::PolicyRefused, problem, next_step);
        }
        (Cause::MissingAmount, _) => {
            return Diagnosis::new(ReadyReason::QuotaExceeded, problem, MISSING_AMOUNT_STEP);
        }
        (Cause::LimitRange, Error::Api { kind, .. }) => {
            let next_step = limit_range_step(kind);
            return Diagnosis::new(ReadyReason::PolicyRefused, problem, next_step);
        }
        (Cause::NameTaken, _) => ReadyReason::NameTaken,
        (Cause::Policy | Cause::LimitRange, _) => ReadyReason::PolicyRefused,
        (Cause::Quota, _) => ReadyReason::QuotaExceeded,
        (Cause::Rights, _) => ReadyReason::NotAuthorized,
        (Cause::Other, _) => ReadyReason::Rejected,
    };
    Diagnosis::documented(reason, &problem, "")
}

/// The blocking condition of a VM.
#[must_use]
pub fn explain(observed: &Observed) -> Option<Diagnosis> {
    let Some(any_pod) = &observed.pod else {
        return claims::waits_for_deletion(observed);
    };
    let is_ending = any_pod.metadata.deletion_timestamp.is_some();
    let wanted = observed.desired_state() == State::Running;
    match observed.own_pod() {
        None if wanted && observed.previous_vm_pod().is_some() => {
            ending::explain(observed, any_pod)
        }
        None if is_ending || !wanted => None,
        None => Some(name_taken(any_pod)),
        Some(pod) if is_ending || !wanted => ending::explain(observed, pod),
        Some(pod) => ending::explain(observed, pod)
            .or_else(|| claims::are_being_deleted(observed))
            .or_else(|| starting::explain(observed, pod, &claims(observed)))
            .or_else(|| starting::runner_is_silent(observed, pod))
            .or_else(|| running::explain(observed, pod)),
    }
}

/// The time until the next reconcile of a VM with a pod that starts, stops or waits for a resize.
#[must_use]
pub fn recheck(observed: &Observed) -> Option<Duration> {
    let pod = observed.pod.as_deref()?;
    if let Some(until) = &pod.metadata.deletion_timestamp {
        let overdue = until.0.checked_add(EXPLAIN_DELAY).ok()?;
        return Duration::try_from(overdue.duration_since(observed.now))
            .ok()
            .filter(|left| !left.is_zero());
    }
    let pod = observed
        .own_pod()
        .filter(|_| observed.desired_state() == State::Running)?;
    match starting::waits_since(pod).or_else(|| starting::runner_silent_since(observed, pod)) {
        Some(start) => Some(next_check(start, observed.now)),
        None => running::resize_recheck(pod, observed.now),
    }
}

/// Time until the next check of a pod that does not start. The interval grows with the wait, because each check lists events of the
/// pod. One check is at [`SILENCE_TIMEOUT`].
fn next_check(start: Timestamp, now: Timestamp) -> Duration {
    let waited = since(start, now);
    let interval = waited.clamp(EXPLAIN_DELAY, SILENCE_TIMEOUT);
    match SILENCE_TIMEOUT.saturating_sub(waited) {
        Duration::ZERO => interval,
        left => interval.min(left.max(Duration::from_secs(1))),
    }
}

/// The blocking condition of a download pod that has not started, and the time until the next check.
#[must_use]
pub fn of_fetch(observed: &Observed, pod: &PodView) -> (Option<Diagnosis>, Option<Duration>) {
    let recheck = starting::waits_since(pod).map(|start| next_check(start, observed.now));
    (
        starting::explain(observed, pod, &repository(observed)),
        recheck,
    )
}

/// UIDs of the objects with events that may explain why the pod of the VM, or a download pod of the VM, does not start.
fn suspects(observed: &Observed) -> BTreeSet<String> {
    if observed.desired_state() != State::Running {
        return BTreeSet::new();
    }
    let own = observed
        .own_pod()
        .map(|pod| starting::suspects(observed, pod, &claims(observed)));
    let fetches = observed
        .fetches
        .values()
        .filter_map(|fetch| fetch.pod.as_deref());
    let of_fetches =
        fetches.flat_map(|pod| starting::suspects(observed, pod, &repository(observed)));
    own.into_iter().flatten().chain(of_fetches).collect()
}

/// The PVCs of the VM's pod.
fn claims(observed: &Observed) -> Vec<&ClaimView> {
    let repository = repository(observed)
        .into_iter()
        .filter(|_| observed.has_cd_drive());
    observed
        .claims
        .values()
        .map(AsRef::as_ref)
        .chain(repository)
        .collect()
}

/// The PVC of a download pod.
fn repository(observed: &Observed) -> Vec<&ClaimView> {
    observed.image_repository.as_deref().into_iter().collect()
}

fn name_taken(pod: &PodView) -> Diagnosis {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let next = next_step(user(pod, name).as_deref(), "pod", name);
    let problem = format!("a pod with the name {name:?} exists, but does not belong to the VM");
    Diagnosis::new(ReadyReason::NameTaken, problem, next)
}

#[cfg(test)]
mod tests;
