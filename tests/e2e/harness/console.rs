//! The guest's serial console through `kubectl exec -i POD -- vm-runner console`.

use super::{Space, kubectl};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::Child;

/// The time limit of a response. A line and its echo take a second, and the connection another.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The output of the guest since its boot.
///
/// # Errors
/// The error output of kubectl.
pub async fn log(space: &Space, pod: &str) -> Result<String, String> {
    space
        .try_kubectl(&["exec", pod, "--", "vm-runner", "console", "--log"])
        .await
}

/// Types `poweroff` and waits until the guest has powered off and the console has closed.
pub async fn power_off(space: &Space, pod: &str) {
    let mut console = attach(space, pod);
    console
        .stdin
        .as_mut()
        .unwrap()
        .write_all(b"poweroff\n")
        .await
        .unwrap();
    let ended = tokio::time::timeout(ANSWER_TIMEOUT, console.wait()).await;
    assert!(
        ended.is_ok(),
        "the console is still there {ANSWER_TIMEOUT:?} after `poweroff`"
    );
}

/// Types a line. Returns after the guest has written output or the console has closed, so that the line was read.
///
/// # Errors
/// The line cannot be typed, or there is no output.
pub async fn write_line(space: &Space, pod: &str, line: &str) -> Result<(), String> {
    let mut console = attach(space, pod);
    let typed = console
        .stdin
        .as_mut()
        .ok_or("no input")?
        .write_all(format!("{line}\n").as_bytes())
        .await;
    typed.map_err(|e| e.to_string())?;
    let mut first = [0];
    let answer = console.stdout.as_mut().ok_or("no output")?.read(&mut first);
    let answered = tokio::time::timeout(ANSWER_TIMEOUT, answer).await;
    console.kill().await.map_err(|e| e.to_string())?;
    answered
        .map_err(|_| format!("the guest does not respond to {line:?}"))?
        .map(drop)
        .map_err(|e| e.to_string())
}

/// The output of a shell command in the guest, in one line.
///
/// # Errors
/// There is no output.
pub async fn shell(space: &Space, pod: &str, script: &str) -> Result<String, String> {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let mark = format!("answer-{}", ASKED.fetch_add(1, Ordering::Relaxed));
    let mut console = attach(space, pod);
    let mut lines = BufReader::new(console.stdout.take().unwrap()).lines();
    let question = format!("sh echo {mark} $({script})\n");
    console
        .stdin
        .as_mut()
        .unwrap()
        .write_all(question.as_bytes())
        .await
        .map_err(|e| e.to_string())?;
    let answer = async {
        let mut output = String::new();
        while let Some(line) = lines.next_line().await.map_err(|e| e.to_string())? {
            if let Some((_, answer)) = line.split_once(&format!("TINY sh {mark} ")) {
                return Ok(answer.trim().to_owned());
            }
            output.push_str(&line);
        }
        Err(format!("the console ended after {output:?}"))
    };
    tokio::time::timeout(ANSWER_TIMEOUT, answer)
        .await
        .unwrap_or_else(|_| Err("no answer".to_owned()))
}

fn attach(space: &Space, pod: &str) -> Child {
    let args = [
        "--namespace",
        &space.name,
        "exec",
        "--stdin",
        pod,
        "--",
        "vm-runner",
        "console",
    ];
    let mut command = kubectl::command(&args);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command.spawn().expect("kubectl can be started")
}
