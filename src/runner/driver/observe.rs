//! (io) What reaches the driver, taken into what is observed and turned into events of the state.

use crate::api::quantity::Bytes;
use crate::runner::agent::vmop;
use crate::runner::driver::{Driver, News};
use crate::runner::live::Progress;
use crate::runner::qemu::{GUEST_AGENT_CHANNEL, VMOP_AGENT_CHANNEL};
use crate::runner::qmp::{Command, Event as QemuEvent, Signal};
use crate::runner::state::{Event, Phase};
use crate::runner::status::Note;
use crate::runner::{machine, process};
use rustix::process::Pid;
use serde_json::Value;
use std::time::Duration;

/// Time for QEMU's exit to be known, which is the usual cause of a lost monitor.
const MONITOR_LOST_DELAY: Duration = Duration::from_secs(30);

impl Driver {
    /// SIGTERM, or what a terminal sends.
    pub(super) fn asked_to_end(&mut self) {
        tracing::info!("asked to end");
        self.step(Event::Stop);
    }

    /// Children have ended, QEMU or its TPM or what other processes of the container have left behind.
    pub(super) async fn children_ended(&mut self) {
        self.have_ended(&process::reap()).await;
    }

    /// Those have ended, each with that exit code or minus that signal.
    pub(super) async fn have_ended(&mut self, ended: &[(Pid, i32)]) {
        self.tpm_among(ended).await;
        let Some((_, status)) = ended.iter().copied().find(|(pid, _)| self.qemu.is(*pid)) else {
            return;
        };
        let mut last_words = self.qemu.ended().await;
        if !self.guest_ran {
            last_words = self.words_of_start(last_words).await;
        }
        tracing::info!(status, "QEMU has ended");
        self.step(Event::QemuEnded { status, last_words });
    }

    /// QEMU says something, or is gone.
    pub(super) fn monitor_signal(&mut self, signal: Signal) {
        match signal {
            Signal::Ready => self.monitor_ready(),
            Signal::Lost(why) => self.monitor_lost(&why),
            Signal::Event(event) => self.qemu_event(event),
        }
    }

    fn monitor_lost(&mut self, why: &str) {
        tracing::info!(why, "the connection to QEMU's monitor has ended");
        let news = self.news.clone();
        tokio::spawn(async move {
            tokio::time::sleep(MONITOR_LOST_DELAY).await;
            let _ = news.send(News::MonitorGone);
        });
        self.step(Event::MonitorLost);
    }

    /// QEMU goes on without its monitor.
    fn monitor_gone(&mut self) {
        tracing::error!("QEMU goes on without its monitor");
        self.observed.monitor_lost = true;
        self.reporter.publish(&self.observed);
    }

    fn monitor_ready(&mut self) {
        tracing::info!(
            ms_since_start = self.ms_since_start(),
            "QEMU's monitor has answered"
        );
        self.take_agents_channel();
        if std::mem::take(&mut self.type_is_alias) {
            let (monitor, news) = (self.monitor.clone(), self.news.clone());
            tokio::spawn(async move {
                if let Ok(Value::String(type_)) = monitor.execute(Command::machine_type()).await {
                    let _ = news.send(News::MachineType(type_));
                }
            });
        }
        self.step(Event::MonitorReady);
    }

    fn take_agents_channel(&self) {
        let agent = self.agent.clone();
        tokio::spawn(async move {
            if let Err(error) = agent.connect().await {
                tracing::warn!(%error, "the guest agent's channel");
            }
        });
    }

    fn qemu_event(&mut self, event: QemuEvent) {
        match event {
            QemuEvent::Shutdown { guest: true, .. } => self.step(Event::GuestOff),
            QemuEvent::Shutdown {
                guest: false,
                reason,
            } => self.shut_down_by(&reason),
            QemuEvent::Stopped => self.ask_why_it_stopped(),
            QemuEvent::Reset => self.step(Event::Reset),
            QemuEvent::Channel { id, open } if id == GUEST_AGENT_CHANNEL => {
                self.step(Event::AgentChannel(open))
            }
            QemuEvent::Channel { id, open: false } if id == VMOP_AGENT_CHANNEL => {
                let _ = self.desktop.send(vmop::Input::Closed);
            }
            QemuEvent::Channel { .. } => {}
            QemuEvent::Balloon { actual } => self.observed.ram = Bytes(actual),
            QemuEvent::ConsoleConnected { host, port } => {
                self.reporter.announce(Note::ConsoleConnected(host.clone()));
                self.observed.console = Some((host, port));
            }
            QemuEvent::ConsoleDisconnected { host, port } => {
                // A client has several channels; it is gone with its main one.
                if self.observed.console == Some((host.clone(), port)) {
                    self.observed.console = None;
                    self.reporter.announce(Note::ConsoleDisconnected(host));
                }
            }
            QemuEvent::IoError(error) => self.io_error(&error),
            QemuEvent::TrayMoved => self.wish(|desired| desired.attempt += 1),
            QemuEvent::DeviceUnplugged { device } => {
                tracing::info!(device, "the guest has given a device back");
                self.wish(|desired| {
                    desired.refused.remove(&device);
                    desired.attempt += 1;
                });
            }
            QemuEvent::UnplugRefused { device, why } => {
                tracing::warn!("the guest keeps {device} and {why}");
                self.wish(|desired| {
                    desired.refused.insert(device, why);
                    desired.attempt += 1;
                });
            }
        }
        self.reporter.publish(&self.observed);
    }

    /// The machine has come closer to what it should be.
    pub(super) fn progressed(&mut self, progress: Progress) {
        match progress {
            Progress::Cpus { count, problem } => {
                if let Some(problem) = problem
                    .as_ref()
                    .filter(|_| problem != self.observed.cpu_problem)
                {
                    tracing::warn!("the guest has {count} CPUs: {}", problem.message);
                }
                self.observed.cpus = count;
                self.observed.cpu_problem = problem;
            }
            Progress::Memory { actual, problem } => {
                if let Some(problem) = problem
                    .as_ref()
                    .filter(|_| problem != self.observed.memory_problem)
                {
                    tracing::warn!("{problem}");
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
                tracing::info!("the guest goes on");
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

    /// A task has come back.
    pub(super) fn heard(&mut self, news: News) {
        match news {
            News::Event(event) => self.step(event),
            News::PowerOff => {
                tracing::warn!("the power is switched off");
                self.step(Event::PowerOff);
            }
            News::Osinfo(osinfo) => {
                self.observed.osinfo = Some(osinfo);
                self.step(Event::AgentAnswered);
                if self.state.phase() != Phase::Booted {
                    self.observed.osinfo = None;
                }
            }
            News::Addresses(addresses) => {
                self.observed.addresses = addresses;
                self.reporter.publish(&self.observed);
            }
            News::DiskGrown(disk, size) => self.disk_grown(disk, size),
            News::Stopped(by) => self.stopped(by),
            News::MonitorGone => self.monitor_gone(),
            News::TpmEnded => self.judge_tpm(),
            News::Desktop(desktop) => {
                tracing::info!(
                    connected = desktop.connected,
                    user = desktop.user,
                    "the guest's desktop"
                );
                self.observed.desktop = desktop;
                self.reporter.publish(&self.observed);
            }
            News::MachineType(type_) => self.record_machine_type(&type_),
        }
    }

    fn record_machine_type(&self, type_: &str) {
        match machine::record_machine_type(&self.dirs.data, type_) {
            Ok(()) => tracing::info!(type_, "this machine type is kept for the VM"),
            Err(error) => tracing::warn!(%error, "the machine type is not recorded"),
        }
    }
}
