//! (io) Programs that read an image: without sockets, and with few files and a limit of memory.

use crate::runner::harden::{self, Access};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

/// The end of a program's output that a message contains, in bytes.
const OUTPUT_LENGTH_MAX: usize = 500;

/// Starts the program with these files and this limit of its data in bytes. It is killed when the result is dropped.
pub fn start(
    mut command: Command,
    files: Vec<(PathBuf, Access)>,
    memory_max: u64,
) -> io::Result<Child> {
    command
        .env_clear()
        // The messages are compared with those of this locale.
        .env("LC_ALL", "C")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let runtime = Handle::current();
    let child = harden::run_confined(files, move |send| {
        let _context = runtime.enter();
        let denied = harden::deny_sockets().map_err(io::Error::other);
        // The command has no code for the time between fork and exec: the library would need a socket for its errors.
        send(denied.and_then(|()| command.spawn()));
    })?;
    let limit = Rlimit {
        current: Some(memory_max),
        maximum: Some(memory_max),
    };
    let pid = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        prlimit(Some(pid), Resource::Data, limit)?;
    }
    Ok(child)
}

/// Reads the output to its end, and returns its last bytes.
pub async fn last_output(output: Option<impl AsyncRead + Unpin>) -> String {
    let (mut last, mut buffer) = (Vec::new(), [0; 4096]);
    let Some(mut output) = output else {
        return String::new();
    };
    while let Ok(length @ 1..) = output.read(&mut buffer).await {
        last.extend_from_slice(buffer.get(..length).unwrap_or_default());
        let excess = last.len().saturating_sub(OUTPUT_LENGTH_MAX);
        last.drain(..excess);
    }
    let text = String::from_utf8_lossy(&last);
    text.trim().replace('\n', "; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_end_of_the_output_is_retained() {
        let output = [vec![b'a'; 10_000], b"\nlast\n".to_vec()].concat();
        let text = last_output(Some(&output[..])).await;
        assert!(
            text.ends_with("a; last") && text.len() <= OUTPUT_LENGTH_MAX + 1,
            "{text}"
        );
    }
}
