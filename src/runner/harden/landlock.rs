//! (io) Landlock: restricts the files that the runner can access, and those of the programs that it
//! starts even more.
//!
//! The kernel restricts the calling thread and its children, not the rest of the process. The
//! runner therefore restricts itself while it has one thread. It starts each program from a
//! separate thread, so that no code has to run between fork and exec.

use crate::runner::failure::Failure;
use crate::runner::harden::file_access::Access;
use landlock::{
    ABI, Access as _, AccessFs, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, path_beneath_rules,
};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc;

/// The newest version of Landlock that this code is tested with. The library omits rights that the
/// kernel does not know.
const LANDLOCK_ABI: ABI = ABI::V5;

/// Runs `start` in a separate thread that can access only these files. Returns the result that
/// `start` sends; `start` may continue after that. Without Landlock in the kernel, `start` runs
/// unrestricted.
pub fn run_confined<T: Send + 'static>(
    files: Vec<(PathBuf, Access)>,
    start: impl FnOnce(&dyn Fn(io::Result<T>)) + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = mpsc::channel();
    let send = move |result| drop(sender.send(result));
    let confine_and_start = move || match confine_thread(&files) {
        Ok(_) => start(&send),
        Err(error) => send(Err(io::Error::other(error))),
    };
    std::thread::Builder::new()
        .name("start".to_owned())
        .spawn(confine_and_start)?;
    receiver.recv().unwrap_or_else(|_| {
        Err(io::Error::other(
            "internal error: the thread that starts the VM's programs has panicked; report it as a bug of vm-runner",
        ))
    })
}

/// Restricts this process and all its future children to these files. Must be called while the
/// process has one thread.
pub fn confine_process(files: &[(PathBuf, Access)]) -> Result<(), Failure> {
    match confine_thread(files) {
        Ok(RulesetStatus::NotEnforced) => {
            tracing::info!(
                "the node's kernel has no Landlock, so only file permissions restrict the file access of the VM's programs"
            );
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::start(format!(
            "the runner cannot restrict its own file access with Landlock, so it does not start: {error}; check \
             the seccomp profile of the pod"
        ))),
    }
}

/// The library skips a path that does not exist.
fn confine_thread(files: &[(PathBuf, Access)]) -> Result<RulesetStatus, RulesetError> {
    let rules = files
        .iter()
        .flat_map(|(path, access)| path_beneath_rules([path], rights(*access)));
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK_ABI))?
        .create()?
        .add_rules(rules)?;
    Ok(rules.restrict_self()?.ruleset)
}

/// The rights for a directory. For a file, the library keeps those that apply to files.
fn rights(access: Access) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    match access {
        Access::Execute => AccessFs::from_read(LANDLOCK_ABI),
        Access::Read => read,
        Access::Write => read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev,
        Access::Manage => read | (AccessFs::from_write(LANDLOCK_ABI) & !AccessFs::Refer),
        Access::RemoveDir => AccessFs::RemoveDir.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_listed_paths_are_accessible_in_the_restricted_thread() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().to_owned();
        let path = move |name: &str| place.join(name);
        for name in ["read", "write", "secret"] {
            fs::write(path(name), "x").unwrap();
        }
        fs::create_dir(path("keep")).unwrap();
        let files = [
            (path("read"), Access::Read),
            (path("write"), Access::Write),
            (path("keep"), Access::Manage),
            (path("missing"), Access::Write),
        ];
        let of_thread = path.clone();
        run_confined(files.into(), move |send| {
            let path = of_thread;
            assert!(fs::read(path("read")).is_ok() && fs::write(path("read"), "y").is_err());
            assert!(fs::write(path("write"), "y").is_ok());
            assert!(fs::read(path("secret")).is_err() && fs::read_dir(path("")).is_err());
            assert!(
                fs::write(path("keep/a"), "y").is_ok()
                    && fs::rename(path("keep/a"), path("keep/b")).is_ok()
            );
            assert!(fs::write(path("new"), "y").is_err());
            send(Ok(()));
        })
        .unwrap();
        assert!(
            fs::read(path("secret")).is_ok(),
            "the rest of the process goes on as before"
        );
    }
}
