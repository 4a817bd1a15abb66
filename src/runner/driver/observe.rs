//! (io) Stores the driver's inputs in the observed state and turns them into events.

use crate::api::quantity::Bytes;
use crate::runner::agent::vmop;
use crate::runner::driver::{Driver, TaskResult};
use crate::runner::live::{Progress, is_at_target};
use crate::runner::qemu::{GUEST_AGENT_CHANNEL, VMOP_AGENT_CHANNEL};
use crate::runner::qmp::{Command, QmpEvent, QmpSignal};
use crate::runner::signals::ShutdownSignal;
use crate::runner::state::{Event, Phase};
use crate::runner::{machine, process};
use k8s_openapi::jiff::Timestamp;
use rustix::process::Pid;
use serde_json::Value;
use std::time::Duration;

/// Delay before a lost QMP connection is reported. Its usual cause is an exit of QEMU, which is
/// reported instead.
const MONITOR_LOST_DELAY: Duration = Duration::from_secs(30);

impl Driver {
    pub(super) fn shutdown_requested(&mut self, signal: ShutdownSignal) {
        let (signal, event) = match signal {
            ShutdownSignal::Request => ("SIGTERM or SIGHUP", Event::Stop),
            ShutdownSignal::Interrupt => ("SIGINT", Event::Interrupt),
        };
        tracing::info!(signal, "shutdown requested");
        self.step(event);
    }

    /// Reaps all child processes that have exited: QEMU, the TPM, and orphaned processes of the
    /// container.
    pub(super) async fn reap_children(&mut self) {
        self.handle_exits(&process::reap()).await;
    }

    /// Handles exits, each with the exit code or the negative signal.
    pub(super) async fn handle_exits(&mut self, ended: &[(Pid, i32)]) {
        self.record_tpm_exit(ended).await;
        let Some((_, status)) = ended
            .iter()
            .copied()
            .find(|(pid, _)| self.qemu.has_pid(*pid))
        else {
            return;
        };
        let mut last_output = self.qemu.finish_output().await;
        if !self.guest_ran {
            last_output = self.start_output(last_output).await;
        }
        tracing::info!(status, "QEMU has exited");
        self.step(Event::QemuExited {
            status,
            last_output,
        });
    }

    pub(super) fn handle_qmp_signal(&mut self, signal: QmpSignal) {
        match signal {
            QmpSignal::Ready => self.monitor_ready(),
            QmpSignal::Lost(why) => self.monitor_lost(&why),
            QmpSignal::Event(event) => self.qemu_event(event),
        }
    }

    fn monitor_lost(&mut self, why: &str) {
        tracing::info!(
            why,
            "QEMU has closed its QMP connection, usually because QEMU exits"
        );
        let task_results = self.task_results.clone();
        tokio::spawn(async move {
            tokio::time::sleep(MONITOR_LOST_DELAY).await;
            let _ = task_results.send(TaskResult::MonitorLossConfirmed);
        });
        self.step(Event::MonitorLost);
    }

    /// QEMU runs without a QMP connection.
    fn report_lost_monitor(&mut self) {
        tracing::error!(
            "QEMU still runs, but has closed its QMP connection, so the runner cannot change the VM. Shut the guest down from inside and restart the VM"
        );
        self.observed.monitor_lost = true;
        self.reporter.publish(&self.observed);
    }

    fn monitor_ready(&mut self) {
        tracing::info!(
            ms_since_start = self.ms_since_start(),
            "the QMP connection to QEMU is established"
        );
        self.connect_guest_agent();
        self.start_heartbeat();
        if std::mem::take(&mut self.type_is_alias) {
            let (monitor, task_results) = (self.monitor.clone(), self.task_results.clone());
            tokio::spawn(async move {
                if let Ok(Value::String(type_)) = monitor.execute(Command::machine_type()).await {
                    let _ = task_results.send(TaskResult::MachineType(type_));
                }
            });
        }
        self.step(Event::MonitorReady);
    }

