//! A projection of a VM with only the fields that the controller of pools reads, so that a thousand VMs fit into a few megabytes.

use crate::api::VirtualMachine;
use crate::api::pool::{VmAssignment, VmAssignmentSpec, VmAssignmentStatus};
use crate::api::vm::conditions;
use crate::api::vm::{Assignment, GuestShutdown, State};
use crate::k8s::store::trim::{key_and_versions, metadata};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Resource;
use serde::{Deserialize, Deserializer};

/// An assignment.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = VmAssignment)]
#[allow(missing_docs)]
pub struct AssignmentView {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    pub spec: VmAssignmentSpec,
    #[serde(default)]
    pub status: VmAssignmentStatus,
}

/// A VM.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = VirtualMachine)]
#[allow(missing_docs)]
pub struct MemberView {
    #[serde(deserialize_with = "key_and_versions")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: MemberSpecView,
    #[serde(default)]
    pub status: MemberStatusView,
}

impl MemberView {
    /// Whether the VM belongs to a pool, a pool has assigned it, or it must restart after its last assignment.
    #[must_use]
    pub fn concerns_pools(&self) -> bool {
        let status = &self.status;
        !self.spec.pools.is_empty()
            || status.assignment.pool.is_some()
            || status.assignment.restart > status.observed_restart_request
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct MemberSpecView {
    pub pools: Vec<String>,
    pub vm: MachineView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct MachineView {
    pub state: Option<State>,
    pub restart_request: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct MemberStatusView {
    pub assignment: Assignment,
    pub observed_restart_request: Option<i64>,
    pub guest_shutdown: Option<GuestShutdown>,
    #[serde(deserialize_with = "read_conditions")]
    pub conditions: Box<[Condition]>,
}

/// The conditions that the controller reads.
const READ: [&str; 3] = [
    conditions::READY,
    conditions::RUNNING,
    conditions::CONSOLE_CONNECTED,
];

fn read_conditions<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Box<[Condition]>, D::Error> {
    let all = Vec::<Condition>::deserialize(deserializer)?.into_iter();
    Ok(all
        .filter(|condition| READ.contains(&condition.type_.as_str()))
        .map(|condition| Condition {
            message: String::new(),
            ..condition
        })
        .collect())
}
