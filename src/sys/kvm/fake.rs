//! A KVM that answers at the system call: number of the request, then its value or error number.
//!
//! The function `ioctl` of this program replaces that of the C library. On a thread with a fake, it answers the requests of
//! KVM; all other requests go to the kernel.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_ulong, c_void};
use std::fs::File;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;

/// Numbers of KVM's requests (linux/kvm.h), without size and direction of their argument.
pub const GET_API_VERSION: u8 = 0x00;
pub const CREATE_VM: u8 = 0x01;
pub const GET_VCPU_MMAP_SIZE: u8 = 0x04;
pub const GET_SUPPORTED_CPUID: u8 = 0x05;
pub const CREATE_VCPU: u8 = 0x41;
pub const SET_USER_MEMORY_REGION: u8 = 0x46;
pub const RUN: u8 = 0x80;
pub const SET_REGS: u8 = 0x82;
pub const GET_SREGS: u8 = 0x83;
pub const SET_SREGS: u8 = 0x84;
pub const SET_CPUID2: u8 = 0x90;

/// The type of KVM's requests.
const KVMIO: u8 = 0xae;
/// Offset of the exit reason in the structure that KVM shares.
const EXIT_REASON: u64 = 8;
/// Size of that structure with its pages.
const SHARED_SIZE: u64 = 0x3000;

/// An answer of KVM.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// The value that the call returns.
    Value(i32),
    /// The number of the error.
    Errno(i32),
    /// A descriptor of a new VM or vCPU.
    Descriptor,
    /// The reason for which the vCPU leaves the guest.
    Exit(u32),
}

thread_local! {
    static FAKE: RefCell<Option<Fake>> = const { RefCell::new(None) };
}

/// The answers, and the calls so far.
#[derive(Default)]
struct Fake {
    answers: HashMap<u8, Vec<Answer>>,
    calls: Vec<u8>,
}

/// Runs `work` on a KVM that works, except for these answers. A request with several answers gets one after the other, and
/// the last one again and again. Returns the numbers of the requests too.
pub fn with_answers<T>(answers: &[(u8, Answer)], work: impl FnOnce() -> T) -> (T, Vec<u8>) {
    let mut fake = Fake::default();
    for (request, answer) in answers {
        fake.answers.entry(*request).or_default().push(*answer);
    }
    FAKE.set(Some(fake));
    let result = work();
    let calls = FAKE.take().map(|fake| fake.calls).unwrap_or_default();
    (result, calls)
}

impl Fake {
    fn answer(&mut self, request: u8) -> Answer {
        self.calls.push(request);
        match self.answers.get_mut(&request) {
            Some(answers) if answers.len() > 1 => answers.remove(0),
            Some(answers) => answers[0],
            None => works(request),
        }
    }
}

/// The answer of a KVM that works.
fn works(request: u8) -> Answer {
    match request {
        GET_API_VERSION => Answer::Value(super::API_VERSION),
        GET_VCPU_MMAP_SIZE => Answer::Value(SHARED_SIZE as i32),
        CREATE_VM | CREATE_VCPU => Answer::Descriptor,
        RUN => Answer::Exit(kvm_bindings::KVM_EXIT_HLT),
        _ => Answer::Value(0),
    }
}

/// A file that can be mapped like a vCPU.
fn descriptor() -> c_int {
    let file = tempfile::tempfile().unwrap();
    file.set_len(SHARED_SIZE).unwrap();
    file.into_raw_fd()
}

fn leave_guest(vcpu: c_int, reason: u32) {
    // SAFETY: the descriptor is open during the call, and it is not closed here.
    let vcpu = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(vcpu) });
    vcpu.write_at(&reason.to_ne_bytes(), EXIT_REASON).unwrap();
}

/// The function of the C library has a variable number of arguments. Callers pass at most these three, in the same registers.
#[unsafe(no_mangle)]
extern "C" fn ioctl(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let number = (request >> 8) as u8 == KVMIO;
    let answer = number
        .then(|| FAKE.with_borrow_mut(|fake| Some(fake.as_mut()?.answer(request as u8))))
        .flatten();
    match answer {
        // SAFETY: the arguments are passed on as they are.
        None => unsafe { libc::syscall(libc::SYS_ioctl, file, request, argument) as c_int },
        Some(Answer::Value(value)) => value,
        Some(Answer::Descriptor) => descriptor(),
        Some(Answer::Exit(reason)) => {
            leave_guest(file, reason);
            0
        }
        Some(Answer::Errno(errno)) => {
            // SAFETY: the C library gives each thread such a place.
            unsafe { *libc::__errno_location() = errno };
            -1
        }
    }
}
