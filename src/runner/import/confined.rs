//! (io) Programs that read an image: without sockets, and with few files and limits of memory and processor time.

use crate::api::runner::fetch::FetchReason;
use crate::runner::fetch::problem::Problem;
use crate::runner::harden::{self, Access};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

/// The end of a program's output that a message contains, in bytes.
const OUTPUT_LENGTH_MAX: usize = 500;

/// Processor time of a program in seconds. A TiB of the slowest format takes a third of it.
const PROCESSOR_SECONDS_MAX: u64 = 12 * 3600;

/// The error for a program that has used all of its processor time.
pub fn too_slow(program: &str, signal: i32) -> Option<Problem> {
    let message = format!(
        "{program} has ended after {} h of processor time; use another image, or another format of it",
        PROCESSOR_SECONDS_MAX / 3600
    );
    let problem = Problem::new(FetchReason::ImageRefused, message);
    (signal == Signal::XCPU.as_raw()).then_some(problem)
}

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
    let limit = |maximum| Rlimit {
        current: Some(maximum),
        maximum: Some(maximum),
    };
    let pid = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        prlimit(Some(pid), Resource::Data, limit(memory_max))?;
        // The kernel kills the program a second after its signal.
        let time = Rlimit {
            maximum: Some(PROCESSOR_SECONDS_MAX + 1),
            ..limit(PROCESSOR_SECONDS_MAX)
        };
        prlimit(Some(pid), Resource::Cpu, time)?;
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
    use crate::runner::harden::FileAccess;

    #[tokio::test]
    async fn a_program_has_limits_and_neither_sockets_nor_other_files() {
        // The program can run before it has its limits, that of the time as the last one.
        let script = "for i in {1..1000}; do [[ $(ulimit -t) == unlimited ]] || break; done; \
            ulimit -d; ulimit -t; cat /etc/passwd; exec 3<>/dev/tcp/127.0.0.1/9";
        let mut command = Command::new("/bin/bash");
        command.args(["-c", script]).stdin(Stdio::null());
        let mut files = FileAccess::of_filter();
        files.push(("/dev/null".into(), Access::Read));
        let mut child = start(command, files, 64 << 20).unwrap();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (output, errors) = tokio::join!(last_output(stdout), last_output(stderr));
        assert_eq!(output, format!("65536; {PROCESSOR_SECONDS_MAX}"));
        assert!(
            errors.contains("/etc/passwd: Permission denied"),
            "{errors}"
        );
        assert!(errors.contains("socket: "), "{errors}");
        let slow = too_slow("xz", 24).unwrap();
        assert_eq!(slow.reason, FetchReason::ImageRefused);
        assert_eq!(too_slow("xz", 9), None);
    }

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
