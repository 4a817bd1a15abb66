//! (io) Owner of a running VM's state. It receives all inputs one after the other, passes them to
//! [`State`] as events, and carries out the resulting actions.
//!
//! Invariant: nothing here waits for QEMU, the guest or the API server. Each request to them is a
//! task that sends its result to the driver.

mod guest_agent;
mod guest_stop;
mod heartbeat;
mod observe;
mod power_button;
mod reload;
mod storage;
mod tpm;

use crate::api::runner::outcome::Outcome;
use crate::api::runner::viewer::{self, Answer, Request};
use crate::api::vm::ConsoleConnection;
use crate::pinned_tls::{KeyPair, PublicKey};
use crate::runner::agent::guest::GuestAgent;
use crate::runner::agent::login::Desktop;
use crate::runner::agent::vmop;
use crate::runner::config::RunnerConfig;
use crate::runner::desired::DesiredState;
use crate::runner::live::{self, Progress};
use crate::runner::machine::{self, Acceleration, Directories, HeldDevice};
use crate::runner::process::Child;
use crate::runner::qmp::{self, Client, Command, QmpSignal};
use crate::runner::report::Reporter;
use crate::runner::signals::Signals;
use crate::runner::spec::Spec;
use crate::runner::state::{Action, Event, Phase, State};
use crate::runner::status::Observed;
use crate::runner::watch::ConfigFiles;
use crate::runner::{console, metrics, screen};
use futures::future::BoxFuture;
use rustix::process::Signal as ProcessSignal;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tpm::Tpm;

/// Result of a task.
enum TaskResult {
    Event(Event),
    PowerOff,
    Osinfo(Map<String, Value>),
    MachineType(String),
    DiskGrown(usize, u64),
    Addresses(Vec<String>),
    GuestCpus(u32),
    GuestStopped(guest_stop::StopCause),
    MonitorLossConfirmed,
    QemuSilent(bool),
    Desktop(Desktop),
    TpmCheckDue,
    /// The users of the web console that are connected.
    Viewers(Vec<ConsoleConnection>),
    /// The user of the web console that gets a password of the display, and the assignment of the VM.
    SpiceUser(String, Option<String>),
    /// The user of the web console that has lost the right to the display.
    SpiceUserRejected(String),
}

/// Values that `start` passes to the driver.
pub struct Setup {
    /// The checked configuration that QEMU was started with.
    pub spec: Spec,
    /// The same configuration as it was read.
    pub configured: RunnerConfig,
    /// The path of the configuration file.
    pub config: PathBuf,
    /// Contents of the watched files.
    pub files: ConfigFiles,
    pub dirs: Directories,
    /// Whether QEMU was started with the alias of a machine type. The driver then queries and
    /// records the machine type.
    pub type_is_alias: bool,
    /// Whether the display requires a password.
    pub ticketing: bool,
    pub qemu: Child,
    /// The TPM, if the VM has one.
    pub tpm: Option<Child>,
    /// The runner's end of the QMP connection.
    pub monitor: tokio::net::UnixStream,
    /// The runner's end of the serial line.
    pub line: tokio::net::UnixStream,
    /// The console's socket.
    pub console: tokio::net::UnixListener,
    /// UID of the pod.
    pub pod: Option<String>,
    /// The port for web consoles, and the runner's key on it.
    pub console_port: (u16, KeyPair),
    /// The SPICE display, if the VM has one.
    pub display: Option<DisplayAccess>,
    /// Block devices, opened exclusively so that no other VM of this node opens them.
    pub held_devices: Vec<HeldDevice>,
    /// The port of `/metrics` and the values that the metrics need, if the port is configured.
    pub metrics: Option<(u16, metrics::VmMetrics)>,
    /// The state that the VM was started with.
    pub start: live::StartState,
    /// The first status.
    pub observed: Observed,
    pub reporter: Reporter,
}

