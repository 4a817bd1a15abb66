//! (pure) Pools and assignments as the console stores them.

use crate::api::conditions::{Reason, find};
use crate::api::pool::{
    AssignedVm, BOUND, BoundReason, PoolPermission, Queued, VmAssignment, VmAssignmentSpec, VmPool,
};
use crate::api::vm::Grant;
use crate::k8s::store::trim::key_and_versions;
use crate::web::rights::Viewer;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::Resource;
use serde::Deserialize;

/// A pool.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = VmPool)]
#[allow(missing_docs)]
pub struct PoolView {
    #[serde(deserialize_with = "key_and_versions")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: PoolSpecView,
    #[serde(default)]
    pub status: PoolStatusView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct PoolSpecView {
    pub permissions: Vec<PoolPermission>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct PoolStatusView {
    pub free: i64,
    pub waiting: i64,
    pub conditions: Vec<Condition>,
}

/// An assignment.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = VmAssignment)]
#[allow(missing_docs)]
pub struct AssignmentView {
    #[serde(deserialize_with = "key_and_versions")]
    pub metadata: ObjectMeta,
    pub spec: VmAssignmentSpec,
    #[serde(default)]
    pub status: AssignmentStatusView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct AssignmentStatusView {
    pub vm: Option<AssignedVm>,
    pub expires: Option<Time>,
    pub conditions: Vec<Condition>,
}

impl PoolView {
    /// A pool of which only the metadata is known.
    #[must_use]
    pub fn without_rights(metadata: ObjectMeta) -> Option<Self> {
        Some(Self {
            metadata,
            spec: PoolSpecView::default(),
            status: PoolStatusView::default(),
        })
    }

    /// Whether the viewer may request a VM of the pool.
    #[must_use]
    pub fn may_request(&self, viewer: &Viewer<'_>) -> bool {
        let rights = viewer.on_pool(&self.spec.permissions);
        rights.include(Grant::AccessConsole) || rights.include(Grant::Start)
    }
}

impl AssignmentView {
    /// The assignment in the queue of its pool. None if it does not wait.
    #[must_use]
    pub fn queued(&self) -> Option<Queued<'_>> {
        let metadata = &self.metadata;
        let bound = find(&self.status.conditions, BOUND);
        // The operator has compared the name; a hash for each assignment and page would be expensive.
        let is_named_well =
            bound.is_none_or(|bound| bound.reason != BoundReason::NameMismatch.as_str());
        let waits = metadata.deletion_timestamp.is_none()
            && Queued::waits(is_named_well, self.status.vm.as_ref());
        let created = metadata.creation_timestamp.as_ref()?.0;
        let name = metadata.name.as_deref()?;
        waits.then_some(Queued { created, name })
    }

    /// An assignment of which only the metadata is known.
    #[must_use]
    pub fn without_rights(metadata: ObjectMeta) -> Option<Self> {
        let (pool, user) = (String::new(), String::new());
        Some(Self {
            metadata,
            spec: VmAssignmentSpec { pool, user },
            status: AssignmentStatusView::default(),
        })
    }
}
