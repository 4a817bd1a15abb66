//! `status`: each description names the source of the field. The operator copies fields that a runner reports from its `VmReport`.
//! Runners of the Java VM-Operator write them into the VM.

use crate::api::vm::conditions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Observed state of the virtual machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineStatus {
    /// Generation of the spec that the operator has processed; 0 if none. Written by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Failed starts and unexpected stops since the VM last ran for 10 min. Written by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts: Option<Restarts>,
    /// Last value of `spec.vm.restartRequest` that was completed. A stopped VM completes a request at once. Written by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_restart_request: Option<i64>,
    /// Record of a shutdown by the guest, if `spec.guestShutdownStops` is true and the operator's setting
    /// `guestShutdownRecord` is `status`. The VM remains stopped until its spec changes, which increases
    /// `metadata.generation`. Written by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_shutdown: Option<GuestShutdown>,
    /// Last value of `spec.vm.resetRequest` that a reset or a start of the VM has fulfilled. Reported by the runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_reset_request: Option<i64>,
    /// Version of `vm-runner` in the VM's pod. Reported by the runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_version: Option<String>,
    /// Number of CPUs that the guest uses, as the guest agent reports. Without a guest agent, the number of CPUs that
    /// QEMU has. The runner reports the number. The operator sets it to 0 after the VM has stopped.
    pub cpus: i64,
    /// Current memory size of the guest. The runner reports the size. The operator sets it to 0 after the VM has stopped.
    pub ram: String,
    /// Node that the VM runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// IP address of the VM's pod.
    #[serde(rename = "podIP", skip_serializing_if = "Option::is_none")]
    pub pod_ip: Option<String>,
    /// IP addresses of the guest, as the guest agent reports them. Loopback, link-local and multicast
    /// addresses are omitted. Reported by the runner.
    #[serde(rename = "guestIPs", skip_serializing_if = "Vec::is_empty")]
    pub guest_ips: Vec<String>,
    /// Address of the connected SPICE client, or else of the browser with a console of the VM. Empty if no client is connected.
    /// Reported by the runner. The operator clears the field after the VM has stopped.
    pub console_client: String,
    /// User that last requested a console. Written by console front ends. While a user of the web console is connected, it is the
    /// newest of them, as the runner reports.
    pub console_user: String,
    /// Connected users, the newest first. Reported by the runner.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub consoles: Vec<ConsoleConnection>,
    /// User that the desktop agent has logged in to the guest. Reported by the runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logged_in_user: Option<String>,
    /// Number of times that the display's password has changed; -1 if the display has no password. Reported by the runner.
    pub display_password_serial: i64,
    /// Number of boots of the guest since the start of the VM's pod. A boot counts when the guest agent first answers after a
    /// start or a reset. Reported by the runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boots: Option<i64>,
    /// Number of resets of the guest since the start of the VM's pod, including reboots by the guest. Reported by the runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resets: Option<i64>,
    /// Number of connections of SPICE clients and of consoles in browsers since the start of the VM's pod. Reported by the runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub console_connections: Option<i64>,
    /// Public key of the runner on the port `console` of the VM's pod: a SubjectPublicKeyInfo in base64. Web consoles connect
    /// to no runner with another key. Reported by the runner. The operator removes the field after the VM has stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub console_key: Option<String>,
    /// Operating system of the guest, as the guest agent reports it. Reported by the runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::api::vm::any_object")]
    pub osinfo: Option<Map<String, Value>>,
    /// Assignment of the VM to a user by a pool. Written by the operator's controller of pools.
    pub assignment: Assignment,
    /// PVCs of disks and runner data that pods of the VM mount or have mounted. The VM does not start with a new, empty PVC in
    /// place of one of them. Written by the operator before it creates a pod. After the deletion of a PVC, its entry is removed if no
    /// disk of the VM uses that name, or if the loss is accepted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["claimName"]))]
    pub volumes: Vec<UsedVolume>,
    /// Conditions of the VM. Each condition is written by the operator or reported by the runner.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl Default for VirtualMachineStatus {
    fn default() -> Self {
        Self {
            // No generation is 0, so that clients see that the operator has not processed a new VM.
            observed_generation: Some(0),
            restarts: None,
            observed_restart_request: None,
            guest_shutdown: None,
            observed_reset_request: None,
            runner_version: None,
            cpus: 0,
            ram: "0".to_owned(),
            node_name: None,
            pod_ip: None,
            guest_ips: Vec::new(),
            console_client: String::new(),
            console_user: String::new(),
            consoles: Vec::new(),
            logged_in_user: None,
            display_password_serial: 0,
            boots: None,
            resets: None,
            console_connections: None,
            console_key: None,
            osinfo: None,
            assignment: Assignment::default(),
            volumes: Vec::new(),
            conditions: conditions::initial(),
        }
    }
}

