//! Seccomp filters around the runner: one like that of a container runtime, and one by which a test answers a system call.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

/// Forbids `io_setup` for the program and its children.
pub fn forbid_native_aio(command: &mut Command) {
    // SAFETY: two system calls between fork and exec, with memory that lives on the stack.
    unsafe {
        command.pre_exec(install);
    }
}

fn install() -> io::Result<()> {
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            libc::SYS_io_setup as u32,
            0,
            1,
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            0,
            0,
        ),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the kernel reads the filter, which outlives the call.
    let result = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const filter,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Number of the request that runs a vCPU (linux/kvm.h).
const KVM_RUN: u32 = 0xae80;
/// Offset of the exit reason in the structure that KVM shares, and the reason of the instruction `hlt`.
const EXIT_REASON: u64 = 8;
const KVM_EXIT_HLT: u32 = 5;
/// From linux/seccomp.h: receive a notification, send its answer.
const NOTIF_RECV: libc::Ioctl = 0xc050_2100_u32 as libc::Ioctl;
const NOTIF_SEND: libc::Ioctl = 0xc018_2101_u32 as libc::Ioctl;

/// An answer to `KVM_RUN`.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// That of the kernel.
    Kernel,
    /// The vCPU has reached `hlt`.
    Halt,
    /// The number of an error.
    Errno(i32),
    /// None.
    Never,
}

/// Runs `work`. In processes that it starts, `answer` answers each `KVM_RUN`; its argument is the name of the calling thread.
pub fn with_kvm_run<T: Send>(
    answer: impl Fn(&str) -> Answer + Send + 'static,
    work: impl FnOnce() -> T + Send,
) -> T {
    thread::scope(|scope| {
        let confined = scope.spawn(|| {
            let listener = listen();
            // It ends with the process.
            thread::spawn(move || answer_calls(&listener, &answer));
            work()
        });
        confined
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Installs the filter for this thread and its children.
fn listen() -> OwnedFd {
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let result = libc::BPF_RET | libc::BPF_K;
    // Offsets in the kernel's `seccomp_data`: the number of the call, and its second argument.
    let mut program = [
        statement(load, 0, 0, 0),
        statement(equals, libc::SYS_ioctl as u32, 0, 3),
        statement(load, 24, 0, 0),
        statement(equals, KVM_RUN, 0, 1),
        statement(result, libc::SECCOMP_RET_USER_NOTIF, 0, 0),
        statement(result, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the kernel reads the filter, which outlives the call, and returns a new descriptor.
    unsafe {
        let listener = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const filter,
        );
        assert!(listener >= 0, "{}", io::Error::last_os_error());
        OwnedFd::from_raw_fd(listener as i32)
    }
}

fn answer_calls(listener: &OwnedFd, answer: &dyn Fn(&str) -> Answer) {
    loop {
        // SAFETY: all zeros is a value of this plain structure, which the kernel fills.
        let call = unsafe {
            let mut call: libc::seccomp_notif = std::mem::zeroed();
            if libc::ioctl(listener.as_raw_fd(), NOTIF_RECV, &raw mut call) < 0 {
                // The caller was killed meanwhile.
                continue;
            }
            call
        };
        let name = fs::read_to_string(format!("/proc/{}/comm", call.pid)).unwrap_or_default();
        let mut response = libc::seccomp_notif_resp {
            id: call.id,
            val: 0,
            error: 0,
            flags: 0,
        };
        match answer(name.trim()) {
            Answer::Kernel => response.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            Answer::Halt => halt(call.pid),
            Answer::Errno(errno) => response.error = -errno,
            Answer::Never => continue,
        }
        // SAFETY: the kernel reads this structure. An error means that the caller was killed.
        unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_SEND, &raw mut response) };
    }
}

/// Writes the exit reason of a vCPU into the memory of its process.
fn halt(process: u32) {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let vcpu = maps.lines().find(|line| line.contains("kvm-vcpu")).unwrap();
    let start = u64::from_str_radix(vcpu.split('-').next().unwrap(), 16).unwrap();
    let memory = fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/{process}/mem"))
        .unwrap();
    memory
        .write_at(&KVM_EXIT_HLT.to_ne_bytes(), start + EXIT_REASON)
        .unwrap();
}
