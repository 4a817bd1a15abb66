//! (client) Brings the running VM to its desired state: gets commands from the pure
//! [`desired`](crate::runner::desired), sends them over QMP, and reports the results.
//!
//! Invariants: one task, and only the newest desired state counts. A change that QEMU rejects is
//! tried once. A change that could not be sent is retried. A failed change does not prevent the
//! others.

mod cpus;
mod media;
mod memory;
mod password;

pub use media::CdDrive;
pub use memory::{is_at_target, problem as memory_problem};
pub use password::PasswordRequest;

use crate::runner::desired::DesiredState;
use crate::runner::failure::Problem;
use crate::runner::machine::ImageLookup;
use crate::runner::qemu::disk_node;
use crate::runner::qmp::{Client, Command, Error};
use password::PasswordState;
use serde_json::Value;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Delay before commands that could not be sent are retried.
const FAILED_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Delay between two checks while the guest or an image is not ready yet.
const INCOMPLETE_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Minimum time between two attempts to continue the guest after a disk error. Each failed attempt
/// causes an event.
const CONTINUE_INTERVAL_MIN: Duration = Duration::from_secs(5);

/// A result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The number of CPUs.
    Cpus {
        /// The present number.
        count: u32,
        /// The reason for a difference from the wanted number.
        problem: Option<Problem>,
    },
    /// The guest's memory.
    Memory {
        /// In bytes.
        actual: u64,
        /// The reason for a difference from the wanted size.
        problem: Option<String>,
    },
    /// The reason why a CD drive does not have its configured image.
    Media(Option<Problem>),
    /// The guest runs again after a disk error.
    Resumed,
    /// The newest reset request that was carried out.
    Reset(Option<i64>),
    /// The display has a new password.
    PasswordSet,
    /// The reason why the display does not have its configured password.
    Password(Option<Problem>),
    /// All changes up to that generation of the configuration were sent to QEMU.
    Complete(Option<i64>),
}

/// The state that a VM was started with.
pub struct StartState {
    /// Finds CD images, including those that were not found at the start.
    pub image_lookup: ImageLookup,
    pub cd_drives: Vec<CdDrive>,
    /// Sizes of the disks, in bytes.
    pub sizes: Vec<u64>,
    /// The reset request that the start has fulfilled.
    pub reset: Option<i64>,
    /// Whether QEMU emulates the CPUs, or may do so.
    pub emulated: bool,
}

/// Follows the desired state until its sender is dropped.
pub async fn run(
    client: Client,
    start: StartState,
    mut wishes: watch::Receiver<DesiredState>,
    mut passwords: mpsc::Receiver<PasswordRequest>,
    progress: mpsc::UnboundedSender<Progress>,
) {
    let mut machine = LiveUpdater {
        client,
        progress,
        display: PasswordState::default(),
        image_lookup: start.image_lookup,
        balloon: None,
        cpus: None,
        emulated: start.emulated,
        cpu_additions: 0,
        waits_since: None,
        cd_drives: start.cd_drives,
        sizes: start.sizes.into_iter().map(|size| (size, size)).collect(),
        stalls: 0,
        continued_at: None,
        reset: start.reset,
    };
    loop {
        let desired = wishes.borrow_and_update().clone();
        let pause = match machine.follow(&desired).await {
            Ok(complete) => {
                let _ = machine
                    .progress
                    .send(Progress::Complete(desired.generation));
                (!complete).then_some(INCOMPLETE_RETRY_DELAY)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot apply the configuration to the running VM; the runner retries");
                Some(FAILED_RETRY_DELAY)
            }
        };
        let elapsed = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        let changed = tokio::select! {
            changed = wishes.changed() => changed,
            () = elapsed => Ok(()),
            Some(request) = passwords.recv() => {
                machine.set_one_time_password(desired.password.as_ref(), request).await;
                Ok(())
            }
        };
        if changed.is_err() {
            return;
        }
    }
}

/// The running VM, as far as QEMU has confirmed it.
struct LiveUpdater {
    client: Client,
    progress: mpsc::UnboundedSender<Progress>,
    image_lookup: ImageLookup,
    balloon: Option<memory::BalloonRequest>,
    display: PasswordState,
    /// The newest request for another number of CPUs.
    cpus: Option<cpus::CpuRequest>,
    emulated: bool,
    /// Number of CPUs that were added since the start of QEMU.
    cpu_additions: usize,
    /// The time since which CPUs wait for the guest to boot, and the number of that boot.
    waits_since: Option<(u64, Instant)>,
    cd_drives: Vec<CdDrive>,
    /// Sizes of the disks: the size in QEMU, and the newest requested size.
    sizes: Vec<(u64, u64)>,
    /// Number of guest stops by disks that are over, and the time of the newest attempt to end one.
    stalls: u64,
    continued_at: Option<Instant>,
    /// The newest reset request that was carried out.
    reset: Option<i64>,
}

