//! (client) Requests and limits of a running pod follow the VM's CPUs and memory, by the pod's subresource `resize`.
//!
//! The pod's annotation records the resources that were requested last, so that changes by other programs are kept. The
//! VM's condition records a rejection. A rejected resize is retried when the VM changes, and after a delay.
//!
//! A request falls after the guest has released the CPUs or the memory. Before, the scheduler could give them to another pod.

use crate::api::VirtualMachine;
use crate::api::conditions::find;
use crate::api::quantity::{Bytes, is_more, same_amount};
use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition};
use crate::api::vm::names;
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::plan::sizes;
use crate::controllers::vm::pod::resources::{Amounts, recorded, with_removed};
use crate::k8s::error::Error;
use crate::k8s::rejection::RETRY_TEXT;
use crate::k8s::views::{AmountsView, PodConditionType, PodView};
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use kube::ResourceExt;
use kube::api::Patch;
use serde_json::{Map, Value, json};

/// Resizes the pod if its desired resources have changed. Returns the annotation that records a successful request, and
/// a condition if the pod does not have the desired resources.
///
/// # Errors
/// If the request fails for another reason than a rejection.
pub(super) async fn apply(
    desired: &Pod,
    pod: &PodView,
    observed: &Observed,
    ctx: &VmController,
) -> Result<(Option<(String, String)>, Option<DesiredCondition>), Error> {
    let resources = recorded(desired.annotations());
    let (Some(resources), Some(last)) = (resources, recorded(pod.annotations())) else {
        return Ok((None, None));
    };
    let resources = with_removed(&last, &until_released(&observed.vm, &last, resources));
    let (vm, now) = (observed.key(), (ctx.scope.cluster.instant)());
    if resources == last {
        ctx.states.accepted(&vm, conditions::RESOURCES_IN_SYNC);
        return Ok((None, difference(&resources, pod)));
    }
    let reported = reported_rejection(observed).filter(|_| {
        ctx.states
            .is_retry_delayed(&vm, conditions::RESOURCES_IN_SYNC, now)
    });
    if let Some(message) = reported {
        return Ok((None, Some(rejected(message))));
    }
    let answer = request(pod, patch(&last, &resources), ctx).await;
    match answer {
        Ok(()) => {
            ctx.states.accepted(&vm, conditions::RESOURCES_IN_SYNC);
            let value = serde_json::to_string(&resources);
            let value = value.map_err(|error| Error::Panic(error.to_string()))?;
            Ok((Some((names::ANNOTATION_RESOURCES.to_owned(), value)), None))
        }
        // API servers without the subresource answer 404.
        Err(error) if error.is_rejection() || matches!(error.code(), Some(404 | 405)) => {
            ctx.states.rejected(&vm, conditions::RESOURCES_IN_SYNC, now);
            Ok((
                None,
                Some(rejected(format!(
                    "{error}; the operator retries the change of the pod's resources {RETRY_TEXT}"
                ))),
            ))
        }
        Err(error) => Err(error),
    }
}

/// The desired resources, with the larger requests of the last resize while the guest still has the CPUs or the memory. Amounts in
/// `spec.resources` do not depend on the guest.
fn until_released(
    vm: &VirtualMachine,
    last: &ResourceRequirements,
    mut desired: ResourceRequirements,
) -> ResourceRequirements {
    let (Some(status), Ok(sizes), None) = (&vm.status, sizes(&vm.spec.vm), &vm.spec.resources)
    else {
        return desired;
    };
    let ram = status.ram.parse::<Bytes>().unwrap_or_default();
    let wanted = sizes.current_ram.unwrap_or(sizes.maximum_ram);
    let has_more = [
        ("cpu", status.cpus > i64::from(sizes.current_cpus)),
        // The balloon differs from its target by less than 1 MiB.
        ("memory", ram.0 >= wanted.0.saturating_add(1 << 20)),
    ];
    for (name, _) in has_more.into_iter().filter(|(_, has_more)| *has_more) {
        let present = last.requests.as_ref().and_then(|it| it.get(name));
        let wanted = desired.requests.as_mut().and_then(|it| it.get_mut(name));
        if let (Some(present), Some(wanted)) = (present, wanted)
            && is_more(&present.0, &wanted.0)
        {
            wanted.clone_from(present);
        }
    }
    desired
}

async fn request(pod: &PodView, resources: Value, ctx: &VmController) -> Result<(), Error> {
    let name = pod.name_any();
    let container = json!({"name": names::container(&name), "resources": resources});
    let body = Patch::Strategic(json!({"spec": {"containers": [container]}}));
    let (writer, pods) = (ctx.scope.writer(), &ctx.caches.pods);
    let answer = writer.patch_subresource::<Pod, _>(pods, "resize", &name, &body);
    answer.await.map(drop)
}

/// The reported rejection of the resources of this generation of the VM. The status is the only record: if it could not
/// be written, the request is sent again.
fn reported_rejection(observed: &Observed) -> Option<String> {
    let present = find(observed.conditions(), conditions::RESOURCES_IN_SYNC)?;
    let is_current = present.observed_generation == observed.vm.metadata.generation;
    let is_rejection = present.reason == ConditionReason::ResizeRefused.as_str();
    (is_current && is_rejection).then(|| present.message.clone())
}

