//! (io) Programs that end when this process does, whatever ends it: nobody could look after them any more.
//!
//! The kernel counts the thread that has started a program as its parent, and sends the signal when that thread ends.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the program asked to end (SIGTERM) when the thread that starts it does. That thread then has to [`stay`].
pub(super) fn ends_with_its_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    let ask = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
        // Who has ended before is not noticed any more.
        if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(io::Error::from(Errno::SRCH)) }
    };
    // SAFETY: two system calls, which allocate nothing and take no lock.
    unsafe { command.pre_exec(ask) };
}

/// Waits until that child has ended; somebody else reaps it.
pub(super) fn stay(child: Pid) {
    loop {
        match rustix::process::waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(Some(_)) | Err(Errno::CHILD) => return,
            Ok(None) | Err(Errno::INTR) => {}
            // It must not end because of that.
            Err(_) => std::thread::park(),
        }
    }
}
