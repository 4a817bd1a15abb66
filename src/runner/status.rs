//! (pure) The runner's part of the VM's status, made of what is observed.

mod parts;

use crate::api::conditions::{self, ConditionReason, Wanted};
use crate::api::quantity::Bytes;
use crate::api::vm::names;
use crate::runner::agent::login::Desktop;
use crate::runner::machine::Acceleration;
use crate::runner::problem::Problem;
use crate::runner::state::Phase;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

/// Whose status it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The VM's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID, so that nothing is reported to a namesake.
    pub uid: Option<String>,
    /// The node that it runs on.
    pub node_name: Option<String>,
    /// Its pod's address.
    pub pod_ip: Option<String>,
}

/// What is known of the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// Where the machine is.
    pub phase: Phase,
    /// Generation of the configuration that the machine has.
    pub generation: Option<i64>,
    /// Number of CPUs.
    pub cpus: u32,
    /// Memory that the guest has.
    pub ram: Bytes,
    /// What the guest is.
    pub osinfo: Option<Map<String, Value>>,
    /// Which addresses the guest has.
    pub addresses: Vec<String>,
    /// Address and port of the connected console.
    pub console: Option<(String, String)>,
    /// Counts the display's passwords; -1 where there is none.
    pub password_serial: i64,
    /// What runs the guest's instructions.
    pub acceleration: Acceleration,
    /// The user that is to be logged in.
    pub login_wanted: Option<String>,
    /// What is known of the guest's desktop.
    pub desktop: Desktop,
    /// Why there are not as many CPUs as wanted.
    pub cpu_problem: Option<Problem>,
    /// Why the guest has not as much memory as wanted.
    pub memory_problem: Option<String>,
    /// Which disk cannot go on, so that the guest waits.
    pub stalled: Option<Problem>,
    /// Which disk has given the guest an error since it boots, and not long ago.
    pub disk_error: Option<Problem>,
    /// Whether the machine has CD drives, and why one has not the medium that it should have.
    pub media: Option<Option<Problem>>,
    /// Whether the machine has a TPM, and why it has it no longer.
    pub tpm: Option<Option<Problem>>,
    /// The last request for a reset that was carried out.
    pub reset_request: Option<i64>,
    /// Why the configuration is not in effect.
    pub config_problem: Option<ConfigProblem>,
    /// Why the display has not the password that it should have.
    pub password_problem: Option<Problem>,
    /// Whether QEMU goes on without its monitor, so that nothing can be brought to it.
    pub monitor_lost: bool,
}

/// Why a configuration is not in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigProblem {
    /// It cannot be used.
    Invalid(String),
    /// It takes effect at the next start.
    RestartNeeded(String),
}

impl Observed {
    fn runs(&self) -> bool {
        matches!(
            self.phase,
            Phase::Booting | Phase::Booted | Phase::Terminating
        )
    }

    /// The conditions that the runner writes. Those beyond the reference's exist only while there is a machine.
    pub fn conditions(&self) -> Vec<Wanted> {
        let (reason, message) = announcement(self.phase);
        let wanted = |type_, status, reason, message: &str| Wanted {
            type_,
            status,
            reason,
            message: message.to_owned(),
        };
        let running = wanted(conditions::RUNNING, self.runs(), reason, message);
        let mut all = vec![
            running,
            wanted(
                conditions::BOOTED,
                self.phase == Phase::Booted,
                reason,
                message,
            ),
        ];
        let stopped = (ConditionReason::VmStopped, "the machine does not run");
        let console = match (&self.console, self.runs()) {
            (Some((host, _)), true) => wanted(
                conditions::CONSOLE_CONNECTED,
                true,
                ConditionReason::Connected,
                &format!("from {host}"),
            ),
            (None, true) => wanted(
                conditions::CONSOLE_CONNECTED,
                false,
                ConditionReason::Disconnected,
                "no console is connected",
            ),
            (_, false) => wanted(conditions::CONSOLE_CONNECTED, false, stopped.0, stopped.1),
        };
        let (agent, login) = self.of_desktop();
        all.extend([agent, login, console]);
        if self.runs() {
            all.extend([
                self.accelerated(),
                self.cpus_in_sync(),
                self.memory_in_sync(),
                self.config_in_sync(),
            ]);
            all.push(self.storage_healthy());
            all.extend(self.media_ready());
            all.extend(self.tpm_healthy());
        }
        all
    }