pub struct Driver {
    process_start: Instant,
    began: Instant,
    state: State,
    spec: Spec,
    configured: RunnerConfig,
    config: PathBuf,
    dirs: Directories,
    type_is_alias: bool,
    ticketing: bool,
    /// Digests of the display's certificate at the start.
    certificate: [Option<[u8; 32]>; 3],
    qemu: Child,
    tpm: Option<Tpm>,
    monitor: Client,
    /// Whether the guest has run.
    guest_ran: bool,
    /// Whether the present boot of the guest is counted.
    boot_counted: bool,
    agent: GuestAgent,
    agent_request: Option<JoinHandle<()>>,
    desktop: mpsc::UnboundedSender<vmop::Input>,
    log: console::Log,
    console_keys: watch::Sender<Vec<PublicKey>>,
    assignment: watch::Sender<console::Assignment>,
    /// Assignment of the VM when a user got a password of the display.
    spice_assignment: Option<String>,
    desired_state: watch::Sender<DesiredState>,
    /// Number of CPUs that QEMU has.
    present_cpus: watch::Sender<u32>,
    observed: Observed,
    reporter: Reporter,
    task_results: mpsc::UnboundedSender<TaskResult>,
    outcome: Option<Outcome>,
}

/// All inputs of the driver.
struct Inbox {
    signals: Signals,
    monitor: mpsc::UnboundedReceiver<QmpSignal>,
    progress: mpsc::UnboundedReceiver<Progress>,
    files: mpsc::UnboundedReceiver<ConfigFiles>,
    task_results: mpsc::UnboundedReceiver<TaskResult>,
}

/// The functions of the VM for viewers of its console.
struct ViewerFunctions {
    monitor: Client,
    task_results: mpsc::UnboundedSender<TaskResult>,
    display: Option<DisplayAccess>,
    passwords: mpsc::Sender<live::PasswordRequest>,
}

/// Values for clients of the SPICE display.
#[derive(Clone)]
pub struct DisplayAccess {
    /// Whether the display requires a password.
    pub ticketing: bool,
    /// Whether the display is encrypted.
    pub is_encrypted: bool,
    /// The certificate authority in PEM of an encrypted display.
    pub authority: Option<String>,
}

impl console::Functions for ViewerFunctions {
    fn power_off(&self) {
        drop(self.task_results.send(TaskResult::PowerOff));
    }

    fn show_screen(&self, client: OwnedFd) {
        let monitor = self.monitor.clone();
        tokio::spawn(async move {
            if let Err(error) = screen::show(&monitor, client).await {
                tracing::warn!("the runner cannot connect a client to the screen: {error}");
            }
        });
    }

    fn report(&self, viewers: Vec<ConsoleConnection>) {
        drop(self.task_results.send(TaskResult::Viewers(viewers)));
    }

    fn disconnect(&self, user: &str) -> Answer {
        // Only a new password disconnects clients.
        if !self
            .display
            .as_ref()
            .is_some_and(|display| display.ticketing)
        {
            return Answer::NoDisplay;
        }
        let rejected = TaskResult::SpiceUserRejected(user.to_owned());
        drop(self.task_results.send(rejected));
        Answer::Ended
    }

    fn open_display(&self, request: &Request) -> BoxFuture<'static, Answer> {
        let (user, task_results) = (request.user.clone(), self.task_results.clone());
        let (valid_seconds, assignment) = (request.valid_seconds, request.assignment.clone());
        let (display, passwords) = (self.display.clone(), self.passwords.clone());
        Box::pin(async move {
            let Some(DisplayAccess {
                ticketing,
                is_encrypted,
                authority,
            }) = display
            else {
                return Answer::NoDisplay;
            };
            let mut display = viewer::Display {
                is_encrypted,
                authority,
                ..viewer::Display::default()
            };
            if ticketing {
                let (answer, set) = oneshot::channel();
                let request = live::PasswordRequest {
                    valid_seconds,
                    assignment: assignment.clone(),
                    answer,
                };
                let sent = passwords.send(request).await;
                let Some((password, valid_seconds)) =
                    set.await.ok().flatten().filter(|_| sent.is_ok())
                else {
                    return Answer::PasswordNotSet;
                };
                display.password = Some(password);
                display.valid_seconds = valid_seconds;
            }
            drop(task_results.send(TaskResult::SpiceUser(user, assignment)));
            Answer::Display(display)
        })
    }
}

