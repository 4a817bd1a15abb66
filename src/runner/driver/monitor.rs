//! (io) A monitor whose connection has ended: the guest goes on, and that is told.

use super::{Driver, News};
use crate::runner::state::Event;
use std::time::Duration;

/// Time for QEMU's own end to be known, which mostly is why.
const A_WHILE: Duration = Duration::from_secs(30);

impl Driver {
    pub(super) fn monitor_lost(&mut self, why: &str) {
        tracing::info!(why, "the connection to QEMU's monitor has ended");
        let news = self.news.clone();
        tokio::spawn(async move {
            tokio::time::sleep(A_WHILE).await;
            let _ = news.send(News::MonitorGone);
        });
        self.step(Event::MonitorLost);
    }

    /// QEMU goes on without it.
    pub(super) fn monitor_gone(&mut self) {
        tracing::error!("QEMU goes on without its monitor");
        self.observed.monitor_lost = true;
        self.reporter.publish(&self.observed);
    }
}
