//! (pure) The message for a path that cannot be used: user, cause, and the command or step that
//! helps.

use crate::runner::failure::Failure;
use rustix::io::Errno;
use std::io;
use std::path::Path;

/// The user of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUser {
    pub uid: u32,
    pub gid: u32,
}

impl ProcessUser {
    /// The user of this process.
    pub fn current() -> Self {
        Self {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
        }
    }

    /// The failure to use a path. `usage` completes the sentence after the path, and `owned_dir` is
    /// the directory that should belong to the user.
    pub fn access_failure(
        self,
        usage: &str,
        path: &Path,
        owned_dir: &Path,
        error: &io::Error,
    ) -> Failure {
        let path = path.display();
        Failure::data(format!(
            "{path} {usage} by uid {}: {error}{}",
            self.uid,
            self.remedy(owned_dir, error)
        ))
    }

    fn remedy(self, owned_dir: &Path, error: &io::Error) -> String {
        let Self { uid, gid } = self;
        let dir = owned_dir.display();
        let step = match Errno::from_io_error(error) {
            Some(Errno::ACCESS | Errno::PERM) => format!(
                "the volume of {dir} ignores the pod's fsGroup; in a pod or on a node that mounts the volume, run once as root: chown -R {uid}:{gid} {dir}"
            ),
            Some(Errno::ROFS) => {
                format!("the volume of {dir} is mounted read-only; mount the volume writable")
            }
            Some(Errno::NOSPC | Errno::DQUOT) => {
                format!("the volume of {dir} is full; free space or enlarge the volume")
            }
            Some(Errno::NOENT | Errno::NOTDIR) => {
                format!("check that the volume of {dir} is mounted")
            }
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
        let user = ProcessUser { uid: 107, gid: 108 };
        let reported = |errno: Errno| {
            let (path, owned_dir) = (Path::new("/d/uuid.txt"), Path::new("/d"));
            user.access_failure("cannot be read", path, owned_dir, &errno.into())
                .message
        };
        for (errno, step) in [
            (Errno::ACCESS, "chown -R 107:108 /d"),
            (Errno::PERM, "chown -R 107:108 /d"),
            (Errno::ROFS, "read-only"),
            (Errno::NOSPC, "free space"),
            (Errno::NOENT, "is mounted"),
        ] {
            let reported = reported(errno);
            assert!(
                reported.starts_with("/d/uuid.txt cannot be read by uid 107: ")
                    && reported.contains(step),
                "{reported}"
            );
        }
        assert!(reported(Errno::IO).ends_with("(os error 5)"));
    }
}
