//! (io) Landlock: the process can reach a few files only, and the programs that it starts fewer still.
//!
//! The kernel confines the thread that asks and all that it starts, never the rest of the process. So a process with one
//! thread confines itself for good, and a program is started from a thread of its own, so that nothing has to be done
//! between fork and exec. The kernel has no safe wrapper; each request is one call with one structure.
#![allow(unsafe_code)]

use super::reach::Access;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// From linux/landlock.h.
const EXECUTE: u64 = 1 << 0;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REMOVE_DIR: u64 = 1 << 4;
/// Removing and making of every kind: bits 4 to 12.
const CHANGE_DIR: u64 = 0x1ff0;
/// Linking and renaming between directories, since the second version.
const REFER: u64 = 1 << 13;
/// Since the third version.
const TRUNCATE: u64 = 1 << 14;
/// Since the fifth version.
const IOCTL_DEV: u64 = 1 << 15;
const VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

/// What `landlock_add_rule` takes.
#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

/// Runs `start` in a thread of its own, where only those files can be reached, by it and by what it starts. Gives what `start`
/// tells, which can go on then. Where the kernel has no Landlock, it just runs.
pub fn confined<T: Send + 'static>(
    reach: Vec<(PathBuf, Access)>,
    start: impl FnOnce(&dyn Fn(io::Result<T>)) + Send + 'static,
) -> io::Result<T> {
    let (told, tells) = mpsc::channel();
    let tell = move |result| drop(told.send(result));
    let confine_and_start = move || match confine(&reach) {
        Ok(()) => start(&tell),
        Err(error) => tell(Err(error)),
    };
    std::thread::Builder::new().name("start".to_owned()).spawn(confine_and_start)?;
    tells.recv().unwrap_or_else(|_| Err(io::Error::other("the thread that starts programs has died")))
}

/// Confines this process, as long as it has one thread, and all that it will start. Needs that no privilege can be gained
/// any more.
pub fn confine_process(reach: &[(PathBuf, Access)]) -> io::Result<()> {
    if handled().is_none() {
        tracing::info!("this kernel has no Landlock; files are guarded by their permissions alone");
    }
    confine(reach)
}

/// What the kernel can confine; none if it has no Landlock, or it is switched off.
fn handled() -> Option<u64> {
    // SAFETY: asks for the version only; nothing is read or written.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u64>(), 0, VERSION) };
    let every = EXECUTE | WRITE_FILE | READ_FILE | READ_DIR | CHANGE_DIR;
    match version {
        ..=0 => None,
        1 => Some(every),
        2 => Some(every | REFER),
        3 | 4 => Some(every | REFER | TRUNCATE),
        _ => Some(every | REFER | TRUNCATE | IOCTL_DEV),
    }
}

fn confine(reach: &[(PathBuf, Access)]) -> io::Result<()> {
    let Some(handled) = handled() else { return Ok(()) };
    // SAFETY: the kernel reads eight bytes, which outlive the call; a result that is not negative is a new descriptor.
    let rules = unsafe {
        let rules = libc::syscall(libc::SYS_landlock_create_ruleset, &raw const handled, size_of::<u64>(), 0);
        descriptor(rules)?
    };
    for (path, access) in reach {
        allow(&rules, path, *access, handled)?;
    }
    // SAFETY: no memory is passed.
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// # Safety
/// What is given is a descriptor that nobody owns, or negative.
unsafe fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(result) {
        // SAFETY: as the caller promises.
        Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What is not there cannot be reached anyway. Whether it is a directory, opening tells: a file system on a server that does not
/// answer holds up whoever asks for more.
fn allow(rules: &OwnedFd, path: &Path, access: Access, handled: u64) -> io::Result<()> {
    let open = |more| rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | more, Mode::empty());
    let (place, is_dir) = match (open(OFlags::DIRECTORY), open(OFlags::empty())) {
        (Ok(place), _) => (place, true),
        (Err(_), Ok(place)) => (place, false),
        (Err(_), Err(_)) => return Ok(()),
    };
    let file = match access {
        Access::Program => EXECUTE | READ_FILE,
        Access::Read => READ_FILE,
        Access::Write | Access::Keep => READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV,
        Access::Leave => 0,
    };
    let dir = match access {
        Access::Keep => READ_DIR | CHANGE_DIR,
        Access::Leave => REMOVE_DIR,
        _ => READ_DIR,
    };
    let allowed = handled & if is_dir { file | dir } else { file };
    let rule = PathBeneath { allowed, parent: place.as_raw_fd() };
    // SAFETY: the kernel reads the rule, which outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_landlock_add_rule, rules.as_raw_fd(), RULE_PATH_BENEATH, &raw const rule, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_what_is_listed_can_be_reached_and_only_from_there() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().to_owned();
        let path = move |name: &str| place.join(name);
        for name in ["read", "write", "secret"] {
            fs::write(path(name), "x").unwrap();
        }
        fs::create_dir(path("keep")).unwrap();
        let reach = [
            (path("read"), Access::Read),
            (path("write"), Access::Write),
            (path("keep"), Access::Keep),
            (path("missing"), Access::Write),
        ];
        let of_thread = path.clone();
        confined(reach.into(), move |tell| {
            let path = of_thread;
            assert!(fs::read(path("read")).is_ok() && fs::write(path("read"), "y").is_err());
            assert!(fs::write(path("write"), "y").is_ok());
            assert!(fs::read(path("secret")).is_err() && fs::read_dir(path("")).is_err());
            assert!(fs::write(path("keep/a"), "y").is_ok() && fs::rename(path("keep/a"), path("keep/b")).is_ok());
            assert!(fs::write(path("new"), "y").is_err());
            tell(Ok(()));
        })
        .unwrap();
        assert!(fs::read(path("secret")).is_ok(), "the rest of the process goes on as before");
    }
}
