//! (io) A monitor that is lost: the machine goes on, and where it stays so that is told.

use super::{Driver, News};
use crate::runner::state::{Event, Phase};
use std::time::Duration;

/// How long a monitor is lost before that is told: one that comes back soon has missed nothing.
const A_WHILE: Duration = Duration::from_secs(30);

impl Driver {
    pub(super) fn monitor_lost(&mut self, why: &str) {
        if self.state.phase() == Phase::Terminating {
            tracing::debug!(why, "QEMU's monitor");
        } else {
            tracing::warn!(why, "QEMU's monitor is lost; connecting again");
        }
        let news = self.news.clone();
        let told = tokio::spawn(async move {
            tokio::time::sleep(A_WHILE).await;
            let _ = news.send(News::MonitorAway);
        });
        if let Some(before) = self.monitor_away.replace(told) {
            before.abort();
        }
        self.step(Event::MonitorLost);
    }

    /// It has been lost for a while.
    pub(super) fn monitor_stays_away(&mut self) {
        if self.monitor_away.is_some() {
            tracing::error!("QEMU's monitor has been lost for {} s", A_WHILE.as_secs());
            self.observed.monitor_lost = true;
            self.reporter.publish(&self.observed);
        }
    }

    /// It is there, again or for the first time.
    pub(super) fn monitor_is_back(&mut self) {
        if let Some(away) = self.monitor_away.take() {
            away.abort();
        }
        self.observed.monitor_lost = false;
    }
}
