//! (io) Lets the guest run, on a monitor that may be lost meanwhile.

use crate::runner::qmp::{Client, Command, Error};
use crate::runner::state::Event;
use serde_json::Value;

/// The run states of a guest that was not let run yet: `prelaunch` before the first attempt, `paused` after one that was lost
/// on its way. In each other state it runs, or has run.
const NOT_YET: [&str; 2] = ["prelaunch", "paused"];

/// Lets the guest run, unless it does; says what came of it. The command may have been given before, and its answer lost.
pub(super) async fn let_run(monitor: Client) -> Event {
    match attempt(&monitor).await {
        Ok(()) => Event::Continued,
        Err(Error::Refused { command, description }) => {
            Event::ContinueFailed(Error::Refused { command, description }.to_string())
        }
        Err(error) => {
            tracing::warn!(%error, "whether the guest runs is looked at again");
            Event::ContinueUnanswered
        }
    }
}

async fn attempt(monitor: &Client) -> Result<(), Error> {
    let status = monitor.execute(Command::query_status()).await?;
    if status.get("status").and_then(Value::as_str).is_none_or(|status| NOT_YET.contains(&status)) {
        monitor.execute(Command::cont()).await?;
    }
    Ok(())
}
