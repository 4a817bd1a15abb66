//! (io) A guest that somebody has paused, who is not known: that is told as long as it lasts, and nothing is done about it.

use super::stops::is_pause;
use super::{Driver, News};
use crate::runner::qmp::{Client, Command};
use crate::runner::state::Phase;
use serde_json::Value;
use std::time::Duration;
use tokio::sync::mpsc;

/// Shorter pauses are nobody's concern; also how often it is looked whether one is over.
const STEP: Duration = Duration::from_secs(5);

impl Driver {
    pub(super) fn follow_pause(&mut self) {
        let followed = self.pause.as_ref().is_some_and(|pause| !pause.is_finished());
        // Before its start a guest is paused too.
        if !followed && matches!(self.state.phase(), Phase::Booting | Phase::Booted) {
            self.pause = Some(tokio::spawn(follow(self.monitor.clone(), self.news.clone())));
        }
    }

    /// The guest is paused, with QEMU's word for it, or not any more.
    pub(super) fn paused(&mut self, by: Option<String>) {
        match &by {
            Some(state) => tracing::warn!(state, "the guest is paused, and not by this runner"),
            None => tracing::info!("the guest is not paused any more"),
        }
        self.observed.paused = by;
        self.reporter.publish(&self.observed);
    }
}

/// Tells when the guest has been paused for a moment, and when it is so no longer.
async fn follow(monitor: Client, news: mpsc::UnboundedSender<News>) {
    let mut told = false;
    loop {
        tokio::time::sleep(STEP).await;
        // What is not known now is known later.
        let Ok(status) = monitor.execute(Command::query_status()).await else { continue };
        let state = status.get("status").and_then(Value::as_str).filter(|state| is_pause(state));
        match state {
            Some(state) if !told => {
                told = true;
                let _ = news.send(News::Paused(Some(state.to_owned())));
            }
            Some(_) => {}
            None => {
                if told {
                    let _ = news.send(News::Paused(None));
                }
                return;
            }
        }
    }
}
