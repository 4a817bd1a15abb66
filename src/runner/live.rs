//! (client) Makes the running machine what it should be: asks the pure [`desired`](crate::runner::desired) for commands, gives
//! them, tells what came of it.
//!
//! One task; newest wish wins. What always holds: a wish that QEMU refuses is tried once; one that could not be brought to
//! QEMU is tried again; what goes wrong with one aspect keeps no other from being followed.

mod cpus;
mod media;
mod memory;
mod password;

pub use media::Tray;

use crate::api::quantity::Bytes;
use crate::runner::desired::Desired;
use crate::runner::machine::Looks;
use crate::runner::problem::Problem;
use crate::runner::qemu::disk_node;
use crate::runner::qmp::{Client, Command, Error};
use password::Display;
use serde_json::Value;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Pause before commands are tried again that could not be brought to QEMU.
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// Pause between looks at what the guest, or somebody who brings an image, has still to do.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Least time between two attempts to go on after a disk error: each that fails is an event.
const CONTINUE_INTERVAL_MIN: Duration = Duration::from_secs(5);

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// How many CPUs there are, and why not as many as wanted.
    Cpus {
        /// How many there are.
        count: u32,
        /// Why there are not as many as wanted.
        problem: Option<Problem>,
    },
    /// How much memory the guest has, and why not as much as wanted.
    Memory {
        /// Bytes.
        actual: u64,
        /// Why it is not as much as wanted.
        problem: Option<String>,
    },
    /// Why a CD drive has not the medium that it should have.
    Media(Option<Problem>),
    /// The guest goes on after a disk could not.
    Resumed,
    /// The last request for a reset that was carried out.
    Reset(Option<i64>),
    /// The display has a new password.
    PasswordSet,
    /// Why the display has not the password that it should have.
    Password(Option<Problem>),
    /// All of the wish of that generation was brought to QEMU.
    Complete(Option<i64>),
}

/// What a machine was started with.
pub struct Start {
    /// Finds CD images; with what has not been found yet.
    pub looks: Looks,
    /// The CD drives.
    pub trays: Vec<Tray>,
    /// Sizes of the disks, in bytes.
    pub sizes: Vec<u64>,
    /// Request for a reset that the start has fulfilled.
    pub reset: Option<i64>,
}

