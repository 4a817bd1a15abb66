//! (pure) When a status is written: at once where somebody waits for it, later where more is about to come.

use super::super::state::Phase;
use super::super::status::Observed;
use std::time::Duration;
use tokio::time::Instant;

/// The start is over by then, on a node that starts many VMs too, and one write tells both. Until then the VM is what the
/// operator says of it.
const START: Duration = Duration::from_secs(10);
/// Changes come in groups.
const GROUP: Duration = Duration::from_millis(30);
/// Between two writes, where the machine is what it was and only something of it has changed: on a busy node the changes of
/// one group come as far from each other as that.
const SPACING: Duration = Duration::from_secs(1);
/// A moving balloon is reported this often.
const BALLOON: Duration = Duration::from_secs(15);

/// How long a status waits for its successor.
#[derive(Debug)]
pub struct Pace {
    written: Option<Instant>,
    since: Option<Instant>,
}

impl Pace {
    /// For the status after the one that was written then, if any was.
    pub fn after(written: Option<Instant>) -> Self {
        Self { written, since: None }
    }

    /// When to write the newest status, given the last written one.
    pub fn due(&mut self, now: Instant, last: Option<&Observed>, newest: &Observed) -> Instant {
        let due = *self.since.get_or_insert(now) + patience(last, newest);
        match (self.written, last) {
            (Some(written), Some(last)) if last.phase == newest.phase => due.max(written + SPACING),
            _ => due,
        }
    }
}

fn patience(last: Option<&Observed>, newest: &Observed) -> Duration {
    let Some(last) = last else {
        return if newest.phase == Phase::Starting { START } else { GROUP };
    };
    let only_memory = Observed { ram: last.ram, ..newest.clone() } == *last;
    if only_memory && newest.ram != newest.ram_target { BALLOON } else { GROUP }
}

/// Pauses between attempts: doubled up to half a minute, and not the same for all VMs of a node.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(Duration::from_millis(300))
    }
}

impl Backoff {
    /// The shortest pause.
    pub fn first(&self) -> Duration {
        Duration::from_millis(300)
    }

    /// The next pause; `noise` is any number that differs between VMs.
    pub fn next(&mut self, noise: i32) -> Duration {
        let pause = self.0;
        self.0 = (self.0 * 2).min(Duration::from_secs(30));
        pause / 2 + pause * (noise.unsigned_abs() % 100) / 100
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::quantity::Bytes;
    use crate::runner::status::tests::observed;

    #[test]
    fn the_first_report_waits_for_the_start_and_no_longer() {
        assert_eq!(patience(None, &observed(Phase::Starting)), START);
        assert_eq!(patience(None, &observed(Phase::Booting)), GROUP);
        let now = Instant::now();
        let mut pace = Pace::after(None);
        assert_eq!(pace.due(now, None, &observed(Phase::Starting)), now + START);
        let later = now + Duration::from_millis(200);
        assert_eq!(pace.due(later, None, &observed(Phase::Starting)), now + START);
        assert!(pace.due(later, None, &observed(Phase::Booting)) <= later);
    }

    #[test]
    fn what_follows_a_write_closely_waits_unless_the_machine_is_in_another_phase() {
        let (last, booted) = (observed(Phase::Booting), observed(Phase::Booted));
        let changed = Observed { password_serial: 1, ..last.clone() };
        let written = Instant::now();
        let soon = written + Duration::from_millis(100);
        assert_eq!(Pace::after(Some(written)).due(soon, Some(&last), &changed), written + SPACING);
        assert_eq!(Pace::after(Some(written)).due(soon, Some(&last), &booted), soon + GROUP);
        let later = written + SPACING * 2;
        assert_eq!(Pace::after(Some(written)).due(later, Some(&last), &changed), later + GROUP);
    }

    #[test]
    fn a_moving_balloon_is_not_worth_a_write_until_it_is_there() {
        let (last, mut newest) = (observed(Phase::Booted), observed(Phase::Booted));
        newest.ram = Bytes(700 << 20);
        assert_eq!(patience(Some(&last), &newest), BALLOON);
        newest.ram_target = newest.ram;
        assert_eq!(patience(Some(&Observed { ram_target: newest.ram, ..last }), &newest), GROUP);
    }

    #[test]
    fn pauses_grow_and_stay_bounded() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.next(99)).collect();
        assert!(pauses.windows(2).all(|two| two[0] <= two[1]));
        assert!(pauses[19] <= Duration::from_secs(45));
    }
}
