//! (io) What this process, and all that it starts, gives up for good once it has what it needs.
//!
//! | | runner | QEMU, TPM |
//! |---|---|---|
//! | capabilities, ever to gain one | none | none |
//! | `filter`: system calls that none of them ever needs | refused | refused, besides QEMU's own sandbox |
//! | `landlock`: files | what `reach` lists | less: its own program, and what it has of the machine |

mod filter;
mod landlock;
mod reach;

pub use landlock::{confine, confined};
pub use reach::{Access, Places, Reach};

use crate::runner::failure::Failure;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, capabilities, clear_ambient_capability_set, set_capabilities, set_no_new_privs,
};

/// Gives up every capability, whoever gave it, and ever to gain another. Before the first thread and the first child.
pub fn give_up() -> Result<(), Failure> {
    let problem = |error: rustix::io::Errno| {
        Failure::start(format!("privileges cannot be given up: {error}"))
    };
    let mut sets = capabilities(None).map_err(problem)?;
    if !(sets.permitted | sets.inheritable).is_empty() {
        clear_ambient_capability_set().map_err(problem)?;
        for set in [
            &mut sets.effective,
            &mut sets.permitted,
            &mut sets.inheritable,
        ] {
            *set = CapabilitySet::empty();
        }
        set_capabilities(None, sets).map_err(problem)?;
    }
    set_no_new_privs(true).map_err(problem)?;
    // QEMU has the same user: it must not look into this process, which knows the display's password and the token.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(problem)?;
    filter::install()
        .map_err(|error| Failure::start(format!("system calls cannot be given up: {error}")))
}
