//! (client) Brings the balloon to its target, and looks whether the guest follows.

use super::{Machine, Progress};
use crate::runner::desired::{Desired, memory};
use crate::runner::qmp::{Command, Error};
use serde::Deserialize;
use std::time::Duration;
use tokio::time::Instant;

/// Time for a guest to follow: a booting one has no driver yet.
const FOLLOW_TIME: Duration = Duration::from_secs(120);

#[derive(Deserialize)]
struct Balloon {
    actual: u64,
}

impl Machine {
    /// Follows the balloon; says whether it is at its target.
    pub(super) async fn follow_memory(&mut self, desired: &Desired) -> Result<bool, Error> {
        let asked = self.balloon.map(|(target, _)| target);
        if let Some((target, command)) = memory::command(desired, asked) {
            self.give(command).await?;
            self.balloon = Some((target, Instant::now()));
        }
        let Some((target, since)) = self.balloon else { return Ok(true) };
        // One that was never moved has nothing to tell.
        let Balloon { actual } = self.client.query(Command::query_balloon()).await?;
        let problem = memory::problem(actual, target, since.elapsed() > FOLLOW_TIME);
        let _ = self.progress.send(Progress::Memory { actual, problem });
        Ok(memory::is_there(actual, target))
    }
}
