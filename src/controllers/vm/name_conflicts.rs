//! (client) PVC names that two VMs generate, from the stores. No request is made.

use crate::api::VirtualMachine;
use crate::api::vm::names;
use crate::controllers::vm::claim_names::{ConflictingVm, claim_name_owner, claim_names, needs};
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::views::owner_of;
use crate::k8s::key::ObjectKey;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Names of PVCs that another VM generates, too, each with that VM if the name belongs to it. It does not consider the labels of a
/// present PVC.
pub fn name_conflicts(vm: &VirtualMachine, ctx: &VmController) -> BTreeMap<String, Option<String>> {
    let (key, mut name_conflicts) = (ObjectKey::of(vm), BTreeMap::new());
    let has_pod = |name: &str| {
        let pod = ctx.caches.pods.get(&key.sibling(name));
        pod.is_some_and(|pod| owner_of(&*pod).as_deref() == Some(name) && !pod.has_ended())
    };
    let claims = claim_names(vm).flat_map(|[legacy, claim]| [(legacy, true), (claim, false)]);
    for (claim, is_legacy) in claims {
        let present = ctx.caches.claims.get(&ctx.scope.key(&claim));
        // The operator creates no PVC with a legacy name.
        if is_legacy && present.is_none() {
            continue;
        }
        let others = names::vms_of_claim(&claim).filter(|other| *other != key.name());
        let others = others.map(|other| (other, ctx.vms.get(&key.sibling(other))));
        let is_unlabelled = present.as_deref().is_some_and(|it| owner_of(it).is_none());
        let is_conflicting = |(other, vm): &(&str, Option<Arc<VirtualMachine>>)| match vm {
            Some(vm) => needs(vm, &claim, present.as_deref()),
            None => is_unlabelled && has_pod(other),
        };
        let others: Vec<_> = others.filter(is_conflicting).collect();
        if others.is_empty() {
            continue;
        }
        let others = others.iter().map(|(name, vm)| (*name, vm.as_deref()));
        let all = others.chain([(key.name(), Some(vm))]);
        let all = all.map(|(name, vm)| ConflictingVm {
            name,
            vm,
            has_pod: has_pod(name),
        });
        let owner = claim_name_owner(&claim, &all.collect::<Vec<_>>(), present.as_deref());
        let other = owner.filter(|owner| *owner != key.name());
        let other = other.map(str::to_owned);
        name_conflicts.insert(claim, other);
    }
    name_conflicts
}
