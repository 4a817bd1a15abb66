//! A driver with a simulated QEMU: the test answers QMP commands, and a script is the process.

mod reports;
mod tpm;

use crate::api::runner::outcome::EndReason;
use crate::pinned_tls::KeyPair;
use crate::runner::driver::guest_stop::*;
use crate::runner::driver::{Inbox, Setup, Tpm};
use crate::runner::harden::FileAccess;
use crate::runner::machine::{self, Directories};
use crate::runner::qmp::testing::Peer;
use crate::runner::report::Reporter;
use crate::runner::signals::{ShutdownSignal, Signals};
use crate::runner::spec::Spec;
use crate::runner::state::Phase;
use crate::runner::status::ConfigProblem;
use crate::runner::status::Observed;
use crate::runner::status::tests::observed;
use crate::runner::watch::ConfigFiles;
use crate::runner::{config, live, process};
use rustix::process::{Pid, Signal, WaitOptions};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};

const WORDS: &str = "KVM internal error. Suberror: 1";

struct Rig {
    _dir: tempfile::TempDir,
    driver: Driver,
    inbox: Inbox,
    _desktop: UnixListener,
    peer: Peer,
    /// The names of the commands that were answered.
    heard: Vec<String>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.driver.qemu.signal(Signal::KILL);
        let _ = rustix::process::waitpid(Some(self.qemu()), WaitOptions::empty());
    }
}

fn setup(dirs: Directories, monitor: UnixStream, acceleration: Acceleration) -> Setup {
    let config =
        config::parse(r#"{"/Runner": {"vm": {"name": "test-vm", "display": {"spice": {}}}}}"#)
            .unwrap()
            .config;
    let script = [
        "-c".to_owned(),
        format!("echo '{WORDS}' >&2; echo EAX=0 >&2; exec sleep 60"),
    ];
    let first = Observed {
        acceleration,
        ..observed(Phase::Starting)
    };
    let (line, _) = std::os::unix::net::UnixStream::pair().unwrap();
    line.set_nonblocking(true).unwrap();
    Setup {
        spec: Spec::from_config(&config).unwrap(),
        configured: config,
        config: dirs.file("config.yaml"),
        files: ConfigFiles {
            config: Ok(None),
            password: Ok(None),
            certificate: [None; 3],
            console_keys: Vec::new(),
        },
        type_is_alias: false,
        ticketing: false,
        qemu: process::spawn("/bin/sh", &script, &FileAccess::of_programs(), Vec::new()).unwrap(),
        tpm: None,
        monitor,
        line: UnixStream::from_std(line).unwrap(),
        console: UnixListener::bind(dirs.file("console.sock")).unwrap(),
        console_port: (0, KeyPair::generate().unwrap()),
        display: None,
        pod: None,
        held_devices: Vec::new(),
        metrics: None,
        start: live::StartState {
            image_lookup: machine::ImageLookup::new(
                dirs.data.clone(),
                Arc::new(machine::find_cd_image),
            ),
            cd_drives: Vec::new(),
            sizes: Vec::new(),
            reset: None,
            emulated: true,
        },
        observed: first.clone(),
        reporter: Reporter::start(None, first),
        dirs,
    }
}

/// A VM with a running guest.
async fn rig() -> Rig {
    rig_with(Acceleration::Tcg).await
}

async fn rig_with(acceleration: Acceleration) -> Rig {
    let mut rig = starting_with(acceleration).await;
    rig.driver.step(Event::Configured);
    rig.driver.step(Event::Continued);
    assert_eq!(rig.driver.state.phase(), Phase::Booting);
    rig
}

/// One that is not configured yet.
async fn starting() -> Rig {
    starting_with(Acceleration::Tcg).await
}

async fn starting_with(acceleration: Acceleration) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let dirs = Directories {
        data: dir.path().to_owned(),
        runtime: dir.path().to_owned(),
    };
    let (monitor, qemus) = UnixStream::pair().unwrap();
    let desktop = UnixListener::bind(dirs.file(machine::VMOP_AGENT_SOCKET)).unwrap();
    let (driver, inbox) = Driver::new(
        setup(dirs, monitor, acceleration),
        Signals::receive().unwrap(),
        Instant::now(),
    );
    let peer = Peer::send_greeting(qemus).await;
    let mut rig = Rig {
        _dir: dir,
        driver,
        inbox,
        _desktop: desktop,
        peer,
        heard: Vec::new(),
    };
    let ready = rig.inbox.monitor.recv().await.unwrap();
    rig.driver.handle_qmp_signal(ready);
    // On a busy host, QEMU prints the message late.
    let said = async {
        while rig.driver.qemu.kvm_error().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_secs(10), said)
            .await
            .is_ok(),
        "QEMU has said nothing"
    );
    rig
}

impl Rig {
    /// Lets the driver work, on a QEMU with that run state, until that holds.
    async fn until(&mut self, run_state: &str, holds: impl Fn(&Driver) -> bool) {
        self.work(run_state, |driver, _| holds(driver)).await;
    }

    /// The same, for a condition on the driver and the answered commands.
    async fn work(&mut self, run_state: &str, holds: impl Fn(&Driver, &[String]) -> bool) {
        let work = async {
            while !holds(&self.driver, &self.heard) {
                tokio::select! {
                    Some(signal) = self.inbox.monitor.recv() => self.driver.handle_qmp_signal(signal),
                    Some(progress) = self.inbox.progress.recv() => self.driver.handle_progress(progress),
                    Some(task_results) = self.inbox.task_results.recv() => self.driver.task_finished(task_results),
                    command = self.peer.receive_command() => {
                        self.heard.extend(command["execute"].as_str().map(str::to_owned));
                        let answer = match command["execute"].as_str() {
                            Some("query-status") => json!({"status": run_state}),
                            _ => json!({}),
                        };
                        self.peer.send_line(&json!({"return": answer, "id": command["id"]}).to_string()).await;
                    }
                }
            }
        };
        assert!(
            tokio::time::timeout(Duration::from_secs(10), work)
                .await
                .is_ok(),
            "nothing of it in {run_state}"
        );
    }