impl LiveUpdater {
    /// Applies the desired state. Returns whether no further check is needed before the next event.
    /// A failed change does not prevent the others as long as QMP is connected.
    async fn follow(&mut self, desired: &DesiredState) -> Result<bool, Error> {
        let mut all = FollowResult::default();
        all.take(
            self.follow_password(desired.password.as_ref())
                .await
                .map(|()| true),
        )?;
        all.take(self.follow_disconnects(desired).await.map(|()| true))?;
        all.take(self.follow_sizes(desired).await.map(|()| true))?;
        all.take(self.follow_stall(desired).await)?;
        all.take(self.follow_memory(desired).await)?;
        all.take(self.follow_cpus(desired).await)?;
        all.take(self.follow_media(&desired.live.media).await)?;
        // Last, so that the guest boots with all other changes.
        all.take(self.follow_reset(desired.reset).await.map(|()| true))?;
        all.result()
    }

    /// Resets the VM for a new request, once. A reset without an answer may have been carried out and is not repeated.
    async fn follow_reset(&mut self, wanted: Option<i64>) -> Result<(), Error> {
        if wanted > self.reset && wanted.is_some() {
            match self.client.execute(Command::system_reset()).await {
                Err(error @ Error::Lost(_)) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "the requested reset of the VM may have failed, and the runner does not \
                        repeat the reset; if the guest did not reboot, increase spec.vm.resetRequest");
                }
                Ok(_) => tracing::info!(request = wanted, "the VM was reset as requested"),
            }
            // A guest that was stopped by a disk does not wait for its next attempt to continue.
            self.continued_at = None;
        }
        if wanted.is_some() && wanted != self.reset {
            self.reset = wanted;
            let _ = self.progress.send(Progress::Reset(wanted));
        }
        Ok(())
    }

    /// Resizes each disk that must grow, once. If QEMU rejects the size, the disk keeps its size.
    async fn follow_sizes(&mut self, desired: &DesiredState) -> Result<(), Error> {
        for n in 0..self.sizes.len() {
            let (Some((have, requested)), Some(want)) =
                (self.sizes.get(n).copied(), desired.sizes.get(n).copied())
            else {
                continue;
            };
            if want <= have || want == requested {
                continue;
            }
            let taken = self
                .try_command(Command::resize(&disk_node(n), want))
                .await?;
            if taken {
                tracing::info!(
                    disk = n,
                    bytes = want,
                    "QEMU has resized a disk and notified the guest"
                );
            }
            if let Some(size) = self.sizes.get_mut(n) {
                *size = (if taken { want } else { have }, want);
            }
        }
        Ok(())
    }

    /// Continues a guest that was stopped by a disk error. If the error persists, QEMU stops the
    /// guest again. Returns whether the guest runs.
    async fn follow_stall(&mut self, desired: &DesiredState) -> Result<bool, Error> {
        if desired.stalls == self.stalls {
            return Ok(true);
        }
        if self
            .continued_at
            .is_some_and(|at| at.elapsed() < CONTINUE_INTERVAL_MIN)
        {
            return Ok(false);
        }
        let status = self.client.execute(Command::query_status()).await?;
        match status.get("status").and_then(Value::as_str) {
            Some("running") => {
                self.stalls = desired.stalls;
                let _ = self.progress.send(Progress::Resumed);
                Ok(true)
            }
            // QEMU does not run a stopped guest after its reset.
            Some("io-error" | "prelaunch") => {
                self.continued_at = Some(Instant::now());
                self.try_command(Command::cont()).await?;
                Ok(false)
            }
            // The VM ends soon.
            _ => Ok(false),
        }
    }

    /// Sends the command and returns whether QEMU has accepted it. Only a command that was not
    /// answered is an error.
    async fn try_command(&self, command: Command) -> Result<bool, Error> {
        match self.client.execute(command).await {
            Ok(_) => Ok(true),
            Err(error @ Error::Rejected { .. }) => {
                tracing::warn!(%error, "QEMU has rejected a QMP command; a change of the VM that did not take effect needs a restart of the VM");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Combined result of all changes.
struct FollowResult {
    complete: bool,
    error: Option<Error>,
}

impl Default for FollowResult {
    fn default() -> Self {
        Self {
            complete: true,
            error: None,
        }
    }
}

impl FollowResult {
    /// Adds the result of one change. Returns an error if the connection is lost, because all
    /// others would fail too.
    fn take(&mut self, result: Result<bool, Error>) -> Result<(), Error> {
        match result {
            Ok(complete) => self.complete &= complete,
            Err(error @ Error::Lost(_)) => return Err(error),
            Err(error) => self.error = self.error.take().or(Some(error)),
        }
        Ok(())
    }

    /// The first error, or whether all changes are complete.
    fn result(self) -> Result<bool, Error> {
        self.error.map_or(Ok(self.complete), Err)
    }
}

#[cfg(test)]
mod tests;