fn rejected(message: String) -> DesiredCondition {
    out_of_sync(ConditionReason::ResizeRefused, message)
}

fn out_of_sync(reason: ConditionReason, message: String) -> DesiredCondition {
    DesiredCondition {
        type_: conditions::RESOURCES_IN_SYNC,
        status: false,
        reason,
        message,
    }
}

/// The condition of a pod that does not have the desired resources after its resize was accepted.
fn difference(desired: &ResourceRequirements, pod: &PodView) -> Option<DesiredCondition> {
    if let Some(pending) = pod.condition(PodConditionType::PodResizePending) {
        let details = pending
            .message
            .as_deref()
            .unwrap_or("the kubelet does not report why the resize of the pod is pending");
        return Some(match pending.reason.as_deref() {
            Some("Infeasible") => out_of_sync(
                ConditionReason::Infeasible,
                format!(
                    "the VM's node can never provide the requested CPUs or memory ({details}); lower the CPUs or the memory of \
                     the VM"
                ),
            ),
            _ => out_of_sync(
                ConditionReason::Deferred,
                format!(
                    "the VM's node does not have the requested CPUs or memory at present ({details}); the kubelet retries \
                     the resize of the pod"
                ),
            ),
        });
    }
    let present = pod.resources()?;
    let pairs = [
        (&desired.requests, &present.requests),
        (&desired.limits, &present.limits),
    ];
    let differs = |(desired, present): (&Amounts, &Option<AmountsView>)| {
        let present = |name: &String| present.as_ref().and_then(|present| present.get(name));
        desired
            .iter()
            .flatten()
            .find(|(name, amount)| !present(name).is_some_and(|p| same_amount(&p.0, &amount.0)))
            .map(|(name, amount)| (name.clone(), amount.0.clone()))
    };
    let (name, amount) = pairs.into_iter().find_map(differs)?;
    let message = format!(
        "the operator has requested {amount} of the resource {name} for the VM's pod, but another API client has changed the \
         amount. Find the client (kubectl get pod {} -o yaml --show-managed-fields), and stop its changes",
        pod.name_any()
    );
    Some(out_of_sync(ConditionReason::Differs, message))
}

/// The patch from the resources that were requested last to the desired ones. It removes resources that are no longer
/// desired, and keeps those of other programs. A new pod's request defaults to its limit; a resize has no defaults, so
/// the patch contains the request.
fn patch(last: &ResourceRequirements, desired: &ResourceRequirements) -> Value {
    let part = |last: &Amounts, desired: &Amounts| -> Map<String, Value> {
        let removed = last
            .iter()
            .flatten()
            .map(|(name, _)| (name.clone(), Value::Null));
        let desired = desired.iter().flatten();
        let desired = desired.map(|(name, amount)| (name.clone(), amount.0.clone().into()));
        removed.chain(desired).collect()
    };
    let requests = |of: &ResourceRequirements| -> Amounts {
        let limits = of.limits.iter().flatten();
        let amounts = limits.chain(of.requests.iter().flatten());
        Some(amounts.map(|(k, v)| (k.clone(), v.clone())).collect())
    };
    let parts = [
        ("requests", part(&requests(last), &requests(desired))),
        ("limits", part(&last.limits, &desired.limits)),
    ];
    let parts = parts.into_iter().filter(|(_, part)| !part.is_empty());
    parts
        .map(|(name, part)| (name.to_owned(), Value::Object(part)))
        .collect::<Map<_, _>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::vm::fixtures::vm;

    fn resources(value: Value) -> ResourceRequirements {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn requests_fall_when_the_guest_has_released_cpus_and_memory() {
        let amounts = |cpu: &str, memory: &str| {
            resources(json!({"requests": {"cpu": cpu, "memory": memory}}))
        };
        let (last, desired) = (amounts("2", "4Gi"), amounts("500m", "1Gi"));
        let request = |cpus: i64, ram: u64| {
            let mut vm = vm(json!({"currentCpus": 1, "maximumRam": "4Gi", "currentRam": "1Gi"}));
            let status = vm.status.as_mut().unwrap();
            (status.cpus, status.ram) = (cpus, ram.to_string());
            until_released(&vm, &last, desired.clone())
        };
        assert_eq!(request(2, 4 << 30), last);
        assert_eq!(request(1, 4 << 30), amounts("500m", "4Gi"));
        assert_eq!(request(1, (1 << 30) + 4096), desired);
    }

    #[test]
    fn limit_without_request_becomes_the_request_of_an_existing_pod() {
        let last = resources(json!({"limits": {"memory": "41"}}));
        let desired =
            resources(json!({"limits": {"memory": "101", "cpu": "2"}, "requests": {"cpu": "1"}}));
        let patched = patch(&last, &desired);
        assert_eq!(patched["requests"], json!({"memory": "101", "cpu": "1"}));
        assert_eq!(patched["limits"], json!({"memory": "101", "cpu": "2"}));
        assert_eq!(
            patch(&desired, &last)["requests"],
            json!({"memory": "41", "cpu": null})
        );
    }
}
