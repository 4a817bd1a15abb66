//! (io) Rights that this process and its children drop before QEMU starts.
//!
//! | | runner | QEMU, TPM |
//! |---|---|---|
//! | capabilities, and the ability to gain one | none | none |
//! | `seccomp`: system calls that no program of the VM needs | denied | denied, besides QEMU's own sandbox |
//! | `landlock`: files | those of `file_access` | fewer: programs, libraries and the VM's files |

mod file_access;
mod landlock;
mod seccomp;

pub use file_access::{Access, FileAccess, RunnerPaths};
pub use landlock::{confine_process, run_confined};
pub use seccomp::deny_sockets;

use crate::runner::failure::Failure;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, capabilities, clear_ambient_capability_set, set_capabilities, set_no_new_privs,
};

/// Drops all capabilities and the ability to gain new ones, makes the process non-dumpable, and installs the seccomp filter. Must be
/// called before the first thread and the first child process.
pub fn drop_privileges() -> Result<(), Failure> {
    let failure = |error: rustix::io::Errno| {
        Failure::start(format!(
            "the runner cannot drop its privileges, so it does not start: {error}; check the seccomp profile of the pod"
        ))
    };
    let mut sets = capabilities(None).map_err(failure)?;
    if !(sets.permitted | sets.inheritable).is_empty() {
        clear_ambient_capability_set().map_err(failure)?;
        for set in [
            &mut sets.effective,
            &mut sets.permitted,
            &mut sets.inheritable,
        ] {
            *set = CapabilitySet::empty();
        }
        set_capabilities(None, sets).map_err(failure)?;
    }
    set_no_new_privs(true).map_err(failure)?;
    // QEMU runs as the same user. It must not read this process's memory, which contains the
    // display's password and the token.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failure)?;
    seccomp::install().map_err(|error| {
        Failure::start(format!(
            "the runner cannot install its seccomp filter, so it does not start: {error}; use a node with \
            seccomp support in its kernel"
        ))
    })
}