    fn connect_guest_agent(&self) {
        let agent = self.agent.clone();
        tokio::spawn(async move {
            if let Err(error) = agent.connect().await {
                tracing::warn!(%error, "cannot open the channel to the guest agent; the runner retries before its next request to the agent");
            }
        });
    }

    pub(super) fn qemu_event(&mut self, event: QmpEvent) {
        match event {
            QmpEvent::Shutdown { guest: true, .. } => self.step(Event::GuestOff),
            QmpEvent::Shutdown {
                guest: false,
                reason,
            } => self.qemu_shut_down(&reason),
            QmpEvent::Stopped => self.query_stop_cause(),
            QmpEvent::Reset => self.step(Event::Reset),
            QmpEvent::Channel { id, open } if id == GUEST_AGENT_CHANNEL => {
                self.step(Event::AgentChannel(open))
            }
            QmpEvent::Channel { id, open: false } if id == VMOP_AGENT_CHANNEL => {
                let _ = self.desktop.send(vmop::Input::Closed);
            }
            QmpEvent::Channel { .. } => {}
            QmpEvent::Balloon { actual } => self.balloon_moved(actual),
            QmpEvent::ConsoleConnected { host, port } => {
                self.observed.console = Some((host, port));
                self.observed
                    .spice_client
                    .clone_from(&self.observed.spice_user);
                self.observed.spice_since = Timestamp::now();
                self.observed.console_connections += 1;
            }
            QmpEvent::ConsoleDisconnected { host, port } => {
                // A client has several channels. It has disconnected when its main channel is
                // closed.
                if self.observed.console == Some((host, port)) {
                    self.observed.console = None;
                    self.observed.spice_client.clear();
                }
            }
            QmpEvent::IoError(error) => self.io_error(&error),
            QmpEvent::TrayMoved => self.change_desired(|desired| desired.attempt += 1),
            QmpEvent::DeviceUnplugged { device } => {
                tracing::info!(
                    device,
                    "the guest has released the device, and QEMU has removed the device from the VM"
                );
                self.change_desired(|desired| {
                    desired.unplug_rejections.remove(&device);
                    desired.attempt += 1;
                });
            }
            QmpEvent::UnplugRejected { device, why } => {
                tracing::warn!(
                    "the guest has not released the device {device:?}: {why}. The runner repeats the request later; to remove the device at once, restart the VM"
                );
                self.change_desired(|desired| {
                    desired.unplug_rejections.insert(device, why);
                    desired.attempt += 1;
                });
            }
        }
        self.reporter.publish(&self.observed);
    }

    fn balloon_moved(&mut self, actual: u64) {
        self.observed.ram = Bytes(actual);
        let target = self.desired_state.borrow().balloon_target();
        // The condition follows at once, not at the next check.
        if is_at_target(actual, target) {
            self.observed.memory_problem = None;
        }
    }

    /// Stores the result of a change to the running VM.
    pub(super) fn handle_progress(&mut self, progress: Progress) {
        match progress {
            Progress::Cpus { count, problem } => {
                if let Some(problem) = problem
                    .as_ref()
                    .filter(|_| problem != self.observed.cpu_problem)
                {
                    tracing::warn!("the guest has {count} CPUs: {}", problem.message);
                }
                if count != self.observed.cpus {
                    // The guest has released removed CPUs. It uses added ones later, and its agent reports them.
                    let used = self.observed.guest_cpus;
                    self.observed.guest_cpus = used.map(|used| used.min(count));
                    self.present_cpus.send_replace(count);
                }
                self.observed.cpus = count;
                self.observed.cpu_problem = problem;
            }
            Progress::Memory { actual, problem } => {
                if let Some(problem) = problem
                    .as_ref()
                    .filter(|_| problem != self.observed.memory_problem)
                {
                    tracing::info!("{problem}");
                }
                self.observed.ram = Bytes(actual);
                self.observed.memory_problem = problem;
            }
            Progress::Media(problem) => {
                if let Some(problem) = problem
                    .as_ref()
                    .filter(|_| self.observed.media != Some(problem.clone()))
                {
                    tracing::warn!("{}", problem.message);
                }
                self.observed.media = self.observed.media.take().map(|_| problem);
            }
            Progress::Resumed => {
                tracing::info!("the guest runs again after a disk error");
                self.observed.stalled = None;
            }
            Progress::Reset(request) => self.observed.reset_request = request,
            Progress::PasswordSet => self.observed.password_serial += 1,
            Progress::Password(problem) => {
                if let Some(problem) = &problem {
                    tracing::warn!("{}", problem.message);
                }
                self.observed.password_problem = problem;
            }
            Progress::Complete(generation) => {
                self.observed.generation = generation;
                self.step(Event::Configured);
            }
        }
        self.reporter.publish(&self.observed);
    }

