//! (io) Which way of asynchronous input and output the kernel, and what confines this process, allow.
//!
//! The only file with unsafe code: no safe wrapper asks for these two things without using them, and QEMU, which meets
//! the same confinement, ends where it is told to use what it may not.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// As many requests as QEMU has in flight for one disk.
const ENTRIES: u32 = 128;

/// A way of asynchronous input and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aio {
    /// The best, but often forbidden by profiles of container runtimes.
    IoUring,
    /// Linux' older one; asynchronous only past the page cache.
    Native,
    /// A pool of threads, everywhere.
    Threads,
}

impl Aio {
    /// The best that works.
    pub fn probe() -> Self {
        Self::best(io_uring, native)
    }

    /// The second is asked only if the first cannot be used: giving it back takes tens of milliseconds.
    fn best(io_uring: impl FnOnce() -> io::Result<()>, native: impl FnOnce() -> io::Result<()>) -> Self {
        let Err(error) = io_uring() else { return Self::IoUring };
        match native() {
            Ok(()) => {
                tracing::info!(%error, "io_uring cannot be used; disks use native AIO");
                Self::Native
            }
            Err(native) => {
                tracing::info!(%error, %native, "neither io_uring nor native AIO can be used; disks use threads");
                Self::Threads
            }
        }
    }

    /// QEMU's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Native => "native",
            Self::Threads => "threads",
        }
    }

    /// The same for a disk that goes past the page cache, or through it.
    pub fn of_disk(self, direct: bool) -> Self {
        if self == Self::Native && !direct { Self::Threads } else { self }
    }
}

fn io_uring() -> io::Result<()> {
    // More than the kernel's structure, which it fills.
    let mut parameters = [0u64; 64];
    // SAFETY: the kernel writes at most its structure of 120 bytes to the parameters, which outlive the call; a result
    // that is not negative is a new descriptor that nobody else owns.
    let ring = unsafe {
        let ring = libc::syscall(libc::SYS_io_uring_setup, ENTRIES, parameters.as_mut_ptr());
        i32::try_from(ring).ok().filter(|ring| *ring >= 0).map(|ring| OwnedFd::from_raw_fd(ring))
    };
    ring.map(drop).ok_or_else(io::Error::last_os_error)
}

fn native() -> io::Result<()> {
    let mut context: libc::c_ulong = 0;
    // SAFETY: the kernel writes the context's number there.
    let result = unsafe { libc::syscall(libc::SYS_io_setup, ENTRIES, &raw mut context) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // The kernel waits there until no processor can look at the context any more, 10 to 25 ms: not a start's business. Where
    // there is no thread to be had, the context is given back with the process.
    let give_back = move || {
        // SAFETY: the context is this function's own, and never used.
        unsafe { libc::syscall(libc::SYS_io_destroy, context) };
    };
    drop(std::thread::Builder::new().name("aio-probe".to_owned()).spawn(give_back));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_aio_is_only_for_what_goes_past_the_page_cache() {
        assert_eq!([true, false].map(|direct| Aio::Native.of_disk(direct)), [Aio::Native, Aio::Threads]);
        assert_eq!(Aio::IoUring.of_disk(false), Aio::IoUring);
        // Whatever this machine allows, asking has no other effect.
        assert_eq!(Aio::probe(), Aio::probe());
    }

    #[test]
    fn the_next_best_is_asked_only_where_the_best_cannot_be_used() {
        let no = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        assert_eq!(Aio::best(|| Ok(()), || panic!("asked in vain")), Aio::IoUring);
        assert_eq!(Aio::best(no, || Ok(())), Aio::Native);
        assert_eq!(Aio::best(no, no), Aio::Threads);
    }
}
