//! (pure) The runner's report, and the runner's part of the VM's status, built from the observed state.

mod parts;
mod report;

use crate::api::quantity::Bytes;
use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition};
use crate::api::vm::names;
use crate::api::vm::{ConsoleConnection, ConsoleProtocol};
use crate::runner::agent::login::Desktop;
use crate::runner::failure::Problem;
use crate::runner::machine::Acceleration;
use crate::runner::state::Phase;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::cmp::Reverse;

/// The VM of the reported status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub name: String,
    pub namespace: String,
    /// Its UID, so that no other VM with the same name gets the status.
    pub uid: Option<String>,
    /// Name of its node.
    pub node_name: Option<String>,
    /// IP address of its pod.
    pub pod_ip: Option<String>,
    /// UID of its pod, which is the name of its report. Without it, the runner writes the status of the VM.
    pub pod_uid: Option<String>,
}

/// The observed state of the VM.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    pub phase: Phase,
    /// Generation of the configuration that is in effect.
    pub generation: Option<i64>,
    /// Number of CPUs that QEMU has.
    pub cpus: u32,
    /// Number of CPUs that the guest uses, as its agent reports. None if it is unknown.
    pub guest_cpus: Option<u32>,
    /// The guest's memory.
    pub ram: Bytes,
    /// The guest's operating system.
    pub osinfo: Option<Map<String, Value>>,
    /// The guest's IP addresses.
    pub addresses: Vec<String>,
    /// Address and port of the connected console.
    pub console: Option<(String, String)>,
    /// Number of times that the display's password was set. -1 if the display has none.
    pub password_serial: i64,
    pub acceleration: Acceleration,
    /// The wanted user of the guest's desktop.
    pub login_wanted: Option<String>,
    /// State of the guest's desktop.
    pub desktop: Desktop,
    /// The reason why the number of CPUs is not as configured.
    pub cpu_problem: Option<Problem>,
    /// The reason why the guest's memory is not as configured.
    pub memory_problem: Option<String>,
    /// The disk error that has stopped the guest.
    pub stalled: Option<Problem>,
    /// A disk error that was reported to the guest since it booted.
    pub disk_error: Option<Problem>,
    /// None without a CD drive. The inner value is the reason why a drive does not have its image.
    pub media: Option<Option<Problem>>,
    /// None without a TPM. The inner value is the reason why the TPM does not run.
    pub tpm: Option<Option<Problem>>,
    /// The newest reset request that was carried out.
    pub reset_request: Option<i64>,
    /// The reason why the guest ignores its user data.
    pub user_data_problem: Option<Problem>,
    /// The reason why the configuration is not in effect.
    pub config_problem: Option<ConfigProblem>,
    /// The reason why the display does not have its configured password.
    pub password_problem: Option<Problem>,
    /// Whether QEMU runs without a QMP connection, so that no change can be applied.
    pub monitor_lost: bool,
    /// Number of boots of the guest. A boot counts when the guest agent answers for the first time after a start or a reset.
    pub boots: i64,
    /// Number of resets of the guest.
    pub resets: i64,
    /// Number of connections of consoles.
    pub console_connections: i64,
    /// Whether QEMU does not answer commands.
    pub qemu_silent: bool,
    /// Public key of the port for web consoles.
    pub console_key: String,
    /// Users of the web console that are connected, the newest first.
    pub viewers: Vec<ConsoleConnection>,
    /// The newest user that got a password of the display from the web console, and the time of the SPICE client's connection.
    pub spice_user: String,
    pub spice_since: Timestamp,
}

/// The reason why a configuration is not in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigProblem {
    /// The configuration is invalid.
    Invalid(String),
    /// Changes need a restart.
    RestartNeeded(String),
}

impl Observed {
    fn is_running(&self) -> bool {
        matches!(
            self.phase,
            Phase::Booting | Phase::Booted | Phase::Terminating
        )
    }

    /// Address of the SPICE client, or else of the newest browser.
    fn client(&self) -> Option<&str> {
        let spice = self.console.as_ref().map(|(host, _)| host.as_str());
        spice.or_else(|| Some(self.viewers.first()?.client.as_str()))
    }

    /// The connected users, the newest first.
    fn consoles(&self) -> Vec<ConsoleConnection> {
        let spice = self.console.as_ref().map(|(host, _)| ConsoleConnection {
            user: self.spice_user.clone(),
            client: host.clone(),
            protocol: ConsoleProtocol::Spice,
            since: Time(self.spice_since),
        });
        let mut all: Vec<_> = spice
            .into_iter()
            .chain(self.viewers.iter().cloned())
            .collect();
        all.sort_by_key(|console| Reverse(console.since.0));
        all
    }

    /// The conditions that the runner reports. Those that the Java VM-Operator does not have exist
    /// only while the VM runs.
    pub fn conditions(&self) -> Vec<DesiredCondition> {
        let (reason, message) = phase_reason(self.phase);
        let wanted = |type_, status, reason, message: &str| DesiredCondition {
            type_,
            status,
            reason,
            message: message.to_owned(),
        };
        let running = wanted(conditions::RUNNING, self.is_running(), reason, message);
        let mut all = vec![
            running,
            wanted(
                conditions::BOOTED,
                self.phase == Phase::Booted,
                reason,
                message,
            ),
        ];
        let stopped = (ConditionReason::VmStopped, "the VM is not running");
        let console = match (self.client(), self.is_running()) {
            (Some(host), true) => wanted(
                conditions::CONSOLE_CONNECTED,
                true,
                ConditionReason::Connected,
                &format!("a console client is connected from {host}"),
            ),
            (None, true) => wanted(
                conditions::CONSOLE_CONNECTED,
                false,
                ConditionReason::Disconnected,
                "no console client is connected",
            ),
            (_, false) => wanted(conditions::CONSOLE_CONNECTED, false, stopped.0, stopped.1),
        };
        let (agent, login) = self.desktop_conditions();
        all.extend([agent, login, console]);
        if self.is_running() {
            all.extend([
                self.accelerated(),
                self.cpus_in_sync(),
                self.memory_in_sync(),
                self.config_in_sync(),
            ]);
            all.extend([self.qemu_responsive(), self.storage_healthy()]);
            all.extend(self.media_ready());
            all.extend(self.tpm_healthy());
            all.extend(self.user_data_recognized());
        }
        all
    }