    pub(super) fn task_finished(&mut self, result: TaskResult) {
        match result {
            TaskResult::Event(event) => self.step(event),
            TaskResult::PowerOff => {
                tracing::warn!(
                    "`vm-runner power-off` has requested a power-off, so the runner stops QEMU without a shutdown of the guest"
                );
                self.step(Event::PowerOff);
            }
            TaskResult::Osinfo(osinfo) => {
                self.observed.osinfo = Some(osinfo);
                self.step(Event::AgentAnswered);
                if self.state.phase() != Phase::Booted {
                    self.observed.osinfo = None;
                }
            }
            TaskResult::Addresses(addresses) => {
                self.observed.addresses = addresses;
                self.reporter.publish(&self.observed);
            }
            TaskResult::GuestCpus(used) => {
                self.observed.guest_cpus = Some(used);
                self.reporter.publish(&self.observed);
            }
            TaskResult::DiskGrown(disk, size) => self.disk_grown(disk, size),
            TaskResult::GuestStopped(by) => self.guest_stopped(by),
            TaskResult::MonitorLossConfirmed => self.report_lost_monitor(),
            TaskResult::QemuSilent(silent) => self.qemu_silent(silent),
            TaskResult::TpmCheckDue => self.check_tpm(),
            TaskResult::Viewers(viewers) => {
                let has_more = viewers.len() > self.observed.viewers.len();
                self.observed.console_connections += i64::from(has_more);
                self.observed.viewers = viewers;
                self.reporter.publish(&self.observed);
            }
            TaskResult::SpiceUser(user, assignment) => {
                self.observed.spice_user = user;
                self.spice_assignment = assignment;
                // The assignment can have ended while QEMU set the password.
                let own = self.spice_assignment.as_deref();
                if self.assignment.borrow().has_ended(own) {
                    self.disconnect_spice();
                }
            }
            TaskResult::SpiceUserRejected(user) => {
                if [&self.observed.spice_user, &self.observed.spice_client].contains(&&user) {
                    tracing::info!(user, "the user has lost the right to the display");
                    self.disconnect_spice();
                }
            }
            TaskResult::Desktop(desktop) => {
                tracing::info!(
                    connected = desktop.connected,
                    user = desktop.user,
                    "the state of the desktop agent or of the desktop login in the guest has changed"
                );
                self.observed.desktop = desktop;
                self.reporter.publish(&self.observed);
            }
            TaskResult::MachineType(type_) => self.record_machine_type(&type_),
        }
    }

    fn record_machine_type(&self, type_: &str) {
        match machine::record_machine_type(&self.dirs.data, type_) {
            Ok(()) => tracing::info!(
                type_,
                "the runner has recorded the VM's QEMU machine type, so that later starts use the same type"
            ),
            Err(error) => {
                tracing::warn!(%error, "cannot record the QEMU machine type of the VM, so a newer QEMU can change the guest's hardware; check the volume of the runner data")
            }
        }
    }
}
