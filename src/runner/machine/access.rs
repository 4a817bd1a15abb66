//! (pure) What is said of a path that cannot be used: by whom, why, and the command or the step that helps.

use crate::runner::failure::Failure;
use rustix::io::Errno;
use std::io;
use std::path::Path;

/// Somebody who cannot use a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// Its id.
    pub uid: u32,
    /// That of its group.
    pub gid: u32,
}

impl User {
    /// This process'.
    pub fn of_process() -> Self {
        Self {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
        }
    }

    /// The failure, where `what` says which use of the path is meant and `tree` is what should belong to the user.
    pub fn cannot(self, what: &str, path: &Path, tree: &Path, error: &io::Error) -> Failure {
        let path = path.display();
        Failure::data(format!(
            "{path} {what} by uid {}: {error}{}",
            self.uid,
            self.remedy(tree, error)
        ))
    }

    fn remedy(self, tree: &Path, error: &io::Error) -> String {
        let Self { uid, gid } = self;
        let step = match Errno::from_io_error(error) {
            Some(Errno::ACCESS | Errno::PERM) => format!(
                "its volume does not follow the pod's fsGroup, so run once as root where it is mounted: chown -R {uid}:{gid} {}",
                tree.display()
            ),
            Some(Errno::ROFS) => {
                "its volume is mounted read-only; mount it so that it can be written".to_owned()
            }
            Some(Errno::NOSPC | Errno::DQUOT) => {
                "its volume is full; make room there, or enlarge it".to_owned()
            }
            Some(Errno::NOENT | Errno::NOTDIR) => "is its volume mounted?".to_owned(),
            _ => return String::new(),
        };
        format!("; {step}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_uid_and_path_and_the_step_that_helps() {
        let user = User { uid: 107, gid: 108 };
        let told = |errno: Errno| {
            let (path, tree) = (Path::new("/d/uuid.txt"), Path::new("/d"));
            user.cannot("cannot be read", path, tree, &errno.into())
                .message
        };
        for (errno, step) in [
            (Errno::ACCESS, "chown -R 107:108 /d"),
            (Errno::PERM, "chown -R 107:108 /d"),
            (Errno::ROFS, "read-only"),
            (Errno::NOSPC, "make room"),
            (Errno::NOENT, "mounted?"),
        ] {
            let told = told(errno);
            assert!(
                told.starts_with("/d/uuid.txt cannot be read by uid 107: ") && told.contains(step),
                "{told}"
            );
        }
        assert!(told(Errno::IO).ends_with("(os error 5)"));
    }
}
