//! (io) Runs the check in a child process, because a defective KVM can hang or kill the process that uses it.
//!
//! The child is this program. It writes one line of JSON before each step and one at its end.

use crate::runner::kvm::check::{self, Extent, FailedStep, Step};
use crate::runner::{failure, harden};
use crate::sys::child;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// This program. The path stays valid if the file is replaced.
pub const OWN_PROGRAM: &str = "/proc/self/exe";
/// The subcommand of this program that checks KVM.
const COMMAND: &str = "kvm-check";
/// The option with which the subcommand executes the steps itself, as the child.
pub const STEPS_OPTION: &str = "steps";

/// A line of the child's standard output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Line {
    /// The step begins.
    Begin(Step),
    /// The step has failed. No other step follows.
    Failed(FailedStep),
    /// All steps have succeeded.
    Passed,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// All steps have succeeded.
    Passed,
    /// A step has failed.
    Failed(FailedStep),
    /// The check has reached its time limit in this step: KVM is slow or hangs.
    Unknown(Option<Step>),
}

/// A check in a child process.
pub struct Check<'a> {
    /// The executable of the child.
    pub program: &'a Path,
    /// The device.
    pub device: &'a Path,
    pub extent: Extent,
    /// Maximum duration of the check.
    pub limit: Duration,
}

impl Check<'_> {
    /// Runs the check. `begin` is called for each step. Dropping the future kills the child.
    pub async fn run(&self, mut begin: impl FnMut(Step)) -> Finding {
        let mut child = match self.spawn() {
            Ok(child) => child,
            Err(error) => {
                let why = format!(
                    "the runner cannot start the process of the KVM check: {error}; check the memory limit of the pod, and its \
                     limit of processes (podPidsLimit of the kubelet)"
                );
                return Finding::Failed(FailedStep {
                    step: Step::Open,
                    why,
                });
            }
        };
        let mut current = None;
        let work = async {
            let begin = |step| {
                current = Some(step);
                begin(step);
            };
            match follow(&mut child, begin).await {
                Some(finding) => Ok(finding),
                None => Err(describe_exit(&mut child).await),
            }
        };
        match tokio::time::timeout(self.limit, work).await {
            Ok(Ok(finding)) => finding,
            Ok(Err(why)) => Finding::Failed(FailedStep {
                step: current.unwrap_or(Step::Open),
                why,
            }),
            Err(_) => Finding::Unknown(current),
        }
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let mut command = Command::new(self.program);
        command
            .args([COMMAND, "--device"])
            .arg(self.device)
            .arg(format!("--{STEPS_OPTION}"))
            .args((self.extent == Extent::Basic).then_some("--basic"))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        child::interrupt_with_parent(command.as_std_mut());
        command.spawn()
    }
}

/// Reads the child's lines until the last one. `None` if the child exits before.
async fn follow(child: &mut Child, mut begin: impl FnMut(Step)) -> Option<Finding> {
    let mut lines = BufReader::new(child.stdout.take()?).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(Line::Begin(step)) => begin(step),
            Ok(Line::Failed(failed)) => return Some(Finding::Failed(failed)),
            Ok(Line::Passed) => return Some(Finding::Passed),
            Err(_) => tracing::info!("output of {COMMAND}: {line}"),
        }
    }
    None
}

/// Describes the exit of a child that has not written its last line.
async fn describe_exit(child: &mut Child) -> String {
    let status = match child.wait().await {
        Ok(status) => status,
        Err(error) => {
            return format!(
                "the runner cannot read the exit status of the KVM check: {error}; restart the VM to check again"
            );
        }
    };
    let signal = status.signal().map(|signal| -signal);
    let status = status.code().or(signal).unwrap_or_default();
    format!(
        "the process of the KVM check exited with {}; see the pod's log and the kernel log of the node",
        failure::describe_exit(status)
    )
}

/// The child: executes the steps and writes its lines.
pub fn write_steps(device: &Path, extent: Extent) -> std::io::Result<()> {
    // The check needs the device and nothing else of the VM.
    let mut files = harden::FileAccess::of_programs();
    files.push((PathBuf::from(device), harden::Access::Write));
    harden::confine_process(&files).map_err(|failure| std::io::Error::other(failure.message))?;
    let write = |line: &Line| -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, line)?;
        out.write_all(b"\n")?;
        out.flush()
    };
    // Without its parent the check has no purpose, and its result has no reader.
    let result = check::run(device, extent, &mut |step| drop(write(&Line::Begin(step))));
    write(&result.map_or_else(Line::Failed, |()| Line::Passed))
}
