//! (io) The machine's TPM, a process beside QEMU: its end, and what that means.
//!
//! It ends with QEMU's connection, which a QEMU that ends closes before its own end is known: which of both is reaped first
//! says nothing.

use crate::api::conditions::ConditionReason;
use crate::runner::driver::{Driver, News};
use crate::runner::failure::{ending, with_words};
use crate::runner::machine;
use crate::runner::problem::Problem;
use crate::runner::process::{self, Child};
use crate::runner::state::Phase;
use crate::runner::status::Note;
use rustix::process::{Pid, Signal};
use std::time::Duration;

/// How often, and in which steps, the end of the TPM is looked for.
const STEPS: u32 = 40;
const STEP: Duration = Duration::from_millis(50);
/// Time for QEMU's end to be known after the TPM's.
const A_MOMENT: Duration = Duration::from_millis(500);
/// How QEMU names its side of the TPM.
const QEMUS_SIDE: &str = "tpm-emulator";

/// The TPM.
pub(super) struct Tpm {
    child: Child,
    /// Its exit code or minus its signal, and what it said last, until somebody is told.
    end: Option<(i32, String)>,
}

impl Tpm {
    pub(super) fn new(child: Child) -> Self {
        Self { child, end: None }
    }
}

impl Driver {
    /// Takes note of the TPM's end, if it is among those.
    pub(super) async fn tpm_among(&mut self, ended: &[(Pid, i32)]) {
        let Some(tpm) = &mut self.tpm else { return };
        let Some((_, status)) = ended.iter().find(|(pid, _)| tpm.child.is(*pid)) else {
            return;
        };
        tpm.end = Some((*status, tpm.child.ended().await));
        self.judge_tpm_soon();
    }

    /// Has it found out in a moment whether QEMU goes on without its TPM, if that has ended.
    pub(super) fn judge_tpm_soon(&self) {
        if self.tpm.as_ref().is_some_and(|tpm| tpm.end.is_some()) {
            let news = self.news.clone();
            tokio::spawn(async move {
                tokio::time::sleep(A_MOMENT).await;
                let _ = news.send(News::TpmEnded);
            });
        }
    }

    /// Tells of a TPM that has ended while QEMU goes on, which cannot be given another one.
    pub(super) fn judge_tpm(&mut self) {
        if self.qemu.has_ended() || !matches!(self.state.phase(), Phase::Booting | Phase::Booted) {
            return;
        }
        let Some((status, words)) = self.tpm.as_mut().and_then(|tpm| tpm.end.take()) else {
            return;
        };
        let message = format!(
            "the machine's TPM (swtpm) has ended with {}; the guest runs on without it, and what needs it there fails \
             until the VM is started anew (spec.vm.restartRequest); what the TPM had stored is kept",
            with_words(&ending(status), &words)
        );
        tracing::error!("{message}");
        self.reporter.announce(Note::TpmEnded(message.clone()));
        self.observed.tpm = Some(Some(Problem::new(ConditionReason::TpmEnded, message)));
        self.reporter.publish(&self.observed);
    }

    /// What QEMU has said before the guest ran, and what the TPM has, where it is why.
    pub(super) async fn words_of_start(&mut self, qemus: String) -> String {
        let failed = |tpm: &Tpm| tpm.end.as_ref().is_some_and(|(status, _)| *status != 0);
        if !qemus.contains(QEMUS_SIDE) && !self.tpm.as_ref().is_some_and(failed) {
            return qemus;
        }
        self.end_tpm().await;
        let Some((status, words)) = self.tpm.as_mut().and_then(|tpm| tpm.end.take()) else {
            return qemus;
        };
        let tpms = format!(
            "the machine's TPM (swtpm) has ended with {}; if its state, {}, is damaged, bring back a copy of it, or remove \
             it with the keys that the guest has there",
            with_words(&ending(status), &words),
            self.dirs.data.join(machine::TPM_STATE_FILE).display()
        );
        [qemus, tpms]
            .into_iter()
            .filter(|words| !words.is_empty())
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// The TPM ends with QEMU's connection; it has a moment to write its state.
    pub(super) async fn end_tpm(&mut self) {
        for left in (0..STEPS).rev() {
            let Some(tpm) = self.tpm.as_ref().filter(|tpm| !tpm.child.has_ended()) else {
                return;
            };
            if left == 0 {
                tpm.child.signal(Signal::KILL);
            }
            self.tpm_among(&process::reap()).await;
            if self.tpm.as_ref().is_some_and(|tpm| !tpm.child.has_ended()) {
                tokio::time::sleep(STEP).await;
            }
        }
    }
}