/// A user that is connected to a console of the VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConsoleConnection {
    /// Name of the user in the web console. Empty for a SPICE client that did not get its password from there.
    #[schemars(length(max = 253), regex(pattern = r"^[^\x00-\x1f]*$"))]
    pub user: String,
    /// Address of the browser or SPICE client.
    #[schemars(length(max = 64), regex(pattern = r"^[0-9A-Za-z.:%_-]*$"))]
    pub client: String,
    /// `Screen` and `Serial` are consoles in a browser. `Spice` is a SPICE client.
    pub protocol: ConsoleProtocol,
    /// Time of the connection.
    pub since: Time,
}

/// Protocol of a console.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum ConsoleProtocol {
    Screen,
    Serial,
    Spice,
}

/// Assignment of the VM to a user by a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Assignment {
    /// Name of the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// User that the VM is assigned to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Time of the assignment. The time of the last use is in `status.lastUsed` of the `VmAssignment`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used: Option<String>,
    /// UID of the `VmAssignment`. Absent in an assignment by the Java VM-Operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Whether the desktop agent logs the assigned user in, instead of the user of `spec.vm.display.loggedInUser`.
    #[serde(skip_serializing_if = "is_false")]
    pub login: bool,
    /// Value of `spec.vm.restartRequest` for the restart between two users, if the pool has `onRelease: Restart`. The next
    /// user gets the VM only when `status.observedRestartRequest` has reached this value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart: Option<i64>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(value: &bool) -> bool {
    !value
}

/// A PVC that pods of the VM mount or have mounted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsedVolume {
    /// Name of the PVC.
    pub claim_name: String,
    /// `metadata.uid` of the PVC. A later PVC with the same name has another UID.
    pub uid: String,
    /// Whether the image of `spec.vm.disks[].source` is on the PVC, or the PVC had contents of this VM before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub imported: bool,
}

impl UsedVolume {
    /// Whether both name the same PVC.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.claim_name, &self.uid) == (&other.claim_name, &other.uid)
    }
}

/// A shutdown by the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestShutdown {
    /// `metadata.generation` of the VM at the shutdown. The VM remains stopped until a change of its spec increases the
    /// generation.
    pub generation: i64,
}

/// Value of [`Restarts::reason`]: another client than the operator has deleted the pod.
pub const POD_DELETED: &str = "PodDeleted";

/// Unexpected stops of a VM: the runner exited, or another client than the operator deleted the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Restarts {
    /// Number of consecutive failed starts and unexpected stops. The first one after a run of at least 10 min, or after a
    /// change of the spec, sets the number to 1. The delay before the next start doubles each time, from 1 s to 5 min.
    pub attempts: u32,
    /// UID of the pod that last failed to start or stopped unexpectedly.
    pub pod_uid: String,
    /// Reason of the last unexpected stop.
    pub reason: String,
    /// Details of the last unexpected stop.
    #[serde(default)]
    pub message: String,
    /// Time of the last unexpected stop.
    pub time: Time,
}
