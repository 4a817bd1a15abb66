//! (io) The only owner of a running machine's state: takes everything that happens, one after the other, lets
//! [`State`] decide, and does what it says.
//!
//! What always holds: nothing here waits for QEMU, the guest or the API server; whatever takes time is a task that
//! comes back as an event.

mod observe;
mod reload;
mod stops;
mod storage;
mod tpm;

use crate::api::runner::outcome::Outcome;
use crate::runner::agent::guest::GuestAgent;
use crate::runner::agent::login::Desktop;
use crate::runner::agent::vmop;
use crate::runner::config::RunnerConfig;
use crate::runner::desired::Desired;
use crate::runner::live::{self, Progress};
use crate::runner::machine::{self, Directories, Held};
use crate::runner::process::Child;
use crate::runner::qmp::{self, Client, Command, Signal};
use crate::runner::report::Reporter;
use crate::runner::resolved::Spec;
use crate::runner::signals::Signals;
use crate::runner::state::{Action, Event, Phase, State};
use crate::runner::status::{Note, Observed};
use crate::runner::watch::Files;
use crate::runner::{console, metrics};
use rustix::process::Signal as ProcessSignal;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tpm::Tpm;

/// What a task comes back with.
enum News {
    Event(Event),
    PowerOff,
    Osinfo(Map<String, Value>),
    MachineType(String),
    DiskGrown(usize, u64),
    Addresses(Vec<String>),
    Stopped(stops::Stop),
    MonitorGone,
    Desktop(Desktop),
    TpmEnded,
}

/// What the driver takes over from the start.
pub struct Setup {
    /// The checked configuration that QEMU was started with.
    pub spec: Spec,
    /// The same as it was read.
    pub configured: RunnerConfig,
    /// The path of its file, and what it and its neighbours hold.
    pub config: PathBuf,
    /// Content of the followed files.
    pub files: Files,
    /// The directories.
    pub dirs: Directories,
    /// Whether the machine's type has still to be found out.
    pub type_is_alias: bool,
    /// Whether the display asks for a password.
    pub ticketing: bool,
    /// QEMU.
    pub qemu: Child,
    /// The TPM, if the machine has one.
    pub tpm: Option<Child>,
    /// The runner's end of QEMU's monitor.
    pub monitor: tokio::net::UnixStream,
    /// The runner's end of the serial line.
    pub line: tokio::net::UnixStream,
    /// Where the console is offered.
    pub console: tokio::net::UnixListener,
    /// Block devices, kept open so that no other machine of this node opens them.
    pub held: Vec<Held>,
    /// Where `/metrics` is, and what it needs, if it is wanted.
    pub metrics: Option<(u16, metrics::Machine)>,
    /// What the machine was started with.
    pub start: live::Start,
    /// The first status.
    pub observed: Observed,
    /// Takes what is to be told.
    pub reporter: Reporter,
}

/// A running machine.
pub struct Driver {
    process_began: Instant,
    began: Instant,
    state: State,
    spec: Spec,
    configured: RunnerConfig,
    config: PathBuf,
    dirs: Directories,
    type_is_alias: bool,
    ticketing: bool,
    /// The display's certificate at the start.
    certificate: [Option<[u8; 32]>; 3],
    qemu: Child,
    tpm: Option<Tpm>,
    monitor: Client,
    /// Whether the guest has run since this process began.
    guest_ran: bool,
    agent: GuestAgent,
    question: Option<JoinHandle<()>>,
    desktop: mpsc::UnboundedSender<vmop::Input>,
    log: console::Log,
    wishes: watch::Sender<Desired>,
    observed: Observed,
    reporter: Reporter,
    news: mpsc::UnboundedSender<News>,
    outcome: Option<Outcome>,
}

