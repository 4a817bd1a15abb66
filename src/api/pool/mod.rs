//! The kinds `VmPool` (`vmpools.vmoperator.jdrupes.org`) and `VmAssignment` (`vmassignments.vmoperator.jdrupes.org`).
//!
//! A pool is the set of VMs that name it in `spec.pools`. An assignment gives one VM of a pool to one user. It
//! names the VM by UID, and `status.assignment` of the VM names the assignment by UID. Both must agree before the user
//! has a right on the VM.
//!
//! `VmPool` admits the objects of the Java VM-Operator with the same meaning. `VmAssignment` does not exist there.

#![allow(
    clippy::duplicated_attributes,
    reason = "each printer column repeats the names of its parts"
)]

mod assignment;
mod definition;
pub mod names;
mod queue;
mod retention;
mod why;

pub use assignment::{AssignedVm, BoundReason, VmAssignment, VmAssignmentSpec, VmAssignmentStatus};
pub use definition::definitions;
pub use queue::{QueuePlace, Queued};
pub use retention::{InvalidRetention, Retention};
pub use why::Why;

use crate::api::conditions::Reason;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// Condition type of a pool: its assignments can be served.
pub const READY: &str = "Ready";
/// Condition type of an assignment: the user has the VM.
pub const BOUND: &str = "Bound";

/// Rules of a pool. A VM belongs to the pool if `spec.pools` of the VM contains the name of the pool.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "vmoperator.jdrupes.org",
    version = "v1",
    kind = "VmPool",
    plural = "vmpools",
    singular = "vmpool",
    namespaced,
    status = "VmPoolStatus",
    derive = "PartialEq",
    doc = "A pool of VMs that users get on request, one VM for each user.",
    printcolumn(
        name = "Members",
        type_ = "integer",
        json_path = ".status.members",
        description = "VMs of the pool"
    ),
    printcolumn(
        name = "Free",
        type_ = "integer",
        json_path = ".status.free",
        description = "Unassigned VMs that the next user can get immediately"
    ),
    printcolumn(
        name = "Assigned",
        type_ = "integer",
        json_path = ".status.assigned",
        description = "VMs that are assigned to users of the pool"
    ),
    printcolumn(
        name = "Waiting",
        type_ = "integer",
        json_path = ".status.waiting",
        description = "Users who wait for a VM"
    ),
    printcolumn(
        name = "State",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        description = "Reason of the condition Ready"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct VmPoolSpec {
    /// Time after which another user can get an assigned VM: a duration after the last use, such as `PT4H` or `P1D`, or a timestamp,
    /// such as `2030-01-31T18:00:00Z`. Years, months, weeks and days follow the calendar in UTC. An assignment does not
    /// expire while a console of its VM is connected. A change takes effect immediately.
    #[serde(default = "one_hour")]
    #[schemars(length(max = 64))]
    pub retention: String,
    /// Whether the desktop agent in the guest logs the assigned user in. A change takes effect immediately.
    #[serde(default)]
    pub login_on_assignment: bool,
    /// Users and roles that may use the pool. Console front ends enforce the permissions. The operator does not evaluate them.
    #[schemars(length(max = 4096))]
    pub permissions: Vec<PoolPermission>,
    /// Number of unassigned VMs that the operator keeps running, so that users do not wait for a start. A VM that
    /// restarts counts as running. A VM with a problem gets one replacement, and at most this number of VMs are
    /// replaced. The operator does not stop surplus VMs. A change takes effect immediately.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000))]
    pub prewarm: i64,
    /// Action on a VM at the end of its assignment. `Restart` is recommended, because it ends the session of the previous
    /// user. If another user waits for a VM, `Stop` does not stop the VM. Without `loginOnAssignment`, the next user
    /// then gets the session of the previous user.
    #[serde(default)]
    pub on_release: OnRelease,
    /// Action on an expired assignment. `Keep`: the user has the VM until another user needs it. `Release`: the assignment ends.
    #[serde(default)]
    pub on_expiry: OnExpiry,
}

fn one_hour() -> String {
    "PT1h".to_owned()
}

/// Action on a VM at the end of its assignment.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[allow(missing_docs)]
pub enum OnRelease {
    #[default]
    Keep,
    Stop,
    Restart,
}

/// Action on an expired assignment.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[allow(missing_docs)]
pub enum OnExpiry {
    #[default]
    Keep,
    Release,
}

/// Permissions of a user or of a role on the assigned VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolPermission {
    /// Name of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Name of the role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Permitted actions; `*` stands for all of them.
    #[serde(default = "access_console")]
    #[schemars(length(max = 64))]
    pub may: Vec<PoolGrant>,
}

fn access_console() -> Vec<PoolGrant> {
    vec![PoolGrant::AccessConsole]
}

/// A permission on the assigned VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum PoolGrant {
    #[serde(rename = "start")]
    Start,
    #[serde(rename = "stop")]
    Stop,
    #[serde(rename = "reset")]
    Reset,
    #[serde(rename = "accessConsole")]
    AccessConsole,
    #[serde(rename = "*")]
    All,
}

/// Observed state of the pool. Written by the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VmPoolStatus {
    /// Generation of the spec that the operator has processed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of VMs that name this pool in their `spec.pools`.
    pub members: i64,
    /// Number of unassigned VMs of the pool that the next user can get immediately.
    pub free: i64,
    /// Number of VMs that are assigned to users of the pool. Expired assignments do not count.
    pub assigned: i64,
    /// Number of VMs with an expired assignment. The next user can get such a VM.
    pub expired: i64,
    /// Number of users who wait for a VM.
    pub waiting: i64,
    /// Number of VMs of the pool that no user can get at present, for example because of a failure, a restart or an
    /// assignment by another pool. The message of the condition `Ready` names the causes.
    pub unavailable: i64,
    /// The condition `Ready`. Its message explains why users wait.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Reasons of the condition `Ready` of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum PoolReason {
    /// True: a member is free, or has an expired assignment.
    Usable,
    /// True: each member is in use. New users wait.
    Exhausted,
    /// True: no VM names the pool in `spec.pools`.
    NoMembers,
    /// False: `spec.retention` is not a time. Assignments of the pool do not expire.
    RetentionInvalid,
    /// False: the API server rejects a write of the operator; the message has its answer.
    WriteRejected,
}

impl Reason for PoolReason {
    fn as_str(self) -> &'static str {
        self.into()
    }
}