    /// Loses the monitor's connection and gets another.
    /// Gives the machine a TPM that has said that and ended; gives its process id.
    fn take_tpm(&mut self, words: &str) -> Pid {
        let script = ["-c".to_owned(), format!("echo '{words}' >&2")];
        let tpm =
            process::spawn("/bin/sh", &script, &FileAccess::of_programs(), Vec::new()).unwrap();
        let pid = Pid::from_raw(tpm.id()).unwrap();
        self.driver.tpm = Some(Tpm::new(tpm));
        pid
    }

    fn qemu(&self) -> Pid {
        Pid::from_raw(self.driver.qemu.id()).unwrap()
    }

    async fn stop(&mut self) {
        self.peer
            .send_line(r#"{"event": "STOP", "timestamp": {"seconds": 1, "microseconds": 2}}"#)
            .await;
    }

    /// The outcome, when QEMU has ended.
    fn outcome(&mut self) -> crate::api::runner::outcome::Outcome {
        self.driver.step(Event::QemuExited {
            status: 0,
            last_output: String::new(),
        });
        self.driver.outcome.take().unwrap()
    }
}

fn terminates(driver: &Driver) -> bool {
    driver.state.phase() == Phase::Terminating
}

#[tokio::test]
async fn kvm_failure_ends_the_machine_with_the_qemu_message() {
    let mut rig = rig().await;
    while rig.driver.qemu.kvm_error().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    rig.stop().await;
    rig.until("internal-error", terminates).await;
    let outcome = rig.outcome();
    assert_eq!(
        (outcome.reason, outcome.by_guest),
        (EndReason::GuestHalted, false)
    );
    assert!(outcome.message.ends_with(WORDS), "{}", outcome.message);
}

#[tokio::test]
async fn under_kvm_a_guest_that_cannot_continue_is_unavailable_acceleration() {
    let mut rig = rig_with(Acceleration::Kvm).await;
    rig.stop().await;
    rig.until("internal-error", terminates).await;
    let outcome = rig.outcome();
    assert_eq!(outcome.reason, EndReason::AcceleratorUnavailable);
    assert!(
        outcome.message.contains("KVM cannot resume the guest") && outcome.message.ends_with(WORDS),
        "{}",
        outcome.message
    );
}

#[tokio::test]
async fn a_guest_that_has_crashed_ends_the_machine_and_is_no_shutdown_by_the_guest() {
    let mut rig = rig().await;
    rig.stop().await;
    rig.until("guest-panicked", terminates).await;
    let outcome = rig.outcome();
    assert_eq!(
        (outcome.reason, outcome.by_guest),
        (EndReason::GuestHalted, false)
    );
    assert!(
        outcome.message.contains("guest-panicked"),
        "{}",
        outcome.message
    );
}

#[tokio::test]
async fn disk_error_that_stops_the_guest_is_reported_without_a_disk_event() {
    let mut rig = rig().await;
    rig.stop().await;
    rig.until("io-error", |driver| driver.observed.stalled.is_some())
        .await;
    assert_eq!(rig.driver.state.phase(), Phase::Booting);
    let conditions = rig.driver.observed.conditions();
    let storage = conditions
        .iter()
        .find(|condition| condition.type_ == "StorageHealthy")
        .unwrap();
    assert_eq!(
        (storage.status, storage.reason.as_str()),
        (false, "DiskError")
    );
}

#[tokio::test]
async fn a_host_that_fails_shuts_no_guest_down_by_its_own_wish() {
    let mut rig = rig().await;
    // That of a signal is QEMU's own end.
    for reason in ["host-signal", "host-error"] {
        let event = json!({"event": "SHUTDOWN", "data": {"guest": false, "reason": reason}});
        assert_eq!(rig.driver.state.phase(), Phase::Booting, "{reason}");
        rig.peer.send_line(&event.to_string()).await;
        if reason == "host-signal" {
            rig.stop().await;
            let nothing =
                tokio::time::timeout(Duration::from_millis(300), rig.until("running", terminates));
            assert!(nothing.await.is_err());
        }
    }
    rig.until("shutdown", terminates).await;
    let outcome = rig.outcome();
    assert_eq!(
        (outcome.reason, outcome.by_guest),
        (EndReason::GuestHalted, false)
    );
    assert!(
        outcome.message.contains("host-error"),
        "{}",
        outcome.message
    );
}

#[tokio::test]
async fn stop_request_before_the_guest_runs_ends_qemu_without_a_start() {
    for configured in [false, true] {
        let mut rig = starting().await;
        if configured {
            // QEMU is asked to let the guest run, and has not answered.
            rig.driver.step(Event::Configured);
        }
        rig.driver.shutdown_requested(ShutdownSignal::Request);
        assert!(terminates(&rig.driver));
        let quit = async {
            loop {
                let command = rig.peer.receive_command().await;
                if command["execute"] == "quit" {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), quit)
            .await
            .unwrap();
        // Too late.
        rig.driver.step(Event::Configured);
        rig.driver.step(Event::Continued);
        assert!(terminates(&rig.driver));
        assert_eq!(rig.outcome().reason, EndReason::Stopped);
    }
}
