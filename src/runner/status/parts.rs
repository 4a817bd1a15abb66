//! (pure) The condition of each part of a machine.

use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition};
use crate::runner::agent::login::Desktop;
use crate::runner::failure::Problem;
use crate::runner::machine::Acceleration;
use crate::runner::status::{ConfigProblem, Observed};

const MONITOR_LOST_MESSAGE: &str = "QEMU has closed its QMP connection. The guest continues, but the runner cannot change \
    the running VM. Shut down the guest from inside, then restart the VM (spec.vm.restartRequest). For the cause, see the log \
    of the VM's pod (kubectl logs)";

const QEMU_SILENT_MESSAGE: &str = "QEMU does not answer QMP commands of the runner; the process probably hangs, for example in \
    a request to its storage";
/// The message of a VM that is emulated for that reason, although acceleration was requested.
fn emulated(why: &str) -> String {
    format!("the guest is emulated, which is slow: {why}")
}

impl Observed {
    /// The conditions `VmopAgentConnected` and `UserLoggedIn`.
    pub(super) fn desktop_conditions(&self) -> (DesiredCondition, DesiredCondition) {
        let agent = |status, reason, message: &str| DesiredCondition {
            type_: conditions::VMOP_AGENT_CONNECTED,
            status,
            reason,
            message: message.to_owned(),
        };
        let login = |status, reason, message: String| DesiredCondition {
            type_: conditions::USER_LOGGED_IN,
            status,
            reason,
            message,
        };
        if !self.is_running() {
            let (reason, message) = (ConditionReason::VmStopped, "the VM is not running");
            return (
                agent(false, reason, message),
                login(false, reason, message.to_owned()),
            );
        }
        let gone = (
            ConditionReason::VmopAgentDisconnected,
            "the desktop agent in the guest is not connected",
        );
        let connected = match self.desktop.connected {
            true => agent(
                true,
                ConditionReason::VmopAgentStarted,
                "the desktop agent in the guest is connected",
            ),
            false => agent(false, gone.0, gone.1),
        };
        let Some(user) = &self.login_wanted else {
            return (
                connected,
                login(
                    false,
                    ConditionReason::NotRequested,
                    "no user is logged in automatically, because spec.vm.display.loggedInUser is not set".to_owned(),
                ),
            );
        };
        let login = match &self.desktop {
            Desktop {
                user: Some(there),
                connected: true,
                ..
            } if there == user => login(
                true,
                ConditionReason::LoggedIn,
                format!("the user {user} is logged in to the guest's desktop"),
            ),
            Desktop {
                connected: false, ..
            } => login(false, gone.0, gone.1.to_owned()),
            Desktop {
                problem: Some(problem),
                ..
            } => login(false, ConditionReason::LoginFailed, problem.clone()),
            _ => login(
                false,
                ConditionReason::Processing,
                format!("the desktop agent in the guest is logging in the user {user}"),
            ),
        };
        (connected, login)
    }

    pub(super) fn accelerated(&self) -> DesiredCondition {
        let (status, reason, message) = match &self.acceleration {
            Acceleration::Kvm => (true, ConditionReason::Kvm, "KVM runs the guest"),
            Acceleration::Tcg => (
                false,
                ConditionReason::TcgRequested,
                "the guest is emulated, as the configuration requests (accelerator tcg)",
            ),
            Acceleration::Unset => (
                false,
                ConditionReason::Unset,
                "QEMU selects KVM or emulation itself (accelerator none); the runner does not know the selection",
            ),
            Acceleration::TcgFallback(problem) => {
                return DesiredCondition {
                    type_: conditions::ACCELERATED,
                    status: false,
                    reason: problem.reason,
                    message: emulated(&problem.message),
                };
            }
        };
        DesiredCondition {
            type_: conditions::ACCELERATED,
            status,
            reason,
            message: message.to_owned(),
        }
    }

    pub(super) fn cpus_in_sync(&self) -> DesiredCondition {
        let paused = self.stalled.as_ref().map(|_| {
            let message = "the guest is paused because of a disk error, so it cannot add or release CPUs; see the condition StorageHealthy";
            Problem::new(ConditionReason::GuestPaused, message)
        });
        let unused = self.unused_cpus();
        let type_ = conditions::CPUS_IN_SYNC;
        let problem = paused
            .as_ref()
            .or(self.cpu_problem.as_ref())
            .or(unused.as_ref());
        let (reason, message) = problem
            .map_or((ConditionReason::AsConfigured, String::new()), |problem| {
                (problem.reason, problem.message.clone())
            });
        DesiredCondition {
            type_,
            status: problem.is_none(),
            reason,
            message,
        }
    }

