//! (io) A guest that QEMU has stopped by itself: why, and what becomes of the machine.

use crate::runner::driver::{Driver, News};
use crate::runner::failure;
use crate::runner::qmp::Command;
use crate::runner::state::Event;
use serde_json::Value;

/// QEMU's word for a shutdown because something of the host has failed; all others are the guest's or the runner's.
const HOST_ERROR: &str = "host-error";

/// Why QEMU has stopped the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The guest has powered itself off.
    Off,
    /// A disk cannot go on.
    Disk,
    /// The guest's CPU cannot go on.
    Error,
    /// The guest has said that it has crashed.
    Crash,
}

impl Stop {
    /// By QEMU's run state; none where the guest runs, or will.
    fn of(run_state: &str) -> Option<Self> {
        match run_state {
            "shutdown" => Some(Self::Off),
            "io-error" => Some(Self::Disk),
            "internal-error" => Some(Self::Error),
            "guest-panicked" => Some(Self::Crash),
            _ => None,
        }
    }
}

impl Driver {
    /// The guest was stopped, or may have been while nobody listened.
    pub(super) fn ask_why_it_stopped(&self) {
        let (monitor, news) = (self.monitor.clone(), self.news.clone());
        tokio::spawn(async move {
            let Ok(status) = monitor.execute(Command::query_status()).await else {
                return;
            };
            let stop = status
                .get("status")
                .and_then(Value::as_str)
                .and_then(Stop::of);
            stop.map(|stop| news.send(News::Stopped(stop)));
        });
    }

    pub(super) fn stopped(&mut self, by: Stop) {
        match by {
            Stop::Off => self.step(Event::GuestOff),
            // Of most errors QEMU has told already, with the disk.
            Stop::Disk if self.observed.stalled.is_some() => {}
            Stop::Disk => self.stalled(),
            Stop::Error => {
                let words = self.qemu.halted().unwrap_or_default();
                self.halted(failure::with_words(
                    "QEMU has stopped the guest, which cannot go on (internal-error)",
                    &words,
                ));
            }
            Stop::Crash => {
                self.halted("the guest has told that it has crashed (guest-panicked)".to_owned())
            }
        }
        self.reporter.publish(&self.observed);
    }

    /// QEMU has shut the machine down, and not because of the guest.
    pub(super) fn shut_down_by(&mut self, reason: &str) {
        if reason == HOST_ERROR {
            self.halted(format!(
                "QEMU has shut the machine down because something of the host has failed ({reason})"
            ));
        }
    }

    fn halted(&mut self, why: String) {
        tracing::error!("{why}");
        self.step(Event::Halted(why));
    }
}

#[cfg(test)]
mod tests;
