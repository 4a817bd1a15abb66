//! (io) Handles the exit of the VM's TPM, a process beside QEMU.
//!
//! The TPM exits when QEMU closes its connection. An exiting QEMU closes it before its own exit is
//! known, so the order in which both are reaped has no meaning.

use crate::api::vm::conditions::ConditionReason;
use crate::runner::driver::{Driver, TaskResult};
use crate::runner::failure::{Problem, describe_exit, with_output};
use crate::runner::machine;
use crate::runner::process::{self, Child};
use crate::runner::state::Phase;
use rustix::process::{Pid, Signal};
use std::time::Duration;

/// Number of checks whether the TPM has exited, and the delay between them. The TPM has 2 s in
/// total.
const EXIT_POLLS_MAX: u32 = 40;
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Delay between the exit of the TPM and the check whether QEMU still runs.
const QEMU_EXIT_DELAY: Duration = Duration::from_millis(500);
/// QEMU's name for its side of the TPM, as it occurs in QEMU's error messages.
const QEMU_TPM_MODEL: &str = "tpm-emulator";

pub(super) struct Tpm {
    child: Child,
    /// The exit code or negative signal and the last output, until they are reported.
    exit: Option<(i32, String)>,
}

impl Tpm {
    pub(super) fn new(child: Child) -> Self {
        Self { child, exit: None }
    }
}

impl Driver {
    /// Stores the exit of the TPM, if the list contains it.
    pub(super) async fn record_tpm_exit(&mut self, ended: &[(Pid, i32)]) {
        let Some(tpm) = &mut self.tpm else { return };
        let Some((_, status)) = ended.iter().find(|(pid, _)| tpm.child.has_pid(*pid)) else {
            return;
        };
        tpm.exit = Some((*status, tpm.child.finish_output().await));
        self.schedule_tpm_check();
    }

    /// Schedules a check whether QEMU runs without its TPM, if the TPM has exited.
    pub(super) fn schedule_tpm_check(&self) {
        if self.tpm.as_ref().is_some_and(|tpm| tpm.exit.is_some()) {
            let task_results = self.task_results.clone();
            tokio::spawn(async move {
                tokio::time::sleep(QEMU_EXIT_DELAY).await;
                let _ = task_results.send(TaskResult::TpmCheckDue);
            });
        }
    }

    /// Reports a TPM that has exited while QEMU runs. QEMU cannot be connected to a new one.
    pub(super) fn check_tpm(&mut self) {
        if self.qemu.has_exited() || !matches!(self.state.phase(), Phase::Booting | Phase::Booted) {
            return;
        }
        let Some((status, output)) = self.tpm.as_mut().and_then(|tpm| tpm.exit.take()) else {
            return;
        };
        let message = format!(
            "the VM's TPM (swtpm) has exited with {}; the guest continues without a TPM. \
             To restart the VM, increase spec.vm.restartRequest; the TPM's state is retained",
            with_output(&describe_exit(status), &output)
        );
        tracing::error!("{message}");
        self.observed.tpm = Some(Some(Problem::new(ConditionReason::TpmEnded, message)));
        self.reporter.publish(&self.observed);
    }

    /// QEMU's output before the guest started, with that of the TPM if the TPM may be the cause.
    pub(super) async fn start_output(&mut self, qemu_output: String) -> String {
        let failed = |tpm: &Tpm| tpm.exit.as_ref().is_some_and(|(status, _)| *status != 0);
        if !qemu_output.contains(QEMU_TPM_MODEL) && !self.tpm.as_ref().is_some_and(failed) {
            return qemu_output;
        }
        self.stop_tpm().await;
        let Some((status, output)) = self.tpm.as_mut().and_then(|tpm| tpm.exit.take()) else {
            return qemu_output;
        };
        let tpm_output = format!(
            "the VM's TPM (swtpm) has exited with {}. If the TPM's state file {} is damaged, \
             restore the file from a backup. Without this file, the guest loses the keys in the TPM",
            with_output(&describe_exit(status), &output),
            self.dirs.data.join(machine::TPM_STATE_FILE).display()
        );
        [qemu_output, tpm_output]
            .into_iter()
            .filter(|output| !output.is_empty())
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// Waits for the exit of the TPM, and kills it after the time that it has to write its state.
    pub(super) async fn stop_tpm(&mut self) {
        for left in (0..EXIT_POLLS_MAX).rev() {
            let Some(tpm) = self.tpm.as_ref().filter(|tpm| !tpm.child.has_exited()) else {
                return;
            };
            if left == 0 {
                tpm.child.signal(Signal::KILL);
            }
            self.record_tpm_exit(&process::reap()).await;
            if self.tpm.as_ref().is_some_and(|tpm| !tpm.child.has_exited()) {
                tokio::time::sleep(EXIT_POLL_INTERVAL).await;
            }
        }
    }
}
