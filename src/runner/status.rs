//! (pure) The observed state of the VM, its conditions and the runner's report.

mod parts;
mod report;

use crate::api::quantity::Bytes;
use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition};
use crate::api::vm::{ConsoleConnection, ConsoleProtocol};
use crate::runner::agent::login::Desktop;
use crate::runner::failure::Problem;
use crate::runner::machine::Acceleration;
use crate::runner::state::Phase;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};
use std::cmp::Reverse;

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
    /// The newest user that got a password of the display from the web console.
    pub spice_user: String,
    /// The user of the connected SPICE client, and the time of its connection.
    pub spice_client: String,
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
            user: self.spice_client.clone(),
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
}

/// Reason and message of the condition `Running` in that phase.
fn phase_reason(phase: Phase) -> (ConditionReason, &'static str) {
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
