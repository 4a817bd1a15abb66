//! (io) Child processes.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::process::Signal;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the kernel send SIGINT to the program when this process exits, even if it is killed. The kernel counts the thread
/// that starts the program as its parent, so that thread must live at least as long as the program.
pub fn interrupt_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    let request = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::INT))?;
        // The kernel sends nothing if the parent exited before the request.
        if rustix::process::getppid() == Some(parent) {
            Ok(())
        } else {
            Err(io::Error::from(Errno::SRCH))
        }
    };
    // SAFETY: the closure makes two system calls, which do not allocate and take no lock.
    unsafe { command.pre_exec(request) };
}

/// Starts the program with SIGTERM blocked, for a program that does not change its signal mask. A shutdown of the node sends
/// SIGTERM to all processes of a container, and only the runner shuts the guest down before it ends its programs.
pub fn block_sigterm(command: &mut Command) {
    let block = || {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` initializes the set before it is read. The old mask is not requested.
        let result = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut())
        };
        match result {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    };
    // SAFETY: the closure makes one system call, which does not allocate and takes no lock.
    unsafe { command.pre_exec(block) };
}
