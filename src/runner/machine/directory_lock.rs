//! (io) Locks that give a directory to one runner at a time.
//!
//! The kernel ties the lock to the open directory. It is released when the last process with that
//! descriptor has exited, even after a crash, and leaves no file.

use crate::api::runner::outcome::EndReason;
use crate::runner::failure::Failure;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// Time for a killed VM to release its locks, and the delay between two attempts.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Locked directories.
#[derive(Debug, Default)]
pub struct DirectoryLocks(Vec<OwnedFd>);

impl DirectoryLocks {
    /// Locks a directory; `key` is the configuration key of the directory. A file system without
    /// locks causes a warning only.
    pub async fn acquire(&mut self, dir: &Path, key: &str) -> Result<(), Failure> {
        match self.lock(dir).await {
            Ok(locked) => self.0.extend(locked),
            Err(Errno::WOULDBLOCK) => {
                let message = format!(
                    "another vm-runner, or its QEMU, uses the directory {}; stop that vm-runner, or set a different {key} for \
                     this VM",
                    dir.display()
                );
                return Err(Failure::new(EndReason::DiskInUse, message));
            }
            Err(error) => tracing::warn!(
                "the runner cannot lock the directory {} against a second vm-runner of this VM: {error}; use a volume that \
                 supports file locks (flock)",
                dir.display()
            ),
        }
        Ok(())
    }

    /// The locked directory, or None if this process has locked it already, possibly under another
    /// name.
    async fn lock(&self, dir: &Path) -> Result<Option<OwnedFd>, Errno> {
        let locked = rustix::fs::open(
            dir,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let inode = |dir: &OwnedFd| rustix::fs::fstat(dir).map(|stat| (stat.st_dev, stat.st_ino));
        let this = inode(&locked)?;
        if self.0.iter().any(|held| inode(held) == Ok(this)) {
            return Ok(None);
        }
        let started = Instant::now();
        loop {
            match rustix::fs::flock(&locked, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(locked)),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if started.elapsed() < LOCK_TIMEOUT => {
                    tokio::time::sleep(LOCK_POLL_INTERVAL).await
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The descriptors for another process, which holds the locks until it exits.
    pub fn duplicate_descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        self.0.iter().map(OwnedFd::try_clone).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn directory_lock_is_exclusive_until_the_last_holder_exits() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = DirectoryLocks::default();
        first.acquire(dir.path(), "dataDir").await.unwrap();
        // Simulated time: the first lock is not released.
        tokio::time::pause();
        let failure = DirectoryLocks::default()
            .acquire(dir.path(), "dataDir")
            .await
            .unwrap_err();
        assert_eq!(failure.reason, EndReason::DiskInUse);
        let words = format!("uses the directory {}", dir.path().display());
        assert!(
            failure.message.contains(&words) && failure.message.contains("a different dataDir"),
            "{failure}"
        );
        let of_qemu = first.duplicate_descriptors().unwrap();
        drop(first);
        assert!(
            DirectoryLocks::default()
                .acquire(dir.path(), "dataDir")
                .await
                .is_err()
        );
        tokio::time::resume();
        let soon = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(of_qemu);
        });
        // An exiting owner is waited for.
        DirectoryLocks::default()
            .acquire(dir.path(), "dataDir")
            .await
            .unwrap();
        soon.join().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn one_directory_can_be_both_of_a_runners() {
        let dir = tempfile::tempdir().unwrap();
        let mut locks = DirectoryLocks::default();
        locks.acquire(dir.path(), "dataDir").await.unwrap();
        locks
            .acquire(&dir.path().join("."), "runtimeDir")
            .await
            .unwrap();
        assert_eq!(locks.duplicate_descriptors().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn machine_starts_if_directory_locks_are_unsupported() {
        let mut locks = DirectoryLocks::default();
        locks
            .acquire(Path::new("/proc/version"), "dataDir")
            .await
            .unwrap();
        assert!(locks.duplicate_descriptors().unwrap().is_empty());
    }
}
