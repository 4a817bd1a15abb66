//! (io) Notices a QEMU that hangs: it gets a command at regular intervals. A blocked QEMU keeps its QMP connection open and sends
//! no event, so nothing else would report it.

use crate::runner::driver::{Driver, TaskResult};
use crate::runner::qmp::{Client, Command, Error};
use std::time::Duration;
use tokio::sync::mpsc;

/// Delay between two commands. Each has 10 s for its answer, so a QEMU that hangs is reported within 30 s.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// Number of commands in a row without an answer before QEMU counts as silent. A busy node delays single answers.
const MISSED_HEARTBEATS_MAX: u32 = 2;

/// Reports each change between an answering and a silent QEMU. Ends with the QMP connection.
pub(super) async fn follow(monitor: Client, task_results: mpsc::UnboundedSender<TaskResult>) {
    let mut missed = 0u32;
    while !task_results.is_closed() {
        tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        match monitor.execute(Command::query_status()).await {
            Err(Error::Lost(_)) => return,
            Err(Error::Timeout(_)) => {
                missed = missed.saturating_add(1);
                if missed == MISSED_HEARTBEATS_MAX {
                    let _ = task_results.send(TaskResult::QemuSilent(true));
                }
            }
            Ok(_) | Err(Error::Rejected { .. }) => {
                if missed >= MISSED_HEARTBEATS_MAX {
                    let _ = task_results.send(TaskResult::QemuSilent(false));
                }
                missed = 0;
            }
        }
    }
}

impl Driver {
    pub(super) fn start_heartbeat(&self) {
        tokio::spawn(follow(self.monitor.clone(), self.task_results.clone()));
    }

    pub(super) fn qemu_silent(&mut self, silent: bool) {
        if silent {
            tracing::error!(
                "QEMU does not answer QMP commands; QEMU probably hangs, for example in a request to its storage. Check the storage and the node of the VM"
            );
        } else {
            tracing::info!("QEMU answers commands of the runner again");
        }
        self.observed.qemu_silent = silent;
        self.reporter.publish(&self.observed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::qmp;
    use crate::runner::qmp::testing::Peer;
    use tokio::net::UnixStream;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn silent_qemu_is_reported_within_a_minute_and_so_is_its_next_answer() {
        let (monitor, qemu_end) = UnixStream::pair().unwrap();
        let (signals, _signals) = mpsc::unbounded_channel();
        let (client, connection) = qmp::connect(monitor, signals);
        tokio::spawn(connection);
        let mut peer = Peer::send_greeting(qemu_end).await;
        let (sender, mut results) = mpsc::unbounded_channel();
        tokio::spawn(follow(client, sender));
        let answer = |_: &str, _: &serde_json::Value| Ok(serde_json::json!({"status": "running"}));
        peer.answer(answer).await;
        let silent_since = Instant::now();
        assert!(matches!(
            results.recv().await,
            Some(TaskResult::QemuSilent(true))
        ));
        assert!(silent_since.elapsed() < Duration::from_secs(60));
        // The two commands that were not answered, and the next one.
        for _ in 0..3 {
            peer.answer(answer).await;
        }
        assert!(matches!(
            results.recv().await,
            Some(TaskResult::QemuSilent(false))
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn single_late_answer_is_not_reported() {
        let (monitor, qemu_end) = UnixStream::pair().unwrap();
        let (signals, _signals) = mpsc::unbounded_channel();
        let (client, connection) = qmp::connect(monitor, signals);
        tokio::spawn(connection);
        let mut peer = Peer::send_greeting(qemu_end).await;
        let (sender, mut results) = mpsc::unbounded_channel();
        tokio::spawn(follow(client, sender));
        for _ in 0..3 {
            peer.receive_command().await;
            peer.answer(|_, _| Ok(serde_json::json!({"status": "running"})))
                .await;
        }
        assert!(results.try_recv().is_err());
    }
}
