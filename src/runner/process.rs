//! (io) QEMU as a child process: started with its descriptors, its output logged, its end noticed.
//!
//! What always holds: every child is reaped, also those that a container's other processes leave behind; a signal goes
//! to QEMU only while its process id is QEMU's.

use super::failure::Failure;
use super::machine::Directories;
use super::qemu;
use command_fds::{CommandFdExt, FdMapping};
use rustix::process::{Pid, Signal, WaitOptions};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// Names of the sockets in the runtime directory.
pub const MONITOR: &str = "monitor.sock";
/// The guest agent's socket.
pub const GUEST_AGENT: &str = "guest-agent.sock";
/// The desktop agent's socket.
pub const VMOP_AGENT: &str = "vmop-agent.sock";

/// How many lines of QEMU's output are kept for messages, and how long each can be.
const LAST_LINES: usize = 10;
const LONGEST_LINE: usize = 1000;
/// Time for the last of QEMU's output to arrive after its end.
const OUTPUT_TIME: Duration = Duration::from_millis(200);

/// A QEMU that was started.
pub struct Qemu {
    pid: Pid,
    ended: bool,
    last_lines: Arc<Mutex<VecDeque<String>>>,
    output: tokio::task::JoinHandle<()>,
}

/// Starts QEMU. Gives the runner's end of the machine's serial line.
pub fn start(arguments: &[String], dirs: &Directories) -> Result<(Qemu, UnixStream), Failure> {
    spawn(arguments, dirs)
        .map_err(|error| Failure::start(format!("{} cannot be started: {error}; is it in the image?", qemu::PROGRAM)))
}

fn spawn(arguments: &[String], dirs: &Directories) -> io::Result<(Qemu, UnixStream)> {
    let listen = |name: &str| UnixListener::bind(dirs.file(name)).map(OwnedFd::from);
    let (line, guest_line) = UnixStream::pair()?;
    let numbers = qemu::DESCRIPTORS;
    let mapping = |parent_fd: OwnedFd, child_fd: i32| FdMapping { parent_fd, child_fd };
    let mappings = vec![
        mapping(listen(MONITOR)?, numbers.monitor),
        mapping(guest_line.into(), numbers.serial),
        mapping(listen(GUEST_AGENT)?, numbers.guest_agent),
        mapping(listen(VMOP_AGENT)?, numbers.vmop_agent),
    ];
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new(qemu::PROGRAM);
    command.args(arguments).stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    command.env_clear().envs(std::env::vars_os().filter(|(name, _)| name == "TZ" || name == "PATH"));
    // A terminal's Ctrl-C is for the runner alone.
    command.process_group(0);
    command.fd_mappings(mappings).map_err(io::Error::other)?;
    let child = command.spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::Other)?;
    let last_lines = Arc::default();
    let output = tokio::spawn(log_output(pipe::Receiver::from_owned_fd(reader.into())?, Arc::clone(&last_lines)));
    Ok((Qemu { pid, ended: false, last_lines, output }, line))
}

impl Qemu {
    /// Whether this process is QEMU.
    pub fn is(&self, pid: Pid) -> bool {
        self.pid == pid
    }

    /// Sends the signal, unless QEMU has ended.
    pub fn signal(&self, signal: Signal) {
        if !self.ended
            && let Err(error) = rustix::process::kill_process(self.pid, signal)
        {
            tracing::warn!(%error, ?signal, "QEMU");
        }
    }

    /// QEMU was reaped. Gives what it said last.
    pub async fn ended(&mut self) -> String {
        self.ended = true;
        let _ = tokio::time::timeout(OUTPUT_TIME, &mut self.output).await;
        let lines = self.last_lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("; ")
    }
}

async fn log_output(mut pipe: pipe::Receiver, last_lines: Arc<Mutex<VecDeque<String>>>) {
    let (mut line, mut buffer) = (Vec::new(), [0; 512]);
    while let Ok(n @ 1..) = pipe.read(&mut buffer).await {
        for byte in buffer.iter().take(n) {
            if *byte != b'\n' {
                // The rest of an overlong line is dropped.
                if line.len() < LONGEST_LINE {
                    line.push(*byte);
                }
                continue;
            }
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            line.clear();
            tracing::info!("qemu: {text}");
            let mut lines = last_lines.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push_back(text);
            if lines.len() > LAST_LINES {
                lines.pop_front();
            }
        }
    }
}

/// Reaps all children that have ended: their ids, and their exit codes or minus their signals.
pub fn reap() -> Vec<(Pid, i32)> {
    let mut ended = Vec::new();
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| -signal));
        ended.extend(code.map(|code| (pid, code)));
    }
    ended
}