/// Follows the wishes until nobody has any more.
pub async fn run(
    client: Client,
    start: Start,
    mut wishes: watch::Receiver<Desired>,
    progress: mpsc::UnboundedSender<Progress>,
) {
    let mut machine = Machine {
        client,
        progress,
        display: Display::default(),
        looks: start.looks,
        balloon: None,
        cpus: None,
        waits_since: None,
        trays: start.trays,
        sizes: start.sizes.into_iter().map(|size| (size, size)).collect(),
        stalls: 0,
        tried_to_go_on: None,
        reset: start.reset,
    };
    loop {
        let desired = wishes.borrow_and_update().clone();
        let pause = match machine.follow(&desired).await {
            Ok(complete) => {
                let _ = machine
                    .progress
                    .send(Progress::Complete(desired.generation));
                (!complete).then_some(LOOK_AGAIN)
            }
            Err(error) => {
                tracing::warn!(%error, "the machine is not as configured yet");
                Some(TRY_AGAIN)
            }
        };
        let changed = match pause {
            Some(pause) => tokio::time::timeout(pause, wishes.changed())
                .await
                .unwrap_or(Ok(())),
            None => wishes.changed().await,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// The machine as far as it is known what it was asked.
struct Machine {
    client: Client,
    progress: mpsc::UnboundedSender<Progress>,
    /// What finds CD images.
    looks: Looks,
    /// What the balloon was asked for, and when.
    balloon: Option<(Bytes, Instant)>,
    display: Display,
    /// The number of CPUs that was asked for last, where there is another.
    cpus: Option<cpus::Asked>,
    /// Since when CPUs wait for the guest, and in which of its boots.
    waits_since: Option<(u64, Instant)>,
    trays: Vec<Tray>,
    /// Sizes of the disks: as QEMU knows them, and as it was asked for last.
    sizes: Vec<(u64, u64)>,
    /// How many of the guest's stops by a disk are over, and when it was tried last to end one.
    stalls: u64,
    tried_to_go_on: Option<Instant>,
    /// The last request for a reset that was carried out.
    reset: Option<i64>,
}

impl Machine {
    /// Follows the wish; says whether it need not be looked at again before something happens. Where something goes wrong,
    /// the rest is followed all the same, as long as QEMU can be reached.
    async fn follow(&mut self, desired: &Desired) -> Result<bool, Error> {
        let mut all = All::default();
        all.take(
            self.follow_password(desired.password.as_ref())
                .await
                .map(|()| true),
        )?;
        all.take(self.follow_sizes(desired).await.map(|()| true))?;
        all.take(self.follow_stall(desired).await)?;
        all.take(self.follow_memory(desired).await)?;
        all.take(self.follow_cpus(desired).await)?;
        all.take(self.follow_media(&desired.live.media).await)?;
        // Last, so that the guest boots with all of the above.
        all.take(self.follow_reset(desired.reset).await.map(|()| true))?;
        all.result()
    }

    /// Resets the machine where that was asked for anew, once: what QEMU may have done already is not done again.
    async fn follow_reset(&mut self, wanted: Option<i64>) -> Result<(), Error> {
        if wanted > self.reset && wanted.is_some() {
            match self.client.execute(Command::system_reset()).await {
                Err(error @ Error::Lost(_)) => return Err(error),
                Err(error) => tracing::warn!(%error, "the reset counts as done"),
                Ok(_) => tracing::info!(request = wanted, "the machine is reset"),
            }
        }
        if wanted.is_some() && wanted != self.reset {
            self.reset = wanted;
            let _ = self.progress.send(Progress::Reset(wanted));
        }
        Ok(())
    }

    /// Tells QEMU of each disk that has to be larger than it is, once; what it refuses leaves the disk as it is.
    async fn follow_sizes(&mut self, desired: &Desired) -> Result<(), Error> {
        for n in 0..self.sizes.len() {
            let (Some((have, asked)), Some(want)) =
                (self.sizes.get(n).copied(), desired.sizes.get(n).copied())
            else {
                continue;
            };
            if want <= have || want == asked {
                continue;
            }
            let taken = self.give(Command::resize(&disk_node(n), want)).await?;
            if taken {
                tracing::info!(disk = n, bytes = want, "the disk has grown");
            }
            if let Some(size) = self.sizes.get_mut(n) {
                *size = (if taken { want } else { have }, want);
            }
        }
        Ok(())
    }

    /// Lets a guest go on that was stopped by a disk; where the disk still cannot, QEMU stops it again. Says whether the
    /// guest runs.
    async fn follow_stall(&mut self, desired: &Desired) -> Result<bool, Error> {
        if desired.stalls == self.stalls {
            return Ok(true);
        }
        if self
            .tried_to_go_on
            .is_some_and(|at| at.elapsed() < CONTINUE_INTERVAL_MIN)
        {
            return Ok(false);
        }
        let status = self.client.execute(Command::query_status()).await?;
        if status.get("status").and_then(Value::as_str) == Some("io-error") {
            self.tried_to_go_on = Some(Instant::now());
            self.give(Command::cont()).await?;
            return Ok(false);
        }
        self.stalls = desired.stalls;
        let _ = self.progress.send(Progress::Resumed);
        Ok(true)
    }

    /// Gives the command; says whether QEMU has taken it. Only what did not reach QEMU is an error.
    async fn give(&self, command: Command) -> Result<bool, Error> {
        match self.client.execute(command).await {
            Ok(_) => Ok(true),
            Err(error @ Error::Refused { .. }) => {
                tracing::warn!(%error, "configuration");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// What comes of all aspects of a wish.
struct All {
    complete: bool,
    error: Option<Error>,
}

impl Default for All {
    fn default() -> Self {
        Self {
            complete: true,
            error: None,
        }
    }
}

impl All {
    /// Takes what comes of one; fails where the others would too.
    fn take(&mut self, result: Result<bool, Error>) -> Result<(), Error> {
        match result {
            Ok(complete) => self.complete &= complete,
            Err(error @ Error::Lost(_)) => return Err(error),
            Err(error) => self.error = self.error.take().or(Some(error)),
        }
        Ok(())
    }

    /// The first error, or whether all is as it should be.
    fn result(self) -> Result<bool, Error> {
        self.error.map_or(Ok(self.complete), Err)
    }
}

#[cfg(test)]
mod tests;
