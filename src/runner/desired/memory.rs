//! (pure) The balloon.

use super::Desired;
use crate::api::quantity::Bytes;
use crate::runner::qmp::Command;

/// What the balloon should leave to the guest, and the command for it; none where nothing was ever taken, or the
/// same was asked before.
pub fn command(desired: &Desired, asked: Option<Bytes>) -> Option<(Bytes, Command)> {
    let target = desired.live.ram.unwrap_or(desired.ram);
    (target != asked.unwrap_or(desired.ram)).then(|| (target, Command::balloon(target.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::desired::cpus::tests::desired;

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
