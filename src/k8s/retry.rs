//! (pure) Exponential backoff.

use std::time::Duration;

/// The longest delay.
pub const BACKOFF_MAX: Duration = Duration::from_secs(300);

/// The delay after that many failures in a row: none, 1 s, 2 s, 4 s … 5 min.
#[must_use]
pub fn pause(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        n => Duration::from_secs(1u64.checked_shl(n - 1).unwrap_or(u64::MAX)).min(BACKOFF_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_five_minutes() {
        let seconds: Vec<u64> = [0, 1, 2, 3, 9, 10, 64, 65, u32::MAX]
            .map(|n| pause(n).as_secs())
            .into();
        assert_eq!(seconds, [0, 1, 2, 4, 256, 300, 300, 300, 300]);
    }
}
