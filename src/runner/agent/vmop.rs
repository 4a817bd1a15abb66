//! (io) Client of the agent of the guest's desktop: lines over a virtio-serial channel.
//!
//! Invariants: the runner connects before the guest starts, so it receives the agent's greeting. It
//! sends nothing before the greeting.

use crate::runner::agent::LineBuffer;
use crate::runner::agent::login::{ANSWER_TIMEOUT, Desktop, LOGIN_RETRY_DELAY, Login};
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Size of a line in bytes.
pub(super) const LINE_SIZE_MAX: usize = 4096;
/// Delay before the channel's socket is connected again.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// Inputs from the driver.
#[derive(Debug)]
pub enum Input {
    /// The wanted user has changed.
    SetUser(Option<String>),
    /// The guest has closed the channel.
    Closed,
    /// The guest reboots.
    Reset,
}

/// Talks to the agent until the sender of inputs is dropped. Reports each change of the desktop.
pub async fn run(
    path: PathBuf,
    wanted: Option<String>,
    mut inputs: mpsc::UnboundedReceiver<Input>,
    report: impl Fn(Desktop),
) {
    let mut login = Login::new(wanted);
    loop {
        match UnixStream::connect(&path).await {
            Ok(stream) => {
                if run_connection(stream, &mut login, &mut inputs, &report)
                    .await
                    .is_none()
                {
                    return;
                }
                login.agent_closed();
                report(login.desktop().clone());
            }
            Err(error) => {
                tracing::debug!(%error, "cannot open the channel to the desktop agent in the guest; the runner retries after {RECONNECT_DELAY:?}")
            }
        }
        tokio::time::sleep(RECONNECT_DELAY).await;
    }
}

/// Runs one connection. Returns `None` if the sender of inputs is dropped, and `Some` if the
/// connection is lost.
async fn run_connection(
    mut stream: UnixStream,
    login: &mut Login,
    inputs: &mut mpsc::UnboundedReceiver<Input>,
    report: &impl Fn(Desktop),
) -> Option<()> {
    let (mut lines, mut bytes) = (LineBuffer::new(LINE_SIZE_MAX), [0; 512]);
    // Time of the last line in either direction.
    let mut since = Instant::now();
    loop {
        let before = login.desktop().clone();
        let (retries, waits) = (login.is_waiting_for_retry(), login.is_waiting_for_answer());
        let answer = tokio::select! {
            input = inputs.recv() => match input? {
                Input::SetUser(user) => login.set_wanted_user(user),
                Input::Closed => { lines.clear(); login.agent_closed(); None }
                Input::Reset => { lines.clear(); login.reset(); None }
            },
            () = tokio::time::sleep(LOGIN_RETRY_DELAY), if retries => login.retry(),
            () = tokio::time::sleep_until(since + ANSWER_TIMEOUT), if waits => { login.answer_timed_out(); None }
            read = stream.read(&mut bytes) => match read {
                Ok(n @ 1..) => {
                    since = Instant::now();
                    lines.push(bytes.get(..n).unwrap_or_default());
                    process_lines(&mut lines, login)
                }
                _ => return Some(()),
            },
        };
        if login.desktop() != &before {
            report(login.desktop().clone());
        }
        if let Some(line) = answer {
            since = Instant::now();
            if stream.write_all(line.as_bytes()).await.is_err() {
                return Some(());
            }
        }
    }
}

/// Handles all complete lines. Returns the lines to send.
pub(super) fn process_lines(lines: &mut LineBuffer, login: &mut Login) -> Option<String> {
    let heard = lines.filter_map(Result::ok);
    let answers: String = heard
        .filter_map(|line| login.receive_line(String::from_utf8_lossy(&line).trim()))
        .collect();
    (!answers.is_empty()).then_some(answers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncBufReadExt, BufReader};
    use tokio::net::UnixListener;

    #[tokio::test]
    async fn b19_a_desktop_is_followed_over_lost_connections_and_reboots() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vmop.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (inputs, inbox) = mpsc::unbounded_channel();
        let (sender, mut reported) = mpsc::unbounded_channel();
        tokio::spawn(run(path, Some("anna".to_owned()), inbox, move |desktop| {
            drop(sender.send(desktop))
        }));
        let (stream, _) = listener.accept().await.unwrap();
        let mut guest = BufReader::new(stream);
        let mut line = String::new();
        guest.write_all(b"half a li").await.unwrap();
        guest.write_all(b"ne\n220 Hello\r\n").await.unwrap();
        guest.read_line(&mut line).await.unwrap();
        assert_eq!(line, "login anna\n");
        assert!(reported.recv().await.unwrap().connected);
        guest.write_all(b"102 stopping\n201 ok\n").await.unwrap();
        assert_eq!(reported.recv().await.unwrap().user.as_deref(), Some("anna"));
        inputs.send(Input::Reset).unwrap();
        assert_eq!(reported.recv().await.unwrap(), Desktop::default());
        drop(guest);
        let (stream, _) = listener.accept().await.unwrap();
        let mut guest = BufReader::new(stream);
        guest.write_all(b"220 Hello\n").await.unwrap();
        line.clear();
        guest.read_line(&mut line).await.unwrap();
        assert_eq!(line, "login anna\n");
        // It says nothing more.
        tokio::time::pause();
        let problem = loop {
            if let Some(problem) = reported.recv().await.unwrap().problem {
                break problem;
            }
        };
        assert!(problem.contains("has not answered"), "{problem}");
    }
}