    /// The object to apply at `now`, and its conditions. `present` are the conditions of the
    /// previous one.
    pub fn object(
        &self,
        identity: &Identity,
        present: &[Condition],
        now: Timestamp,
    ) -> (Value, Vec<Condition>) {
        let conditions: Vec<Condition> = self
            .conditions()
            .iter()
            .map(|wanted| wanted.at(present, self.generation, now))
            .collect();
        let runs = self.is_running();
        let mut status = json!({
            "runnerVersion": env!("CARGO_PKG_VERSION"),
            "cpus": if self.phase == Phase::Stopped { 0 } else { self.guest_cpus.unwrap_or(self.cpus) },
            "ram": if self.phase == Phase::Stopped { "0".to_owned() } else { self.ram.to_quantity() },
            "consoleClient": self.client().filter(|_| runs).unwrap_or_default(),
            "displayPasswordSerial": self.password_serial,
            "conditions": conditions,
        });
        if let Some(fields) = status.as_object_mut() {
            let stopped = self.phase == Phase::Stopped;
            let mut set = |key: &str, value: Option<Value>| {
                fields.extend(
                    value
                        .filter(|_| !stopped)
                        .map(|value| (key.to_owned(), value)),
                );
            };
            set(
                "nodeName",
                identity.node_name.as_ref().map(|name| json!(name)),
            );
            set("podIP", identity.pod_ip.as_ref().map(|ip| json!(ip)));
            set(
                "observedResetRequest",
                self.reset_request.map(|request| json!(request)),
            );
            let user = self
                .desktop
                .user
                .as_ref()
                .filter(|_| runs && self.desktop.connected);
            set("loggedInUser", user.map(|user| json!(user)));
            let addresses = Some(&self.addresses).filter(|addresses| runs && !addresses.is_empty());
            set("guestIPs", addresses.map(|addresses| json!(addresses)));
            set(
                "osinfo",
                self.osinfo
                    .as_ref()
                    .filter(|_| runs)
                    .map(|osinfo| json!(osinfo)),
            );
        }
        let mut metadata = json!({"name": identity.name, "namespace": identity.namespace});
        if let (Some(uid), Some(fields)) = (&identity.uid, metadata.as_object_mut()) {
            fields.insert("uid".to_owned(), json!(uid));
        }
        let object = json!({
            "apiVersion": format!("{}/{}", names::GROUP, names::VERSION), "kind": "VirtualMachine",
            "metadata": metadata, "status": status,
        });
        (object, conditions)
    }
}

/// A change that is reported by a Kubernetes Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// The VM has entered a phase.
    Phase(Phase),
    /// A console was connected from that host.
    ConsoleConnected(String),
    /// The console from that host was disconnected.
    ConsoleDisconnected(String),
    /// The TPM has exited before QEMU.
    TpmEnded(String),
    /// The guest is emulated, although acceleration was requested.
    Emulated(Problem),
}

impl Announcement {
    /// Action, reason and note of the Event. Addresses are in the note only, because events are counted and filtered by reason.
    pub fn texts(&self) -> (&'static str, &'static str, String) {
        match self {
            Self::Phase(phase) => {
                let (reason, note) = phase_reason(*phase);
                ("StatusUpdate", reason.as_str(), note.to_owned())
            }
            Self::ConsoleConnected(host) => (
                "ConsoleConnectionUpdate",
                "ConsoleConnected",
                format!("a console client is connected from {host}"),
            ),
            Self::ConsoleDisconnected(host) => (
                "ConsoleConnectionUpdate",
                "ConsoleDisconnected",
                format!("the console client at {host} has disconnected"),
            ),
            Self::TpmEnded(what) => (
                "StatusUpdate",
                ConditionReason::TpmEnded.as_str(),
                what.clone(),
            ),
            Self::Emulated(problem) => (
                "StatusUpdate",
                problem.reason.as_str(),
                parts::emulated(&problem.message),
            ),
        }
    }

    /// Whether the Event is a warning.
    pub fn is_warning(&self) -> bool {
        matches!(self, Self::TpmEnded(_) | Self::Emulated(_))
    }
}

/// Reason and message of the condition `Running` in that phase. The Event of the phase has the same
/// texts.
pub fn phase_reason(phase: Phase) -> (ConditionReason, &'static str) {
    match phase {
        Phase::Starting => (ConditionReason::RunnerStarted, "QEMU starts"),
        Phase::Booting => (ConditionReason::VmStarted, "QEMU runs the guest"),
        Phase::Booted => (ConditionReason::VmBooted, "the guest agent has answered"),
        Phase::Terminating => (ConditionReason::VmTerminating, "the guest is shutting down"),
        Phase::Stopped => (ConditionReason::VmStopped, "the VM is shut down"),
    }
}

#[cfg(test)]
pub mod tests;
