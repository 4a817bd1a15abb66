//! (pure) Requests and limits of a pod, as they were requested last. The API server adds and changes them in a running pod. It removes none.

use crate::api::vm::names;
use crate::k8s::store::packed_map::Texts;
use crate::k8s::views::PodView;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use std::collections::BTreeMap;

/// Requests or limits.
pub type Amounts = Option<BTreeMap<String, Quantity>>;

/// The resources that a resize can change.
const RESIZED: [&str; 2] = ["cpu", "memory"];

/// The desired requests and limits, with those of the last request that are no longer desired.
#[must_use]
pub fn with_removed(
    last: &ResourceRequirements,
    desired: &ResourceRequirements,
) -> ResourceRequirements {
    let kept = |last: &Amounts, desired: &Amounts| -> Amounts {
        let of_last = last.iter().flatten();
        let of_last = of_last.filter(|(name, _)| RESIZED.contains(&name.as_str()));
        let all = of_last.chain(desired.iter().flatten());
        let all: BTreeMap<_, _> = all.map(|(name, it)| (name.clone(), it.clone())).collect();
        (desired.is_some() || !all.is_empty()).then_some(all)
    };
    ResourceRequirements {
        requests: kept(&last.requests, &desired.requests),
        limits: kept(&last.limits, &desired.limits),
        ..desired.clone()
    }
}

/// The fields of the desired pod that were removed from the spec since the start of the pod, and that it still has.
#[must_use]
pub fn removed(desired: &Pod, pod: &PodView) -> Vec<String> {
    let (Some(desired), Some(last)) =
        (recorded(desired.annotations()), recorded(pod.annotations()))
    else {
        return Vec::new();
    };
    let kept = |part: &str, last: &Amounts, desired: &Amounts| -> Vec<String> {
        let is_removed = |name: &&&str| {
            let has =
                |amounts: &Amounts| amounts.as_ref().is_some_and(|it| it.contains_key(**name));
            has(last) && !has(desired)
        };
        let names = RESIZED.iter().filter(is_removed);
        names
            .map(|name| format!("spec.resources.{part}.{name}"))
            .collect()
    };
    [
        kept("requests", &last.requests, &desired.requests),
        kept("limits", &last.limits, &desired.limits),
    ]
    .concat()
}

/// The requests and limits in a pod's annotation. Pods of the Java VM-Operator have none.
#[must_use]
pub fn recorded(annotations: &impl Texts) -> Option<ResourceRequirements> {
    serde_json::from_str(annotations.text(names::ANNOTATION_RESOURCES)?).ok()
}
