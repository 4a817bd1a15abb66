//! (pure) A memory limit of the pod that guest and QEMU can exceed. The kernel then kills QEMU, possibly long after the start.

use crate::api::quantity::Bytes;
use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition};
use k8s_openapi::api::core::v1::ResourceRequirements;

/// The condition of a VM whose memory limit is smaller than the memory of guest and QEMU. The guest may never use all of its memory, so
/// the VM starts anyway.
#[must_use]
pub fn too_low(resources: &ResourceRequirements, needed: Bytes) -> Option<DesiredCondition> {
    let limit = resources.limits.as_ref()?.get("memory")?;
    let limit: Bytes = limit.0.parse().ok()?;
    let rounded = Bytes(needed.0.next_multiple_of(1 << 20));
    (limit < needed).then(|| DesiredCondition {
        type_: conditions::MEMORY_LIMIT_SUFFICIENT,
        status: false,
        reason: ConditionReason::LimitTooLow,
        message: format!(
            "spec.resources.limits.memory is {}, but the guest and QEMU need up to {}. At the limit, the kernel kills QEMU, and the \
             guest loses unsaved data. Raise the limit, or remove the field",
            limit.to_quantity(),
            rounded.to_quantity()
        ),
    })
}