/// Everything that the driver waits for.
struct Inbox {
    signals: Signals,
    monitor: mpsc::UnboundedReceiver<Signal>,
    progress: mpsc::UnboundedReceiver<Progress>,
    files: mpsc::UnboundedReceiver<Files>,
    news: mpsc::UnboundedReceiver<News>,
}

impl Driver {
    fn new(setup: Setup, signals: Signals, process_began: Instant) -> (Self, Inbox) {
        let (news, news_inbox) = mpsc::unbounded_channel();
        let (monitor_signals, monitor_inbox) = mpsc::unbounded_channel();
        let (monitor, connection) = qmp::connect(setup.monitor, monitor_signals);
        tokio::spawn(connection);
        if let Some((port, machine)) = setup.metrics {
            tokio::spawn(metrics::serve(port, machine, monitor.clone()));
        }
        let desired = Desired {
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
            refused: BTreeMap::new(),
            attempt: 0,
        };
        let (wishes, wish) = watch::channel(desired);
        let (progress, progress_inbox) = mpsc::unbounded_channel();
        tokio::spawn(live::run(monitor.clone(), setup.start, wish, progress));
        let (changes, files_inbox) = mpsc::unbounded_channel();
        let certificate = setup.files.certificate;
        tokio::spawn(crate::runner::watch::follow(
            setup.config.clone(),
            setup.files,
            changes,
        ));
        tokio::spawn(storage::follow(setup.held, news.clone()));
        let (desktop, inputs) = mpsc::unbounded_channel();
        let tell = {
            let news = news.clone();
            move |desktop| drop(news.send(News::Desktop(desktop)))
        };
        let user = setup.spec.live.logged_in_user.clone();
        tokio::spawn(vmop::run(
            setup.dirs.file(machine::VMOP_AGENT_SOCKET),
            user,
            inputs,
            tell,
        ));
        let log = console::Log::default();
        let power_off = {
            let news = news.clone();
            move || drop(news.send(News::PowerOff))
        };
        tokio::spawn(console::serve(
            setup.line,
            setup.console,
            log.clone(),
            power_off,
        ));
        tracing::info!(
            ms_since_start = process_began.elapsed().as_millis() as u64,
            "QEMU is started"
        );
        let driver = Self {
            process_began,
            began: Instant::now(),
            state: State::new(Duration::ZERO, setup.spec.live.powerdown_timeout),
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
            question: None,
            desktop,
            log,
            wishes,
            observed: setup.observed,
            reporter: setup.reporter,
            news,
            outcome: None,
        };
        let inbox = Inbox {
            signals,
            monitor: monitor_inbox,
            progress: progress_inbox,
            files: files_inbox,
            news: news_inbox,
        };
        (driver, inbox)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Milliseconds since this process began.
    fn ms_since_start(&self) -> u64 {
        self.process_began.elapsed().as_millis() as u64
    }

    /// Lets the state decide, and does what it says.
    fn step(&mut self, event: Event) {
        let before = self.state.phase();
        let (state, actions) = self.state.clone().step(self.now(), event);
        self.state = state;
        let phase = self.state.phase();
        if phase != before {
            tracing::info!(from = ?before, to = ?phase, ms_since_start = self.ms_since_start(), "machine");
            self.observed.phase = phase;
            self.guest_ran |= phase == Phase::Booting;
            self.judge_tpm_soon();
            self.reporter.announce(Note::Phase(phase));
            if matches!(phase, Phase::Booting | Phase::Booted) {
                self.wish(|desired| desired.booted = phase == Phase::Booted);
            }
        }
        for action in actions {
            self.act(action);
        }
        self.reporter.publish(&self.observed);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Configure => self.wish(|desired| desired.attempt += 1),
            Action::Continue => {
                let (monitor, news) = (self.monitor.clone(), self.news.clone());
                tokio::spawn(async move {
                    let continued = monitor.execute(Command::cont()).await;
                    let failed = |error: qmp::Error| Event::ContinueFailed(error.to_string());
                    news.send(News::Event(
                        continued.map_or_else(failed, |_| Event::Continued),
                    ))
                });
            }
            Action::AskAgent => self.ask_agent(),
            Action::ForgetGuest => self.forget_guest(),
            Action::ForgetAgent => self.forget_agent(),
            Action::ShutDownByAgent => self.shut_down_by_agent(),
            Action::PressPowerButton => self.give(Command::system_powerdown()),
            Action::Quit => self.give(Command::quit()),
            Action::Terminate => self.qemu.signal(ProcessSignal::TERM),
            Action::Kill => self.qemu.signal(ProcessSignal::KILL),
            Action::Finish(outcome) => self.outcome = Some(outcome),
        }
    }