    /// The guest does not use all CPUs that QEMU has, or its agent has not reported added CPUs yet.
    fn unused_cpus(&self) -> Option<Problem> {
        let (used, present) = (self.guest_cpus?, self.cpus);
        let message = format!(
            "the guest uses only {used} of its {present} CPUs, as its agent reports. If this does not change within a minute, \
             enable the other CPUs in the guest, or restart the VM"
        );
        (used != present).then(|| Problem::new(ConditionReason::NotFollowed, message))
    }

    pub(super) fn memory_in_sync(&self) -> DesiredCondition {
        let status = self.memory_problem.is_none();
        let reason = if status {
            ConditionReason::AsConfigured
        } else {
            ConditionReason::NotFollowed
        };
        let message = self.memory_problem.clone().unwrap_or_default();
        DesiredCondition {
            type_: conditions::MEMORY_IN_SYNC,
            status,
            reason,
            message,
        }
    }

    pub(super) fn qemu_responsive(&self) -> DesiredCondition {
        let (reason, message) = match (self.monitor_lost, self.qemu_silent) {
            (true, _) => (ConditionReason::MonitorLost, MONITOR_LOST_MESSAGE),
            (false, true) => (ConditionReason::QemuSilent, QEMU_SILENT_MESSAGE),
            (false, false) => (ConditionReason::Responsive, ""),
        };
        DesiredCondition {
            type_: conditions::QEMU_RESPONSIVE,
            status: reason == ConditionReason::Responsive,
            reason,
            message: message.to_owned(),
        }
    }

    pub(super) fn storage_healthy(&self) -> DesiredCondition {
        let problem = self.stalled.as_ref().or(self.disk_error.as_ref());
        let (reason, message) = problem.map_or((ConditionReason::Healthy, ""), |problem| {
            (problem.reason, problem.message.as_str())
        });
        let (type_, status) = (conditions::STORAGE_HEALTHY, problem.is_none());
        DesiredCondition {
            type_,
            status,
            reason,
            message: message.to_owned(),
        }
    }

    /// None for a VM without a CD drive.
    pub(super) fn media_ready(&self) -> Option<DesiredCondition> {
        let problem = self.media.as_ref()?;
        let (reason, message) = problem
            .as_ref()
            .map_or((ConditionReason::AsConfigured, String::new()), |problem| {
                (problem.reason, problem.message.clone())
            });
        Some(DesiredCondition {
            type_: conditions::MEDIA_READY,
            status: problem.is_none(),
            reason,
            message,
        })
    }

    /// None for a VM without a TPM.
    pub(super) fn tpm_healthy(&self) -> Option<DesiredCondition> {
        let problem = self.tpm.as_ref()?;
        let (reason, message) = problem
            .as_ref()
            .map_or((ConditionReason::Runs, String::new()), |problem| {
                (problem.reason, problem.message.clone())
            });
        Some(DesiredCondition {
            type_: conditions::TPM_HEALTHY,
            status: problem.is_none(),
            reason,
            message,
        })
    }

    /// None unless the guest ignores its user data.
    pub(super) fn user_data_recognized(&self) -> Option<DesiredCondition> {
        let problem = self.user_data_problem.as_ref()?;
        Some(DesiredCondition {
            type_: conditions::USER_DATA_RECOGNIZED,
            status: false,
            reason: problem.reason,
            message: problem.message.clone(),
        })
    }

    /// The reason is that of the first problem. The message contains all problems.
    pub(super) fn config_in_sync(&self) -> DesiredCondition {
        let of_file = self.config_problem.as_ref().map(|problem| match problem {
            ConfigProblem::Invalid(why) => (ConditionReason::InvalidConfig, why.as_str()),
            ConfigProblem::RestartNeeded(why) => (ConditionReason::RestartNeeded, why.as_str()),
        });
        let of_password = self
            .password_problem
            .as_ref()
            .map(|problem| (problem.reason, problem.message.as_str()));
        let of_monitor = self
            .monitor_lost
            .then_some((ConditionReason::MonitorLost, MONITOR_LOST_MESSAGE));
        let mut problems: Vec<(ConditionReason, &str)> = [of_file, of_password, of_monitor]
            .into_iter()
            .flatten()
            .collect();
        problems.sort_by_key(|(reason, _)| *reason == ConditionReason::RestartNeeded);
        let message = problems
            .iter()
            .map(|(_, why)| *why)
            .collect::<Vec<_>>()
            .join("; ");
        let reason = problems
            .first()
            .map_or(ConditionReason::Applied, |(reason, _)| *reason);
        DesiredCondition {
            type_: conditions::CONFIG_IN_SYNC,
            status: problems.is_empty(),
            reason,
            message,
        }
    }
}
