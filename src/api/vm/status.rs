//! `status`: each field says who writes it.

use crate::api::conditions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a virtual machine is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineStatus {
    /// Generation of the spec that the operator has seen; 0 before it has. Operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Failed starts since the VM last ran well. Operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts: Option<Restarts>,
    /// The `spec.vm.restartRequest` that was carried out last. Operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_restart_request: Option<i64>,
    /// The `spec.vm.resetRequest` that was carried out last. Runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_reset_request: Option<i64>,
    /// Version of the runner. Runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_version: Option<String>,
    /// Number of CPUs that the guest has. Runner, and the operator once the VM has ended.
    pub cpus: i64,
    /// Memory that the guest has. Runner, and the operator once the VM has ended.
    pub ram: String,
    /// Node that the VM runs on. Runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Address of the VM's pod. Runner.
    #[serde(rename = "podIP", skip_serializing_if = "Option::is_none")]
    pub pod_ip: Option<String>,
    /// Addresses that the guest has, as its agent tells them; without those of loopback and link-local ones. Runner.
    #[serde(rename = "guestIPs", skip_serializing_if = "Vec::is_empty")]
    pub guest_ips: Vec<String>,
    /// Host of the connected console. Runner, and the operator once the VM has ended.
    pub console_client: String,
    /// User who last asked for a console; written by console front ends.
    pub console_user: String,
    /// User who is logged in in the guest. Runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logged_in_user: Option<String>,
    /// Counts the changes of the display's password; -1 where there is none. Runner.
    pub display_password_serial: i64,
    /// What the guest's agent says of its operating system. Runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::api::vm::any_object")]
    pub osinfo: Option<Map<String, Value>>,
    /// To whom a pool has given the VM.
    pub assignment: Assignment,
    /// Conditions, each written by the one that knows.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl Default for VirtualMachineStatus {
    fn default() -> Self {
        Self {
            // None yet, which differs from every generation: a new VM is not taken for what it should become.
            observed_generation: Some(0),
            restarts: None,
            observed_restart_request: None,
            observed_reset_request: None,
            runner_version: None,
            cpus: 0,
            ram: "0".to_owned(),
            node_name: None,
            pod_ip: None,
            guest_ips: Vec::new(),
            console_client: String::new(),
            console_user: String::new(),
            logged_in_user: None,
            display_password_serial: 0,
            osinfo: None,
            assignment: Assignment::default(),
            conditions: conditions::initial(),
        }
    }
}

/// To whom a pool has given the VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Assignment {
    /// The pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// To whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// When that user last used it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used: Option<String>,
}

/// Reason of an end: somebody else than the operator has deleted the pod.
pub const POD_DELETED: &str = "PodDeleted";

/// The last end of a VM that ended by itself, or whose pod was deleted by others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Restarts {
    /// Ends in a row, each before the VM had run for 10 min; the next start waits 1 s, 2 s, 4 s … 5 min.
    pub attempts: u32,
    /// UID of the pod whose end was counted last.
    pub pod_uid: String,
    /// Reason of the last end.
    pub reason: String,
    /// What is known of the last end.
    #[serde(default)]
    pub message: String,
    /// When the last end was.
    pub time: Time,
}
