//! (io) The agent of the guest's desktop: lines over a channel of the machine.
//!
//! What always holds: the channel's end is taken from the start, so that the agent's greeting is heard; nothing is said
//! before it.

use crate::runner::agent::Lines;
use crate::runner::agent::login::{ANSWER_TIME, Desktop, Login, TRY_AGAIN};
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Longest line.
pub(super) const MAXIMUM: usize = 4096;
/// Pause before the channel is taken again.
const PAUSE: Duration = Duration::from_secs(1);

/// What the agent's owner knows.
#[derive(Debug)]
pub enum Input {
    /// That user should be logged in.
    Want(Option<String>),
    /// The guest has closed the channel.
    Closed,
    /// The guest boots anew.
    Reset,
}

/// Talks to the agent behind the socket until nobody has anything to tell; each change of the desktop is told.
pub async fn run(
    path: PathBuf,
    wanted: Option<String>,
    mut inputs: mpsc::UnboundedReceiver<Input>,
    tell: impl Fn(Desktop),
) {
    let mut login = Login::new(wanted);
    loop {
        match UnixStream::connect(&path).await {
            Ok(stream) => {
                if talk(stream, &mut login, &mut inputs, &tell).await.is_none() {
                    return;
                }
                login.closed();
                tell(login.desktop().clone());
            }
            Err(error) => tracing::debug!(%error, "the desktop agent's channel"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// One connection: until it is lost, or nobody has anything to tell (nothing).
async fn talk(
    mut stream: UnixStream,
    login: &mut Login,
    inputs: &mut mpsc::UnboundedReceiver<Input>,
    tell: &impl Fn(Desktop),
) -> Option<()> {
    let (mut lines, mut bytes) = (Lines::new(MAXIMUM), [0; 512]);
    // Since the agent was asked, or has said something.
    let mut since = Instant::now();
    loop {
        let before = login.desktop().clone();
        let (again, waits) = (login.waits_to_try_again(), login.waits_for_answer());
        let answer = tokio::select! {
            input = inputs.recv() => match input? {
                Input::Want(user) => login.want(user),
                Input::Closed => { lines.clear(); login.closed(); None }
                Input::Reset => { lines.clear(); login.reset(); None }
            },
            () = tokio::time::sleep(TRY_AGAIN), if again => login.try_again(),
            () = tokio::time::sleep_until(since + ANSWER_TIME), if waits => { login.late(); None }
            read = stream.read(&mut bytes) => match read {
                Ok(n @ 1..) => {
                    since = Instant::now();
                    lines.push(bytes.get(..n).unwrap_or_default());
                    hear(&mut lines, login)
                }
                _ => return Some(()),
            },
        };
        if login.desktop() != &before {
            tell(login.desktop().clone());
        }
        if let Some(line) = answer {
            since = Instant::now();
            if stream.write_all(line.as_bytes()).await.is_err() {
                return Some(());
            }
        }
    }
}

/// Takes all whole lines; gives what is to be said to them.
pub(super) fn hear(lines: &mut Lines, login: &mut Login) -> Option<String> {
    let heard = lines.filter_map(Result::ok);
    let answers: String = heard
        .filter_map(|line| login.heard(String::from_utf8_lossy(&line).trim()))
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
        let (sender, mut told) = mpsc::unbounded_channel();
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
        assert!(told.recv().await.unwrap().connected);
        guest.write_all(b"102 stopping\n201 ok\n").await.unwrap();
        assert_eq!(told.recv().await.unwrap().user.as_deref(), Some("anna"));
        inputs.send(Input::Reset).unwrap();
        assert_eq!(told.recv().await.unwrap(), Desktop::default());
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
            if let Some(problem) = told.recv().await.unwrap().problem {
                break problem;
            }
        };
        assert!(problem.contains("has not answered"), "{problem}");
    }
}