impl Driver {
    fn new(setup: Setup, signals: Signals, process_start: Instant) -> (Self, Inbox) {
        let (task_results, task_results_receiver) = mpsc::unbounded_channel();
        let (monitor_signals, monitor_inbox) = mpsc::unbounded_channel();
        let (monitor, connection) = qmp::connect(setup.monitor, monitor_signals);
        tokio::spawn(connection);
        if let Some((port, machine)) = setup.metrics {
            tokio::spawn(metrics::serve(port, machine, monitor.clone()));
        }
        let desired = DesiredState {
            generation: setup.configured.generation,
            live: setup.spec.live.clone(),
            ram: setup.spec.ram,
            reset: setup.start.reset,
            sizes: setup.start.sizes.clone(),
            stalls: 0,
            password: setup
                .files
                .password
                .clone()
                .ok()
                .flatten()
                .filter(|_| setup.ticketing),
            booted: false,
            reboots: 0,
            unplug_rejections: BTreeMap::new(),
            attempt: 0,
            disconnects: 0,
        };
        let (desired_state, desired_receiver) = watch::channel(desired);
        let (progress, progress_inbox) = mpsc::unbounded_channel();
        let (passwords, password_requests) = mpsc::channel(4);
        tokio::spawn(live::run(
            monitor.clone(),
            setup.start,
            desired_receiver,
            password_requests,
            progress,
        ));
        let (console_keys, peers) = watch::channel(setup.files.console_keys.clone());
        let assignment = console::Assignment::new(setup.configured.assignment.clone());
        let (assignment, present_assignment) = watch::channel(assignment);
        let (changes, files_inbox) = mpsc::unbounded_channel();
        let certificate = setup.files.certificate;
        tokio::spawn(crate::runner::watch::follow(
            setup.config.clone(),
            setup.files,
            changes,
        ));
        tokio::spawn(storage::follow(setup.held_devices, task_results.clone()));
        let (desktop, inputs) = mpsc::unbounded_channel();
        let tell = {
            let task_results = task_results.clone();
            move |desktop| drop(task_results.send(TaskResult::Desktop(desktop)))
        };
        let user = setup.spec.live.logged_in_user.clone();
        tokio::spawn(vmop::run(
            setup.dirs.file(machine::VMOP_AGENT_SOCKET),
            user,
            inputs,
            tell,
        ));
        let log = console::Log::default();
        let functions = Arc::new(ViewerFunctions {
            monitor: monitor.clone(),
            task_results: task_results.clone(),
            display: setup.display,
            passwords,
        });
        let (number, key) = setup.console_port;
        let pod = setup.pod;
        let port = console::Port {
            number,
            pod,
            key,
            peers,
            assignment: present_assignment,
        };
        let (server, serving) = console::serve(setup.line, setup.console, log.clone(), functions);
        tokio::spawn(console::serve_port(port, server));
        tokio::spawn(serving);
        tracing::info!(
            ms_since_start = process_start.elapsed().as_millis() as u64,
            "the runner has started QEMU"
        );
        let driver = Self {
            process_start,
            began: Instant::now(),
            state: State::new(
                Duration::ZERO,
                setup.spec.live.powerdown_timeout,
                setup.observed.acceleration == Acceleration::Kvm,
            ),
            agent: GuestAgent::new(setup.dirs.file(machine::GUEST_AGENT_SOCKET)),
            spec: setup.spec,
            configured: setup.configured,
            config: setup.config,
            dirs: setup.dirs,
            type_is_alias: setup.type_is_alias,
            ticketing: setup.ticketing,
            certificate,
            qemu: setup.qemu,
            tpm: setup.tpm.map(Tpm::new),
            monitor,
            guest_ran: false,
            boot_counted: false,
            agent_request: None,
            desktop,
            log,
            console_keys,
            assignment,
            spice_assignment: None,
            desired_state,
            present_cpus: watch::Sender::new(setup.observed.cpus),
            observed: setup.observed,
            reporter: setup.reporter,
            task_results,
            outcome: None,
        };
        let inbox = Inbox {
            signals,
            monitor: monitor_inbox,
            progress: progress_inbox,
            files: files_inbox,
            task_results: task_results_receiver,
        };
        (driver, inbox)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn ms_since_start(&self) -> u64 {
        self.process_start.elapsed().as_millis() as u64
    }

    /// Passes an event to the state and carries out the resulting actions.
    fn step(&mut self, event: Event) {
        let before = self.state.phase();
        let (state, actions) = self.state.clone().step(self.now(), event);
        self.state = state;
        let phase = self.state.phase();
        if phase != before {
            let (from, to) = (<&str>::from(before), <&str>::from(phase));
            tracing::info!(%from, %to, ms_since_start = self.ms_since_start(), "machine");
            self.observed.phase = phase;
            self.guest_ran |= phase == Phase::Booting;
            if phase == Phase::Booted {
                self.observed.boots += i64::from(!std::mem::replace(&mut self.boot_counted, true));
            }
            self.schedule_tpm_check();
            if matches!(phase, Phase::Booting | Phase::Booted) {
                self.change_desired(|desired| desired.booted = phase == Phase::Booted);
            }
        }
        for action in actions {
            self.act(action);
        }
        self.reporter.publish(&self.observed);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Configure => self.change_desired(|desired| desired.attempt += 1),
            Action::Continue => {
                let (monitor, task_results) = (self.monitor.clone(), self.task_results.clone());
                tokio::spawn(async move {
                    // A busy QEMU may answer late. The start has a deadline of its own.
                    let continued = loop {
                        match monitor.execute(Command::cont()).await {
                            Err(qmp::Error::Timeout(_)) => {}
                            answer => break answer,
                        }
                    };
                    let failed = |error: qmp::Error| Event::ContinueFailed(error.to_string());
                    task_results.send(TaskResult::Event(
                        continued.map_or_else(failed, |_| Event::Continued),
                    ))
                });
            }
            Action::AskAgent => self.ask_agent(),
            Action::ForgetGuest => self.forget_guest(),
            Action::ForgetAgent => self.forget_agent(),
            Action::ShutDownByAgent => self.shut_down_by_agent(),
            Action::PressPowerButton => self.send_command(Command::system_powerdown()),
            Action::CheckPowerButton => self.check_power_button(),
            Action::Quit => self.send_command(Command::quit()),
            Action::Interrupt => self.qemu.signal(ProcessSignal::INT),
            Action::Kill => self.qemu.signal(ProcessSignal::KILL),
            Action::Finish(outcome) => self.outcome = Some(outcome),
        }
    }

