//! (client) Brings the balloon to its target, and looks whether the guest follows.

use crate::api::quantity::Bytes;
use crate::runner::desired::Desired;
use crate::runner::live::{Machine, Progress};
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
        if let Some((target, command)) = command(desired, asked) {
            self.give(command).await?;
            self.balloon = Some((target, Instant::now()));
        }
        let Some((target, since)) = self.balloon else {
            return Ok(true);
        };
        // One that was never moved has nothing to tell.
        let Balloon { actual } = self.client.query(Command::query_balloon()).await?;
        let problem = problem(actual, target, since.elapsed() > FOLLOW_TIME);
        let _ = self.progress.send(Progress::Memory { actual, problem });
        Ok(is_there(actual, target))
    }
}

/// What the balloon should leave to the guest, and the command for it; none where nothing was ever taken, or the
/// same was asked before.
fn command(desired: &Desired, asked: Option<Bytes>) -> Option<(Bytes, Command)> {
    let target = desired.live.ram.unwrap_or(desired.ram);
    (target != asked.unwrap_or(desired.ram)).then(|| (target, Command::balloon(target.0)))
}

/// Whether the balloon is at its target, but for less than a MiB.
fn is_there(actual: u64, target: Bytes) -> bool {
    actual.abs_diff(target.0) < 1 << 20
}

/// Why the guest does not have what it should, once it had time for it.
fn problem(actual: u64, target: Bytes, had_time: bool) -> Option<String> {
    (had_time && !is_there(actual, target)).then(|| {
        let (has, wanted) = (Bytes(actual).to_quantity(), target.to_quantity());
        format!("the guest has {has} instead of {wanted}: it has no balloon driver, or cannot spare more")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::desired::cpus::tests::desired;

    #[test]
    fn b39_a_guest_that_does_not_follow_is_told_once_it_had_time() {
        assert_eq!(problem(1 << 30, Bytes(1 << 29), false), None);
        let problem = problem(1 << 30, Bytes(1 << 29), true).unwrap();
        assert!(problem.contains("has 1Gi instead of 512Mi"), "{problem}");
        assert!(is_there((1 << 29) + 4096, Bytes(1 << 29)));
    }

    #[test]
    fn the_balloon_is_asked_once_for_each_target_and_gives_back_what_is_no_longer_limited() {
        let mut wanted = desired(1);
        assert_eq!(command(&wanted, None), None);
        wanted.live.ram = Some(Bytes(1 << 29));
        let asked = command(&wanted, None).unwrap();
        assert_eq!(asked, (Bytes(1 << 29), Command::balloon(1 << 29)));
        assert_eq!(command(&wanted, Some(asked.0)), None);
        wanted.live.ram = None;
        assert_eq!(command(&wanted, Some(asked.0)).unwrap().0, wanted.ram);
    }
}