    /// The object to apply at `now`, and its conditions; `present` are those of the one before.
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
        let runs = self.runs();
        let mut status = json!({
            "runnerVersion": env!("CARGO_PKG_VERSION"),
            "cpus": if self.phase == Phase::Stopped { 0 } else { self.cpus },
            "ram": if self.phase == Phase::Stopped { "0".to_owned() } else { self.ram.to_quantity() },
            "consoleClient": self.console.as_ref().filter(|_| runs).map_or("", |(host, _)| host),
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

/// What is worth an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The machine is somewhere else.
    Phase(Phase),
    /// A console was connected from that host.
    ConsoleConnected(String),
    /// The console from that host is gone.
    ConsoleDisconnected(String),
    /// The machine's TPM has ended before it.
    TpmEnded(String),
}

impl Note {
    /// Action, reason and note of the event; addresses are in the note alone (B42).
    pub fn texts(&self) -> (&'static str, &'static str, String) {
        match self {
            Self::Phase(phase) => {
                let (reason, note) = announcement(*phase);
                ("StatusUpdate", reason.as_str(), note.to_owned())
            }
            Self::ConsoleConnected(host) => (
                "ConsoleConnectionUpdate",
                "ConsoleConnected",
                format!("a console is connected from {host}"),
            ),
            Self::ConsoleDisconnected(host) => (
                "ConsoleConnectionUpdate",
                "ConsoleDisconnected",
                format!("the console from {host} is gone"),
            ),
            Self::TpmEnded(what) => (
                "StatusUpdate",
                ConditionReason::TpmEnded.as_str(),
                what.clone(),
            ),
        }
    }

    /// Whether somebody should look at it.
    pub fn is_warning(&self) -> bool {
        matches!(self, Self::TpmEnded(_))
    }
}

/// Running, in one word and one sentence; also reason and note of an event.
pub fn announcement(phase: Phase) -> (ConditionReason, &'static str) {
    match phase {
        Phase::Starting => (ConditionReason::RunnerStarted, "QEMU is being started"),
        Phase::Booting => (ConditionReason::VmStarted, "QEMU runs the guest"),
        Phase::Booted => (ConditionReason::VmBooted, "the guest's agent has answered"),
        Phase::Terminating => (
            ConditionReason::VmTerminating,
            "the guest is being shut down",
        ),
        Phase::Stopped => (ConditionReason::VmStopped, "the machine is shut down"),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn identity() -> Identity {
        Identity {
            name: "test-vm".to_owned(),
            namespace: "ns".to_owned(),
            uid: Some("uid-1".to_owned()),
            node_name: Some("node-1".to_owned()),
            pod_ip: Some("10.1.2.3".to_owned()),
        }
    }

    pub fn observed(phase: Phase) -> Observed {
        Observed {
            phase,
            generation: Some(3),
            cpus: 2,
            ram: Bytes(1 << 30),
            osinfo: None,
            addresses: Vec::new(),
            console: None,
            password_serial: 1,
            acceleration: Acceleration::Tcg,
            login_wanted: None,
            desktop: Desktop::default(),
            cpu_problem: None,
            memory_problem: None,
            stalled: None,
            disk_error: None,
            media: None,
            tpm: None,
            reset_request: None,
            config_problem: None,
            password_problem: None,
            monitor_lost: false,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_running_machine_with_everything() {
        let mut observed = observed(Phase::Booted);
        observed.osinfo = json!({"id": "debian"}).as_object().cloned();
        observed.addresses = vec!["10.0.2.15".to_owned()];
        observed.console = Some(("10.0.0.9".to_owned(), "4711".to_owned()));
        observed.login_wanted = Some("anna".to_owned());
        observed.desktop = Desktop {
            connected: true,
            user: Some("anna".to_owned()),
            problem: None,
        };
        observed.cpu_problem = Some(Problem::new(ConditionReason::NotFollowed, "no room"));
        observed.memory_problem = Some("no driver".to_owned());
        observed.media = Some(Some(Problem::new(
            ConditionReason::ImageMissing,
            "CD drive 0: a.iso is not there",
        )));
        observed.tpm = Some(Some(Problem::new(
            ConditionReason::TpmEnded,
            "the machine's TPM has ended",
        )));
        observed.reset_request = Some(7);
        observed.stalled = Some(Problem::new(
            ConditionReason::DiskFull,
            "there is no room left for disk /dev/x",
        ));
        observed.config_problem = Some(ConfigProblem::RestartNeeded("vm.firmware".to_owned()));
        insta::assert_yaml_snapshot!(observed.object(&identity(), &[], at(10)).0);
    }

    #[test]
    fn a_stopped_machine_keeps_no_field_of_its_run() {
        let mut observed = observed(Phase::Stopped);
        observed.osinfo = json!({"id": "debian"}).as_object().cloned();
        observed.addresses = vec!["10.0.2.15".to_owned()];
        observed.console = Some(("10.0.0.9".to_owned(), "4711".to_owned()));
        insta::assert_yaml_snapshot!(observed.object(&identity(), &[], at(10)).0);
    }

    #[test]
    fn each_reason_why_a_configuration_is_not_in_effect_is_told_and_the_worst_is_first() {
        let mut observed = observed(Phase::Booted);
        let told = |observed: &Observed| {
            let told = observed.config_in_sync();
            (told.status, told.reason, told.message)
        };
        assert_eq!(
            told(&observed),
            (true, ConditionReason::Applied, String::new())
        );
        observed.config_problem = Some(ConfigProblem::RestartNeeded("later".to_owned()));
        observed.password_problem = Some(Problem::new(ConditionReason::PasswordNotSet, "refused"));
        assert_eq!(
            told(&observed),
            (
                false,
                ConditionReason::PasswordNotSet,
                "refused; later".to_owned()
            )
        );
        observed.config_problem = Some(ConfigProblem::Invalid("wrong".to_owned()));
        observed.monitor_lost = true;
        let (status, reason, message) = told(&observed);
        assert!(
            !status
                && reason == ConditionReason::InvalidConfig
                && message.starts_with("wrong; refused; the connection to QEMU's monitor"),
            "{message}"
        );
        (observed.config_problem, observed.password_problem) = (None, None);
        assert_eq!(told(&observed).1, ConditionReason::MonitorLost);
    }

    #[test]
    fn b42_the_reason_of_an_event_is_one_of_a_closed_list() {
        let (action, reason, note) = Note::ConsoleConnected("10.0.0.9".to_owned()).texts();
        assert_eq!(
            (action, reason),
            ("ConsoleConnectionUpdate", "ConsoleConnected")
        );
        assert!(note.contains("10.0.0.9"));
    }

    #[test]
    fn b18_a_login_is_one_when_the_wanted_user_is_there() {
        let mut observed = observed(Phase::Booted);
        let mut login = |wanted: Option<&str>, desktop: (bool, Option<&str>, Option<&str>)| {
            observed.login_wanted = wanted.map(str::to_owned);
            let (connected, user, problem) = desktop;
            observed.desktop = Desktop {
                connected,
                user: user.map(str::to_owned),
                problem: problem.map(str::to_owned),
            };
            let wanted = observed.of_desktop().1;
            (wanted.status, wanted.reason)
        };
        assert_eq!(
            login(None, (true, None, None)),
            (false, ConditionReason::NotRequested)
        );
        assert_eq!(
            login(Some("anna"), (false, None, None)),
            (false, ConditionReason::VmopAgentDisconnected)
        );
        assert_eq!(
            login(Some("anna"), (true, None, None)),
            (false, ConditionReason::Processing)
        );
        assert_eq!(
            login(Some("anna"), (true, Some("berta"), None)),
            (false, ConditionReason::Processing)
        );
        assert_eq!(
            login(Some("anna"), (true, None, Some("451"))),
            (false, ConditionReason::LoginFailed)
        );
        assert_eq!(
            login(Some("anna"), (true, Some("anna"), None)),
            (true, ConditionReason::LoggedIn)
        );
    }

    #[test]
    fn a_transition_has_the_time_of_its_first_report() {
        let (_, first) = observed(Phase::Booting).object(&identity(), &[], at(10));
        let (_, second) = observed(Phase::Booted).object(&identity(), &first, at(20));
        let time = |type_| {
            conditions::find(&second, type_)
                .unwrap()
                .last_transition_time
                .0
        };
        assert_eq!(
            (time(conditions::RUNNING), time(conditions::BOOTED)),
            (at(10), at(20))
        );
    }
}
