//! (client) Lets disks grow, and the guest go on after a disk could not.

use super::{Machine, Progress};
use crate::runner::desired::Desired;
use crate::runner::qemu::disk_node;
use crate::runner::qmp::{Command, Error};
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;

/// Least time between two attempts to go on: each that fails is an event.
const PAUSE: Duration = Duration::from_secs(5);

impl Machine {
    /// Tells QEMU of each disk that has to be larger than it is, once; what it refuses leaves the disk as it is.
    pub(super) async fn follow_sizes(&mut self, desired: &Desired) -> Result<(), Error> {
        for n in 0..self.sizes.len() {
            let (Some((have, asked)), Some(want)) = (self.sizes.get(n).copied(), desired.sizes.get(n).copied()) else {
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
    pub(super) async fn follow_stall(&mut self, desired: &Desired) -> Result<bool, Error> {
        if desired.stalls == self.stalls {
            return Ok(true);
        }
        if self.tried_to_go_on.is_some_and(|at| at.elapsed() < PAUSE) {
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
}
