//! (io) QEMU and its TPM as child processes: starts them with their descriptors, logs their output,
//! and reaps them.
//!
//! Children block SIGTERM: only SIGINT and SIGKILL stop them.
//!
//! Invariants: every child is reaped, including orphaned processes of the container. A signal is
//! sent only while the process id belongs to the child. Children exit soon after this process.

mod output;

use crate::runner::failure::Failure;
use crate::runner::harden::{self, Access, FileAccess};
use crate::runner::machine::{self, Directories};
use crate::runner::qemu;
use crate::sys::child;
use crate::sys::tap::Tap;
use command_fds::{CommandFdExt, FdMapping};
use output::ChildOutput;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::unix::pipe;

const TPM_PROGRAM: &str = "/usr/bin/swtpm";
/// Number of the control channel's descriptor in the TPM.
const TPM_CONTROL_FD: i32 = 3;

/// Time for reading the last output of a child that has exited.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_millis(200);
/// A child process.
pub struct Child {
    program: &'static str,
    pid: Pid,
    exited: bool,
    output: Arc<Mutex<ChildOutput>>,
    output_task: tokio::task::JoinHandle<()>,
}

/// The programs of a VM.
pub struct StartedPrograms {
    pub qemu: Child,
    /// The TPM, if the VM has one.
    pub tpm: Option<Child>,
    /// The runner's end of the QMP connection.
    pub monitor: UnixStream,
    /// The runner's end of the serial line.
    pub line: UnixStream,
}

/// Descriptors that QEMU inherits.
pub struct InheritedDescriptors {
    /// Taps with the numbers of their networks. This process then has no descriptor of them, except for a start under
    /// emulation that may follow.
    pub taps: Vec<(usize, Tap)>,
    /// Locked directories and block devices. They stay locked until QEMU exits, even if the runner
    /// exits before.
    pub locks: Vec<OwnedFd>,
}

/// Starts the VM's programs. Each can access its own files only.
pub fn start(
    arguments: &[String],
    dirs: &Directories,
    with_tpm: bool,
    files: &FileAccess,
    inherited: InheritedDescriptors,
) -> Result<StartedPrograms, Failure> {
    let failure = |program: &'static str| {
        move |error: io::Error| {
            Failure::start(format!(
                "the runner cannot start {program}: {error}; check that the runner's image contains the program"
            ))
        }
    };
    let (tpm, control) = match with_tpm {
        true => start_tpm(dirs, &files.tpm)
            .map(|(tpm, control)| (Some(tpm), Some(control)))
            .map_err(failure(TPM_PROGRAM))?,
        false => (None, None),
    };
    let (qemu, monitor, line) = start_qemu(arguments, dirs, &files.qemu, control, inherited)
        .map_err(failure(qemu::PROGRAM))?;
    Ok(StartedPrograms {
        qemu,
        tpm,
        monitor,
        line,
    })
}

/// Starts the TPM, which exits when its only connection is closed. Returns QEMU's end of the
/// connection.
fn start_tpm(dirs: &Directories, files: &[(PathBuf, Access)]) -> io::Result<(Child, OwnedFd)> {
    let (control, qemu_end) = UnixStream::pair()?;
    let state = format!(
        "dir={},mode=0{:o}",
        dirs.data.display(),
        0o666 & !machine::umask_for_files()
    );
    let channel = format!("type=unixio,clientfd={TPM_CONTROL_FD}");
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
        child_fd: TPM_CONTROL_FD,
    };
    Ok((
        spawn(
            TPM_PROGRAM,
            &arguments.map(str::to_owned),
            files,
            vec![mapping],
        )?,
        qemu_end.into(),
    ))
}

