//! (client) Sets the balloon's target and checks whether the guest follows.

use crate::api::quantity::Bytes;
use crate::runner::desired::DesiredState;
use crate::runner::live::{LiveUpdater, Progress};
use crate::runner::qmp::{Command, Error};
use serde::Deserialize;
use std::time::Duration;
use tokio::time::Instant;

/// Time for the guest to reach the target. The balloon driver loads late in the boot.
const BALLOON_TIMEOUT: Duration = Duration::from_secs(120);

/// The newest target of the balloon.
#[derive(Clone, Copy)]
pub(super) struct BalloonRequest {
    target: Bytes,
    /// Time of the request, or of the reboot after it.
    since: Instant,
    /// Number of reboots at that time.
    reboots: u64,
}

impl BalloonRequest {
    fn new(target: Bytes, reboots: u64) -> Self {
        Self {
            target,
            since: Instant::now(),
            reboots,
        }
    }
}

#[derive(Deserialize)]
struct Balloon {
    actual: u64,
}

impl LiveUpdater {
    /// Applies the balloon's target. Returns whether the guest has reached it.
    pub(super) async fn follow_memory(&mut self, desired: &DesiredState) -> Result<bool, Error> {
        let requested = self.balloon.map(|request| request.target);
        if let Some((target, command)) = command(desired, requested) {
            self.try_command(command).await?;
            self.balloon = Some(BalloonRequest::new(target, desired.reboots));
        }
        let Some(request) = &mut self.balloon else {
            return Ok(true);
        };
        // The driver of a rebooted guest begins without a balloon.
        if request.reboots != desired.reboots {
            *request = BalloonRequest::new(request.target, desired.reboots);
        }
        let BalloonRequest { target, since, .. } = *request;
        // A balloon that was never changed is not queried.
        let Balloon { actual } = self.client.query(Command::query_balloon()).await?;
        let problem = problem(actual, target, since.elapsed() > BALLOON_TIMEOUT);
        let _ = self.progress.send(Progress::Memory { actual, problem });
        Ok(is_at_target(actual, target))
    }
}

/// The balloon's target and its command. None if the target equals the whole memory or the previous
/// request.
fn command(desired: &DesiredState, requested: Option<Bytes>) -> Option<(Bytes, Command)> {
    let target = desired.balloon_target();
    (target != requested.unwrap_or(desired.ram)).then(|| (target, Command::balloon(target.0)))
}

/// Whether the balloon is at its target, with a tolerance of 1 MiB.
pub fn is_at_target(actual: u64, target: Bytes) -> bool {
    actual.abs_diff(target.0) < 1 << 20
}

/// The reason why the guest is not at its target. Before the timeout, it does not contain the memory of the guest, because each step
/// of the balloon would change the condition.
pub fn problem(actual: u64, target: Bytes, is_overdue: bool) -> Option<String> {
    let (has, wanted) = (Bytes(actual).to_quantity(), target.to_quantity());
    match (is_at_target(actual, target), is_overdue) {
        (true, _) => None,
        (false, false) => Some(format!(
            "the balloon driver in the guest has not reached {wanted} of memory (spec.vm.currentRam) yet"
        )),
        (false, true) => Some(format!(
            "the guest has {has} of memory instead of {wanted} (spec.vm.currentRam). If the guest has no virtio-balloon \
             driver, install the driver. If the guest has too much memory although it has the driver, free memory in the guest"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::desired::cpus::tests::desired;

    #[test]
    fn b39_unreached_memory_target_is_reported_as_failed_after_a_delay() {
        assert_eq!(problem(1 << 29, Bytes(1 << 29), true), None);
        let early = problem(1 << 30, Bytes(1 << 29), false).unwrap();
        assert!(early.contains("not reached 512Mi"), "{early}");
        let problem = problem(1 << 30, Bytes(1 << 29), true).unwrap();
        assert!(
            problem.contains("has 1Gi of memory instead of 512Mi"),
            "{problem}"
        );
        assert!(is_at_target((1 << 29) + 4096, Bytes(1 << 29)));
    }

    #[test]
    fn balloon_command_is_sent_once_per_target_and_removed_limit_restores_memory() {
        let mut wanted = desired(1);
        assert_eq!(command(&wanted, None), None);
        wanted.live.ram = Some(Bytes(1 << 29));
        let requested = command(&wanted, None).unwrap();
        assert_eq!(requested, (Bytes(1 << 29), Command::balloon(1 << 29)));
        assert_eq!(command(&wanted, Some(requested.0)), None);
        wanted.live.ram = None;
        assert_eq!(command(&wanted, Some(requested.0)).unwrap().0, wanted.ram);
    }
}
