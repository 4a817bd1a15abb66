//! The kind `VmAssignment`.

#![allow(
    clippy::duplicated_attributes,
    reason = "each printer column repeats the names of its parts"
)]

use crate::api::conditions::Reason;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// Assignment of a VM of a pool to a user. The fields `pool` and `user` are immutable.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "vmoperator.jdrupes.org",
    version = "v1",
    kind = "VmAssignment",
    plural = "vmassignments",
    singular = "vmassignment",
    namespaced,
    status = "VmAssignmentStatus",
    derive = "PartialEq",
    doc = "Assigns a VM of a pool to a user. The name of the object is computed from pool and user, so that a user has at most \
        one VM of each pool. To create the object, run `vm-operator assignment POOL USER | kubectl apply -f -`. To give the \
        VM back to the pool, delete the object.",
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.pool"),
    printcolumn(name = "User", type_ = "string", json_path = ".spec.user"),
    printcolumn(
        name = "VM",
        type_ = "string",
        json_path = ".status.vm.name",
        description = "VM that the user has or is about to get"
    ),
    printcolumn(
        name = "State",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Bound")].reason"#,
        description = "Reason of the condition Bound: Assigned if the user has the VM"
    ),
    printcolumn(
        name = "Expires",
        type_ = "string",
        json_path = ".status.expires",
        description = "Time from which another user can get the VM; empty while a console is connected"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct VmAssignmentSpec {
    /// Name of the pool.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[^\x00-\x1f\x7f]+$"))]
    pub pool: String,
    /// Name of the user.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[^\x00-\x1f\x7f]+$"))]
    pub user: String,
}

/// Observed state of the assignment. Written by the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VmAssignmentStatus {
    /// VM that is reserved for the user. The user can use the VM when the condition `Bound` is `True`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<AssignedVm>,
    /// Time of the last use: the last start or end of a console connection. Without a connection since the assignment, the
    /// time of the assignment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used: Option<Time>,
    /// Time from which another user can get the VM. Absent while a console is connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
    /// The condition `Bound`.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A VM, identified for its lifetime.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct AssignedVm {
    /// Name of the VM.
    pub name: String,
    /// UID of the VM.
    pub uid: String,
}

/// Reasons of the condition `Bound` of an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum BoundReason {
    /// False: the operator has not processed the assignment. It does not run, or the pool does not exist.
    Pending,
    /// True: the user has the VM.
    Assigned,
    /// False: a VM is reserved, and the operator gives it to the user.
    Binding,
    /// False: no member is available.
    Waiting,
    /// False: the name of the object does not belong to pool and user.
    NameMismatch,
}

impl Reason for BoundReason {
    fn as_str(self) -> &'static str {
        self.into()
    }
}
