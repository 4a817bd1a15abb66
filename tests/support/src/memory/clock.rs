//! The server's wall clock and the latencies of its responses. Both follow tokio's clock.

use jiff::{SignedDuration, Timestamp};
use std::time::Duration;
use tokio::time::Instant;

/// The start time of each server.
const EPOCH: &str = "2026-01-01T00:00:00Z";

/// A wall clock that starts at a fixed time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
}

impl Clock {
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
        }
    }

    /// The start of the server.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// The present time.
    pub fn now(&self) -> Timestamp {
        let epoch: Timestamp = EPOCH.parse().expect("the epoch is a time");
        epoch
            + SignedDuration::try_from(self.began.elapsed())
                .expect("a test takes less than centuries")
    }
}

/// The time in whole seconds, as in objects.
pub fn written(time: Timestamp) -> String {
    let seconds = Timestamp::from_second(time.as_second()).expect("a time in seconds");
    seconds.to_string()
}

/// A time of an object, shifted by seconds.
pub fn shifted(time: &str, seconds: i64) -> String {
    let time: Timestamp = time.parse().expect("the server's own times can be read");
    written(time + SignedDuration::from_secs(seconds))
}

/// The source of latencies. Equal seeds and numbers give equal latencies.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    pub seed: u64,
    pub is_on: bool,
}

impl Latency {
    /// 1 to 50 ms, or none.
    pub fn of(&self, number: u64) -> Duration {
        match self.is_on {
            true => Duration::from_micros(
                1000 + pseudo_random(self.seed ^ pseudo_random(number)) % 49_001,
            ),
            false => Duration::ZERO,
        }
    }
}

/// A pseudo-random number (SplitMix64).
pub fn pseudo_random(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