fn start_qemu(
    arguments: &[String],
    dirs: &Directories,
    files: &[(PathBuf, Access)],
    tpm: Option<OwnedFd>,
    inherited: InheritedDescriptors,
) -> io::Result<(Child, UnixStream, UnixStream)> {
    let listen = |name: &str| UnixListener::bind(dirs.file(name)).map(OwnedFd::from);
    let (monitor, qemu_monitor) = UnixStream::pair()?;
    let (line, guest_line) = UnixStream::pair()?;
    let numbers = qemu::DESCRIPTORS;
    let mapping = |parent_fd: OwnedFd, child_fd: i32| FdMapping {
        parent_fd,
        child_fd,
    };
    let mut mappings = vec![
        mapping(qemu_monitor.into(), numbers.monitor),
        mapping(guest_line.into(), numbers.serial),
        mapping(listen(machine::GUEST_AGENT_SOCKET)?, numbers.guest_agent),
        mapping(listen(machine::VMOP_AGENT_SOCKET)?, numbers.vmop_agent),
    ];
    mappings.extend(tpm.map(|tpm| mapping(tpm, numbers.tpm)));
    let InheritedDescriptors { taps, locks } = inherited;
    let taps_end = taps.iter().map(|(n, _)| n + 1).max().unwrap_or_default();
    mappings.extend(
        taps.into_iter()
            .map(|(n, tap)| mapping(tap.fd, qemu::tap_descriptor(n))),
    );
    let lock = |(n, lock)| mapping(lock, qemu::tap_descriptor(taps_end + n));
    mappings.extend(locks.into_iter().enumerate().map(lock));
    Ok((
        spawn(qemu::PROGRAM, arguments, files, mappings)?,
        monitor,
        line,
    ))
}

/// Starts a program that can access these files, with these descriptors.
pub fn spawn(
    program: &'static str,
    arguments: &[String],
    files: &[(PathBuf, Access)],
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
    // Ctrl-C in a terminal must reach the runner only.
    command.process_group(0);
    command.fd_mappings(mappings).map_err(io::Error::other)?;
    child::interrupt_with_parent(&mut command);
    child::block_sigterm(&mut command);
    let pid = harden::run_confined(files.to_vec(), move |tell| {
        let pid = command.spawn().and_then(|child| pid(&child));
        // Closes the inherited descriptors in this process.
        drop(command);
        let started = pid.as_ref().ok().copied();
        tell(pid);
        started.into_iter().for_each(wait_for_exit);
    })?;
    let output = Arc::default();
    let name = program.rsplit('/').next().unwrap_or(program);
    let reader = pipe::Receiver::from_owned_fd(reader.into())?;
    let output_task = tokio::spawn(output::log(name, reader, Arc::clone(&output)));
    Ok(Child {
        program,
        pid,
        exited: false,
        output,
        output_task,
    })
}

/// Waits until the child has exited, without reaping it.
fn wait_for_exit(child: Pid) {
    loop {
        match rustix::process::waitid(
            WaitId::Pid(child),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        ) {
            Ok(Some(_)) | Err(Errno::CHILD) => return,
            Ok(None) | Err(Errno::INTR) => {}
            // The thread is the child's parent for the kernel, so it must outlive the child.
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
    pub fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Whether this is the child's process id.
    pub fn has_pid(&self, pid: Pid) -> bool {
        self.pid == pid
    }

    pub fn has_exited(&self) -> bool {
        self.exited
    }

    /// Sends the signal, unless the child has exited.
    pub fn signal(&self, signal: Signal) {
        if !self.exited
            && let Err(error) = rustix::process::kill_process(self.pid, signal)
        {
            tracing::warn!(%error, signal = signal.as_raw(), program = self.program, "the runner cannot send a signal to its child process (QEMU or \
                swtpm)");
        }
    }

    /// QEMU's message if KVM has stopped a CPU of the guest.
    pub fn kvm_error(&self) -> Option<String> {
        self.output
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .kvm_error
            .clone()
    }

    /// Reads the last output of a reaped child.
    pub async fn finish_output(&mut self) -> String {
        self.exited = true;
        let _ = tokio::time::timeout(OUTPUT_DRAIN_TIMEOUT, &mut self.output_task).await;
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        output.last()
    }
}

/// Reaps all children that have exited: process id, and exit code or negative signal.
pub fn reap() -> Vec<(Pid, i32)> {
    let mut exited = Vec::new();
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        let code = status
            .exit_status()
            .or_else(|| status.terminating_signal().map(|signal| -signal));
        exited.extend(code.map(|code| (pid, code)));
    }
    exited
}
