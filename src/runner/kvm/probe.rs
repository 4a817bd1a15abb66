//! (io) Runs a QEMU that should end soon, and says what came of it.

use crate::runner::failure;
use crate::runner::harden::Access;
use crate::runner::kvm::guest;
use crate::runner::process::{self, Child};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// Time for QEMU to start, run the guest and end.
pub const TIME: Duration = Duration::from_secs(5);
/// How often its end is looked for.
const STEP: Duration = Duration::from_millis(3);

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
pub enum Finding {
    /// The guest has come to its end.
    Works,
    /// It has not, and why.
    Failed(String),
    /// It has not in time.
    Hangs,
}

/// Runs that QEMU with the guest. Given up, it is killed.
pub async fn run(
    program: &'static str,
    arguments: &[String],
    reach: &[(PathBuf, Access)],
) -> Finding {
    let mut running = match start(program, arguments, reach) {
        Ok(child) => Running(child),
        Err(error) => return Finding::Failed(format!("{program} cannot be started: {error}")),
    };
    let deadline = Instant::now() + TIME;
    while Instant::now() < deadline {
        if let Some(status) = running.0.reaped() {
            let words = running.0.ended().await;
            return match status {
                guest::THROUGH => Finding::Works,
                _ => Finding::Failed(failure::with_words(
                    &format!("QEMU ended with {}", failure::ending(status)),
                    &words,
                )),
            };
        }
        if let Some(line) = running.0.halted() {
            return Finding::Failed(format!("it has brought the guest's CPU to a halt: {line}"));
        }
        tokio::time::sleep(STEP).await;
    }
    Finding::Hangs
}

/// Starts it so that its failure leaves no core dump.
fn start(
    program: &'static str,
    arguments: &[String],
    reach: &[(PathBuf, Access)],
) -> std::io::Result<Child> {
    let usual = getrlimit(Resource::Core);
    let _ = setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            ..usual
        },
    );
    let child = process::spawn(program, arguments, reach, Vec::new());
    let _ = setrlimit(Resource::Core, usual);
    child
}

/// Ends with its owner, and leaves no zombie.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.signal(Signal::KILL);
        self.0.wait();
    }
}
