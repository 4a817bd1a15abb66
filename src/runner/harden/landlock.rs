//! (io) Landlock: the process can reach a few files only, and the programs that it starts fewer still.
//!
//! The kernel confines the calling thread and all that it starts, never the rest of the process. So a process with one thread
//! confines itself for good, and a program is started from a thread of its own: no code runs between fork and exec.

use crate::runner::failure::Failure;
use crate::runner::harden::reach::Access;
use landlock::{
    ABI, Access as _, AccessFs, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, path_beneath_rules,
};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc;

/// The newest version of Landlock that this code is tested with. The library leaves out the rights that a kernel does not know.
const VERSION: ABI = ABI::V5;

/// Runs `start` in a thread of its own, where only those files can be reached, by it and by what it starts. Gives what `start`
/// tells, which can go on then. Where the kernel has no Landlock, it just runs.
pub fn confined<T: Send + 'static>(
    reach: Vec<(PathBuf, Access)>,
    start: impl FnOnce(&dyn Fn(io::Result<T>)) + Send + 'static,
) -> io::Result<T> {
    let (told, tells) = mpsc::channel();
    let tell = move |result| drop(told.send(result));
    let confine_and_start = move || match confine_thread(&reach) {
        Ok(_) => start(&tell),
        Err(error) => tell(Err(io::Error::other(error))),
    };
    std::thread::Builder::new()
        .name("start".to_owned())
        .spawn(confine_and_start)?;
    tells
        .recv()
        .unwrap_or_else(|_| Err(io::Error::other("the thread that starts programs has died")))
}

/// Gives up all other files, for this process and all that it will start. Before the second thread.
pub fn confine(reach: &[(PathBuf, Access)]) -> Result<(), Failure> {
    match confine_thread(reach) {
        Ok(RulesetStatus::NotEnforced) => {
            tracing::info!(
                "this kernel has no Landlock; files are guarded by their permissions alone"
            );
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::start(format!("files cannot be given up: {error}"))),
    }
}

/// A path that does not exist is left out: it cannot be reached anyway.
fn confine_thread(reach: &[(PathBuf, Access)]) -> Result<RulesetStatus, RulesetError> {
    let rules = reach
        .iter()
        .flat_map(|(path, access)| path_beneath_rules([path], rights(*access)));
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(VERSION))?
        .create()?
        .add_rules(rules)?;
    Ok(rules.restrict_self()?.ruleset)
}

/// For a directory; of these, the library takes for a file those that a file can have.
fn rights(access: Access) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    match access {
        Access::Program => AccessFs::from_read(VERSION),
        Access::Read => read,
        Access::Write => read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev,
        Access::Keep => read | (AccessFs::from_write(VERSION) & !AccessFs::Refer),
        Access::Leave => AccessFs::RemoveDir.into(),
    }
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
            assert!(
                fs::write(path("keep/a"), "y").is_ok()
                    && fs::rename(path("keep/a"), path("keep/b")).is_ok()
            );
            assert!(fs::write(path("new"), "y").is_err());
            tell(Ok(()));
        })
        .unwrap();
        assert!(
            fs::read(path("secret")).is_ok(),
            "the rest of the process goes on as before"
        );
    }
}