    /// Changes the desired state.
    fn change_desired(&self, change: impl FnOnce(&mut DesiredState)) {
        self.desired_state.send_if_modified(|desired| {
            let before = desired.clone();
            change(desired);
            *desired != before
        });
    }

    /// Sends a QMP command. A later event shows its effect.
    fn send_command(&self, command: Command) {
        let monitor = self.monitor.clone();
        tokio::spawn(async move {
            if let Err(error) = monitor.execute(command).await {
                tracing::warn!(%error, "a QMP command to shut the VM down has failed; after a timeout, the runner takes the next step to stop QEMU");
            }
        });
    }

    /// Disconnects clients of the SPICE display. A password that a user got by the web console is not valid any more.
    fn disconnect_spice(&mut self) {
        self.observed.spice_user.clear();
        self.spice_assignment = None;
        self.change_desired(|desired| desired.disconnects += 1);
    }

    fn forget_guest(&mut self) {
        self.forget_agent();
        self.observed.resets += 1;
        self.boot_counted = false;
        self.observed.disk_error = None;
        let _ = self.desktop.send(vmop::Input::Reset);
        self.change_desired(DesiredState::record_reboot);
        self.log.clear();
    }
}

/// Follows the VM until QEMU has exited. Returns the outcome, and the reporter for the last status.
/// `process_start` is the start of this process.
pub async fn run(setup: Setup, signals: Signals, process_start: Instant) -> (Outcome, Reporter) {
    let (mut driver, mut inbox) = Driver::new(setup, signals, process_start);
    loop {
        let deadline = driver
            .state
            .deadline()
            .map(|at| tokio::time::Instant::from_std(driver.began + at));
        let tick = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            signal = inbox.signals.shutdown.requested() => driver.shutdown_requested(signal),
            Some(_) = inbox.signals.child.recv() => driver.reap_children().await,
            Some(signal) = inbox.monitor.recv() => driver.handle_qmp_signal(signal),
            Some(progress) = inbox.progress.recv() => driver.handle_progress(progress),
            Some(files) = inbox.files.recv() => driver.files_changed(files),
            Some(result) = inbox.task_results.recv() => driver.task_finished(result),
            () = tick => driver.step(Event::Tick),
        }
        if let Some(outcome) = driver.outcome.take() {
            driver.stop_tpm().await;
            return (outcome, driver.reporter);
        }
    }
}