    /// Changes what the machine should be.
    fn wish(&self, change: impl FnOnce(&mut Desired)) {
        self.wishes.send_if_modified(|desired| {
            let before = desired.clone();
            change(desired);
            *desired != before
        });
    }

    /// Gives a command whose effect is seen elsewhere.
    fn give(&self, command: Command) {
        let monitor = self.monitor.clone();
        tokio::spawn(async move {
            if let Err(error) = monitor.execute(command).await {
                tracing::warn!(%error, "monitor");
            }
        });
    }

    fn ask_agent(&mut self) {
        let (agent, news) = (self.agent.clone(), self.news.clone());
        self.ask(async move {
            match agent.osinfo().await {
                Ok(osinfo) => {
                    let _ = news.send(News::Osinfo(osinfo));
                    agent
                        .follow_addresses(|addresses| drop(news.send(News::Addresses(addresses))))
                        .await;
                }
                Err(error) => {
                    tracing::info!(%error, "the guest's agent does not answer yet");
                    let _ = news.send(News::Event(Event::AgentSilent));
                }
            }
        });
    }

    fn shut_down_by_agent(&mut self) {
        let (agent, news) = (self.agent.clone(), self.news.clone());
        self.ask(async move {
            if let Err(error) = agent.shutdown().await {
                tracing::warn!(%error, "the guest's agent does not shut down");
                let _ = news.send(News::Event(Event::AgentSilent));
            }
        });
    }

    /// One question to the agent at a time: a newer one makes the older pointless.
    fn ask(&mut self, question: impl Future<Output = ()> + Send + 'static) {
        if let Some(before) = self.question.replace(tokio::spawn(question)) {
            before.abort();
        }
    }

    /// What the agent has told is known no longer than it is there: nobody would tell of a change.
    fn forget_agent(&mut self) {
        if let Some(question) = self.question.take() {
            question.abort();
        }
        self.observed.osinfo = None;
        self.observed.addresses.clear();
    }

    fn forget_guest(&mut self) {
        self.forget_agent();
        self.observed.disk_error = None;
        let _ = self.desktop.send(vmop::Input::Reset);
        self.wish(Desired::reboot);
        self.log.clear();
    }
}

/// Follows the machine, whose QEMU was just started, until that has ended. This process began then. Gives the outcome, and who
/// tells the last status.
pub async fn run(setup: Setup, signals: Signals, process_began: Instant) -> (Outcome, Reporter) {
    let (mut driver, mut inbox) = Driver::new(setup, signals, process_began);
    driver.reporter.announce(Note::Phase(Phase::Starting));
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
            () = inbox.signals.end.asked() => driver.asked_to_end(),
            Some(_) = inbox.signals.child.recv() => driver.children_ended().await,
            Some(signal) = inbox.monitor.recv() => driver.monitor_signal(signal),
            Some(progress) = inbox.progress.recv() => driver.progressed(progress),
            Some(files) = inbox.files.recv() => driver.files_changed(files),
            Some(news) = inbox.news.recv() => driver.heard(news),
            () = tick => driver.step(Event::Tick),
        }
        if let Some(outcome) = driver.outcome.take() {
            driver.end_tpm().await;
            return (outcome, driver.reporter);
        }
    }
}
