//! (io) Child processes.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::process::Signal;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the kernel send SIGTERM to the program when this process exits, even if it is killed. The kernel counts the thread
/// that starts the program as its parent, so that thread must live at least as long as the program.
pub fn terminate_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    let request = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
        // The kernel sends nothing if the parent exited before the request.
        if rustix::process::getppid() == Some(parent) {
            Ok(())
        } else {
            Err(io::Error::from(Errno::SRCH))
        }
    };
    // SAFETY: the closure makes two system calls, which neither allocate nor take a lock.
    unsafe { command.pre_exec(request) };
}
