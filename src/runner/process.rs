//! (io) QEMU and its TPM as child processes: started with their descriptors, their output logged, their end noticed.
//!
//! What always holds: every child is reaped, also those that a container's other processes leave behind; a signal goes
//! to a child only while its process id is the child's; no child outlives this process by more than it takes to end.

mod output;

use crate::runner::failure::Failure;
use crate::runner::harden::{self, Access, Reach};
use crate::runner::machine::{self, Directories};
use crate::runner::qemu;
use crate::sys::child;
use crate::sys::tap::Tap;
use command_fds::{CommandFdExt, FdMapping};
use output::Words;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::unix::pipe;

/// The TPM's program.
const TPM_PROGRAM: &str = "/usr/bin/swtpm";
/// The number that its control channel has in the TPM.
const TPM_CONTROL: i32 = 3;

/// Time for the last of a child's output to arrive after its end.
const OUTPUT_TIME: Duration = Duration::from_millis(200);
/// Time for a killed child to end, and the pause between looks.
const KILL_TIME: Duration = Duration::from_secs(1);
const KILL_STEP: Duration = Duration::from_millis(3);

/// A program that was started.
pub struct Child {
    program: &'static str,
    pid: Pid,
    ended: bool,
    words: Arc<Mutex<Words>>,
    output: tokio::task::JoinHandle<()>,
}

/// A machine's programs.
pub struct Started {
    /// QEMU.
    pub qemu: Child,
    /// The TPM, if the machine has one.
    pub tpm: Option<Child>,
    /// The runner's end of QEMU's monitor.
    pub monitor: UnixStream,
    /// The runner's end of the machine's serial line.
    pub line: UnixStream,
}

/// What QEMU inherits.
pub struct Inherited {
    /// Taps, each with the number of its network; QEMU alone has them then.
    pub taps: Vec<(usize, Tap)>,
    /// What is the machine's alone, by being open: as long as QEMU lives, whoever has started it.
    pub claims: Vec<OwnedFd>,
}

/// Starts the machine's programs, each where it can reach its own files only.
pub fn start(
    arguments: &[String],
    dirs: &Directories,
    with_tpm: bool,
    reach: &Reach,
    inherited: Inherited,
) -> Result<Started, Failure> {
    let problem = |program: &'static str| {
        move |error: io::Error| {
            Failure::start(format!(
                "{program} cannot be started: {error}; is it in the image?"
            ))
        }
    };
    let (tpm, control) = match with_tpm {
        true => start_tpm(dirs, &reach.tpm)
            .map(|(tpm, control)| (Some(tpm), Some(control)))
            .map_err(problem(TPM_PROGRAM))?,
        false => (None, None),
    };
    let (qemu, monitor, line) = start_qemu(arguments, dirs, &reach.qemu, control, inherited)
        .map_err(problem(qemu::PROGRAM))?;
    Ok(Started {
        qemu,
        tpm,
        monitor,
        line,
    })
}

/// Starts the TPM, which ends with its only connection. Gives QEMU's end of that.
fn start_tpm(dirs: &Directories, reach: &[(PathBuf, Access)]) -> io::Result<(Child, OwnedFd)> {
    let (control, qemus) = UnixStream::pair()?;
    let state = format!(
        "dir={},mode=0{:o}",
        dirs.data.display(),
        0o666 & !machine::kept_from_others()
    );
    let channel = format!("type=unixio,clientfd={TPM_CONTROL}");
    let arguments = [
        "socket",
        "--tpm2",
        "--tpmstate",
        &state,
        "--ctrl",
        &channel,
        "--terminate",
    ];
    let mapping = FdMapping {
        parent_fd: control.into(),
        child_fd: TPM_CONTROL,
    };
    Ok((
        spawn(
            TPM_PROGRAM,
            &arguments.map(str::to_owned),
            reach,
            vec![mapping],
        )?,
        qemus.into(),
    ))
}

fn start_qemu(
    arguments: &[String],
    dirs: &Directories,
    reach: &[(PathBuf, Access)],
    tpm: Option<OwnedFd>,
    inherited: Inherited,
) -> io::Result<(Child, UnixStream, UnixStream)> {
    let listen = |name: &str| UnixListener::bind(dirs.file(name)).map(OwnedFd::from);
    let (monitor, qemus_monitor) = UnixStream::pair()?;
    let (line, guest_line) = UnixStream::pair()?;
    let numbers = qemu::DESCRIPTORS;
    let mapping = |parent_fd: OwnedFd, child_fd: i32| FdMapping {
        parent_fd,
        child_fd,
    };
    let mut mappings = vec![
        mapping(qemus_monitor.into(), numbers.monitor),
        mapping(guest_line.into(), numbers.serial),
        mapping(listen(machine::GUEST_AGENT_SOCKET)?, numbers.guest_agent),
        mapping(listen(machine::VMOP_AGENT_SOCKET)?, numbers.vmop_agent),
    ];
    mappings.extend(tpm.map(|tpm| mapping(tpm, numbers.tpm)));
    let Inherited { taps, claims } = inherited;
    let behind_taps = taps.iter().map(|(n, _)| n + 1).max().unwrap_or_default();
    mappings.extend(
        taps.into_iter()
            .map(|(n, tap)| mapping(tap.fd, qemu::tap_descriptor(n))),
    );
    let claim = |(n, claim)| mapping(claim, qemu::tap_descriptor(behind_taps + n));
    mappings.extend(claims.into_iter().enumerate().map(claim));
    Ok((
        spawn(qemu::PROGRAM, arguments, reach, mappings)?,
        monitor,
        line,
    ))
}

