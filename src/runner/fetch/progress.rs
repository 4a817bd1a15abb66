//! (io) Writes the progress of a download or an import to standard output.

use crate::api::runner::fetch::{Phase, Progress};
use std::io::Write;
use std::time::Duration;
use tokio::time::Instant;

/// Minimum time between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Writes lines of progress, with a limited rate.
#[derive(Default)]
pub struct ProgressWriter {
    last: Option<Instant>,
    phase: Phase,
}

impl ProgressWriter {
    /// A writer for the progress of this phase.
    pub fn new(phase: Phase) -> Self {
        Self { last: None, phase }
    }

    /// Writes a line, unless the previous line is more recent than the interval.
    pub fn write(&mut self, bytes: u64, total: Option<u64>) {
        let now = Instant::now();
        if self
            .last
            .is_some_and(|last| now.duration_since(last) < LINE_INTERVAL)
        {
            return;
        }
        self.last = Some(now);
        let progress = Progress {
            bytes,
            total,
            phase: self.phase,
        };
        let line = serde_json::to_string(&progress).unwrap_or_default();
        // The progress is optional: the download continues if no process reads it.
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}
