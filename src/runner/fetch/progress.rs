//! (io) Says on standard output how far a fetch is.

use crate::api::runner::fetch::Progress;
use std::io::Write;
use std::time::Duration;
use tokio::time::Instant;

/// Least time between two lines.
const EVERY: Duration = Duration::from_secs(2);

/// What was said last.
#[derive(Default)]
pub struct Teller {
    last: Option<Instant>,
}

impl Teller {
    /// Says it, unless something was said just before.
    pub fn tell(&mut self, bytes: u64, total: Option<u64>) {
        let now = Instant::now();
        if self
            .last
            .is_some_and(|last| now.duration_since(last) < EVERY)
        {
            return;
        }
        self.last = Some(now);
        let line = serde_json::to_string(&Progress { bytes, total }).unwrap_or_default();
        // Nobody needs to listen.
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}