/// Starts a program that can reach these files, with these descriptors.
pub fn spawn(
    program: &'static str,
    arguments: &[String],
    reach: &[(PathBuf, Access)],
    mappings: Vec<FdMapping>,
) -> io::Result<Child> {
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    command
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| name == "TZ" || name == "PATH"));
    // A terminal's Ctrl-C is for the runner alone.
    command.process_group(0);
    command.fd_mappings(mappings).map_err(io::Error::other)?;
    child::terminate_with_parent(&mut command);
    let pid = harden::confined(reach.to_vec(), move |tell| {
        let pid = command.spawn().and_then(|child| pid(&child));
        // What is inherited is the child's alone from here on.
        drop(command);
        let started = pid.as_ref().ok().copied();
        tell(pid);
        started.into_iter().for_each(wait_for_end);
    })?;
    let words = Arc::default();
    let name = program.rsplit('/').next().unwrap_or(program);
    let reader = pipe::Receiver::from_owned_fd(reader.into())?;
    let output = tokio::spawn(output::log(name, reader, Arc::clone(&words)));
    Ok(Child {
        program,
        pid,
        ended: false,
        words,
        output,
    })
}

/// Waits until that child has ended, without reaping it.
fn wait_for_end(child: Pid) {
    loop {
        match rustix::process::waitid(
            WaitId::Pid(child),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        ) {
            Ok(Some(_)) | Err(Errno::CHILD) => return,
            Ok(None) | Err(Errno::INTR) => {}
            // The thread must not end because of that.
            Err(_) => std::thread::park(),
        }
    }
}

fn pid(child: &std::process::Child) -> io::Result<Pid> {
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::ErrorKind::Other.into())
}

impl Child {
    /// Its process id.
    pub fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Whether this process is the child.
    pub fn is(&self, pid: Pid) -> bool {
        self.pid == pid
    }

    /// Whether the child has ended.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Sends the signal, unless the child has ended.
    pub fn signal(&self, signal: Signal) {
        if !self.ended
            && let Err(error) = rustix::process::kill_process(self.pid, signal)
        {
            tracing::warn!(%error, ?signal, program = self.program, "not signalled");
        }
    }

    /// Reaps the child if it has ended: its exit code or minus its signal. Only before anybody reaps all.
    pub fn reaped(&mut self) -> Option<i32> {
        let (_, status) = rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG).ok()??;
        self.ended = true;
        status
            .exit_status()
            .or_else(|| status.terminating_signal().map(|signal| -signal))
    }

    /// Waits for the end of a child that was killed, unless it was reaped; for a moment only, because one that is stuck in the
    /// kernel ends when that lets it, and whoever reaps all reaps it then.
    pub fn wait(&mut self) {
        let began = Instant::now();
        while !self.ended && self.reaped().is_none() {
            if began.elapsed() > KILL_TIME {
                tracing::warn!(
                    pid = self.id(),
                    program = self.program,
                    "killed, and has not ended"
                );
                return;
            }
            std::thread::sleep(KILL_STEP);
        }
    }

    /// What QEMU has said if KVM has brought a CPU of the guest to a halt.
    pub fn halted(&self) -> Option<String> {
        self.words
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .halted
            .clone()
    }

    /// The child was reaped. Gives what it said last.
    pub async fn ended(&mut self) -> String {
        self.ended = true;
        let _ = tokio::time::timeout(OUTPUT_TIME, &mut self.output).await;
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        words.last()
    }
}

/// Reaps all children that have ended: their ids, and their exit codes or minus their signals.
pub fn reap() -> Vec<(Pid, i32)> {
    let mut ended = Vec::new();
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        let code = status
            .exit_status()
            .or_else(|| status.terminating_signal().map(|signal| -signal));
        ended.extend(code.map(|code| (pid, code)));
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_child_that_does_not_end_when_it_is_killed_is_not_waited_for() {
        // As one that is stuck in the kernel: here the signal is not even sent.
        let mut child = spawn(
            "/bin/sleep",
            &["20".to_owned()],
            &Reach::of_any(),
            Vec::new(),
        )
        .unwrap();
        let began = Instant::now();
        child.wait();
        assert!(
            began.elapsed() < Duration::from_secs(10) && !child.has_ended(),
            "{:?}",
            began.elapsed()
        );
        child.signal(Signal::KILL);
        child.wait();
        assert!(child.has_ended());
    }
}
