//! (client) The pod's CPU and memory requests follow the machine's size while it runs, by the pod's `resize`
//! subresource.
//!
//! What was granted last stands in the pod's annotation: who changes a pod's resources from outside is not fought with.
//! What was refused stands in the VM's condition: it is asked for again when the VM changes, and from time to time.

use crate::api::conditions::{self, ConditionReason, Wanted};
use crate::api::quantity::same_amount;
use crate::api::vm::names;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::state::REJECTION_RETRY_TEXT;
use crate::controllers::vm::views::{AmountsView, PodView};
use crate::k8s::error::Error;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

type Amounts = Option<BTreeMap<String, Quantity>>;

/// CPU and memory as an annotation tells them; nothing for a pod without it, which is not ours.
fn asked(annotations: &BTreeMap<String, String>) -> Option<ResourceRequirements> {
    serde_json::from_str(annotations.get(names::ANNOTATION_RESOURCES)?).ok()
}

/// Asks for the resources that the pod should have. Gives the annotation that says so afterwards, and what there is to
/// tell.
///
/// # Errors
/// If the API server could not be asked; its refusal is something to tell.
pub(super) async fn follow(
    wanted: &Pod,
    pod: &PodView,
    observed: &Observed,
    ctx: &Context,
) -> Result<(BTreeMap<String, String>, Option<Wanted>), Error> {
    let (Some(resources), Some(last)) = (asked(wanted.annotations()), asked(pod.annotations()))
    else {
        return Ok((BTreeMap::new(), None));
    };
    let (vm, now) = (observed.key(), (ctx.cluster.instant)());
    if resources == last {
        ctx.states.accepted(&vm, conditions::RESOURCES_IN_SYNC);
        return Ok((BTreeMap::new(), tell(&resources, pod)));
    }
    let remembered = refused(observed).filter(|_| {
        ctx.states
            .is_put_off(&vm, conditions::RESOURCES_IN_SYNC, now)
    });
    if let Some(message) = remembered {
        return Ok((
            BTreeMap::new(),
            Some(out_of_sync(ConditionReason::ResizeRefused, message)),
        ));
    }
    let container =
        json!({"name": names::container(&pod.name_any()), "resources": patch(&last, &resources)});
    let body = json!({"spec": {"containers": [container]}});
    let annotation = wanted
        .annotations()
        .get(names::ANNOTATION_RESOURCES)
        .cloned()
        .unwrap_or_default();
    let annotations = [(names::ANNOTATION_RESOURCES.to_owned(), annotation)].into();
    match ctx
        .writer()
        .patch_subresource::<Pod, _>(&ctx.caches.pods, "resize", &pod.name_any(), &body)
        .await
    {
        Ok(_) => {
            ctx.states.accepted(&vm, conditions::RESOURCES_IN_SYNC);
            Ok((annotations, None))
        }
        // Without the subresource, the path is not found.
        Err(error) if error.is_rejection() || matches!(error.code(), Some(404 | 405)) => {
            ctx.states.rejected(&vm, conditions::RESOURCES_IN_SYNC, now);
            let message = format!(
                "{error}; they are asked for again {REJECTION_RETRY_TEXT}, and are the pod's at the next start of the VM at the latest"
            );
            Ok((
                BTreeMap::new(),
                Some(out_of_sync(ConditionReason::ResizeRefused, message)),
            ))
        }
        Err(error) => Err(error),
    }
}

/// With which words the API server has refused the resources of this generation of the VM. The status is what remembers
/// it: where it could not be written, the API server is asked again, and so the words are never lost.
fn refused(observed: &Observed) -> Option<String> {
    let told = conditions::find(observed.conditions(), conditions::RESOURCES_IN_SYNC)?;
    let of_now = told.observed_generation == observed.vm.metadata.generation;
    (of_now && told.reason == ConditionReason::ResizeRefused.as_str()).then(|| told.message.clone())
}

fn out_of_sync(reason: ConditionReason, message: String) -> Wanted {
    Wanted {
        type_: conditions::RESOURCES_IN_SYNC,
        status: false,
        reason,
        message,
    }
}

/// What there is to tell of a pod whose resources have been asked for.
fn tell(resources: &ResourceRequirements, pod: &PodView) -> Option<Wanted> {
    if let Some(pending) = pod.condition("PodResizePending") {
        let words = pending.message.as_deref().unwrap_or("no details given");
        return Some(match pending.reason.as_deref() {
            Some("Infeasible") => {
                let next = "make the machine smaller, or move it to another node by a restart";
                out_of_sync(
                    ConditionReason::Infeasible,
                    format!("the node cannot give the pod its requests ({words}); {next}"),
                )
            }
            _ => out_of_sync(
                ConditionReason::Deferred,
                format!(
                    "the node cannot give the pod its requests now ({words}); the kubelet tries again"
                ),
            ),
        });
    }
    let present = pod.resources()?;
    let lacking = [
        (&resources.requests, &present.requests),
        (&resources.limits, &present.limits),
    ];
    let differs = |(wanted, present): (&Amounts, &Option<AmountsView>)| {
        let present = |name: &String| present.as_ref().and_then(|present| present.get(name));
        wanted
            .iter()
            .flatten()
            .find(|(name, amount)| !present(name).is_some_and(|p| same_amount(&p.0, &amount.0)))
            .map(|(name, amount)| (name.clone(), amount.0.clone()))
    };
    let (name, amount) = lacking.into_iter().find_map(differs)?;
    let message = format!(
        "the pod's {name} is not {amount}, as was asked for; something else in the cluster has set it"
    );
    Some(out_of_sync(ConditionReason::Differs, message))
}

/// The patch from what was asked for last to what is wanted. What is not wanted any more is taken away: the API server
/// says whether that can be. What others have added stays. Where there is a limit and no request, the API server makes the limit
/// the request of a new pod, but not of one that is there.
fn patch(last: &ResourceRequirements, wanted: &ResourceRequirements) -> Value {
    let part = |last: &Amounts, wanted: &Amounts| -> Map<String, Value> {
        let gone = last
            .iter()
            .flatten()
            .map(|(name, _)| (name.clone(), Value::Null));
        gone.chain(
            wanted
                .iter()
                .flatten()
                .map(|(name, amount)| (name.clone(), amount.0.clone().into())),
        )
        .collect()
    };
    let requests = |of: &ResourceRequirements| -> Amounts {
        Some(
            of.limits
                .iter()
                .flatten()
                .chain(of.requests.iter().flatten())
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
        )
    };
    let parts = [
        ("requests", part(&requests(last), &requests(wanted))),
        ("limits", part(&last.limits, &wanted.limits)),
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

    fn resources(value: Value) -> ResourceRequirements {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_limit_without_a_request_is_the_request_also_of_a_pod_that_is_there() {
        let last = resources(json!({"limits": {"memory": "41"}}));
        let wanted =
            resources(json!({"limits": {"memory": "101", "cpu": "2"}, "requests": {"cpu": "1"}}));
        let patched = patch(&last, &wanted);
        assert_eq!(patched["requests"], json!({"memory": "101", "cpu": "1"}));
        assert_eq!(patched["limits"], json!({"memory": "101", "cpu": "2"}));
        assert_eq!(
            patch(&wanted, &last)["requests"],
            json!({"memory": "41", "cpu": null})
        );
    }
}
