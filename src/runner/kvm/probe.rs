//! (io) Runs QEMU with the test guest.

use crate::runner::failure;
use crate::runner::harden::Access;
use crate::runner::kvm::guest;
use crate::runner::process::{self, Child};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// Time for QEMU to start, run the guest and exit.
pub const QEMU_TEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay between two checks whether QEMU has exited.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(3);

/// Result of the test.
#[derive(Debug, PartialEq, Eq)]
pub enum Finding {
    /// The guest has run to its end.
    Works,
    /// The guest has failed, for that reason.
    Failed(String),
    /// The test has timed out.
    Hangs,
}

/// Runs QEMU with the guest. Dropping the future kills QEMU.
pub async fn run(
    program: &'static str,
    arguments: &[String],
    files: &[(PathBuf, Access)],
) -> Finding {
    let mut running = match start(program, arguments, files) {
        Ok(child) => KillOnDrop(child),
        Err(error) => return Finding::Failed(format!("{program} cannot be started: {error}")),
    };
    let deadline = Instant::now() + QEMU_TEST_TIMEOUT;
    while Instant::now() < deadline {
        if let Some(status) = running.0.try_reap() {
            let words = running.0.finish_output().await;
            return match status {
                guest::SUCCESS_EXIT_CODE => Finding::Works,
                _ => Finding::Failed(failure::with_output(
                    &format!("QEMU ended with {}", failure::describe_exit(status)),
                    &words,
                )),
            };
        }
        if let Some(line) = running.0.kvm_error() {
            return Finding::Failed(format!("it has stopped the guest's CPU: {line}"));
        }
        tokio::time::sleep(EXIT_POLL_INTERVAL).await;
    }
    Finding::Hangs
}

/// Starts QEMU without core dumps.
fn start(
    program: &'static str,
    arguments: &[String],
    files: &[(PathBuf, Access)],
) -> std::io::Result<Child> {
    let usual = getrlimit(Resource::Core);
    let _ = setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            ..usual
        },
    );
    let child = process::spawn(program, arguments, files, Vec::new());
    let _ = setrlimit(Resource::Core, usual);
    child
}

/// Kills and reaps the child when it is dropped.
pub struct KillOnDrop(pub Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.signal(Signal::KILL);
        self.0.wait();
    }
}
