//! The only `unsafe` code.

pub mod child;
pub mod kvm;
pub mod tap;

/// Makes a system call with one argument, 0. Returns its result and the error number.
#[cfg(test)]
#[allow(unsafe_code)]
pub fn syscall(number: libc::c_long) -> (libc::c_long, Option<i32>) {
    // SAFETY: no memory is passed.
    let result = unsafe { libc::syscall(number, 0) };
    (result, std::io::Error::last_os_error().raw_os_error())
}
