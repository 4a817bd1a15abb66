//! (io) A directory that is one runner's at a time.
//!
//! The kernel keeps the lock with the open directory: it is free as soon as nobody has that open any more, however they have
//! ended, and leaves nothing behind.

use crate::api::runner::outcome::EndReason;
use crate::runner::failure::Failure;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// Time for a machine to let go that was just killed, and the pause between looks.
const LET_GO: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(20);

/// Directories that nobody else uses.
#[derive(Debug, Default)]
pub struct Claims(Vec<OwnedFd>);

impl Claims {
    /// Takes a directory too; `key` is where another one is configured. Where the file system has no locks, that is said, and
    /// nothing more.
    pub async fn take(&mut self, dir: &Path, key: &str) -> Result<(), Failure> {
        match self.lock(dir).await {
            Ok(claim) => self.0.extend(claim),
            Err(Errno::WOULDBLOCK) => {
                let message = format!(
                    "{} is in use by another vm-runner, or by its QEMU; end that, or give this VM a {key} of its own",
                    dir.display()
                );
                return Err(Failure::new(EndReason::DiskInUse, message));
            }
            Err(error) => tracing::warn!(
                "{} cannot be locked: {error}; nothing but the user keeps a second vm-runner from it",
                dir.display()
            ),
        }
        Ok(())
    }

    /// The directory, locked; none if it is taken already, under another name or the same.
    async fn lock(&self, dir: &Path) -> Result<Option<OwnedFd>, Errno> {
        let claim = rustix::fs::open(
            dir,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let which = |dir: &OwnedFd| rustix::fs::fstat(dir).map(|stat| (stat.st_dev, stat.st_ino));
        let this = which(&claim)?;
        if self.0.iter().any(|taken| which(taken) == Ok(this)) {
            return Ok(None);
        }
        let began = Instant::now();
        loop {
            match rustix::fs::flock(&claim, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(claim)),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if began.elapsed() < LET_GO => {
                    tokio::time::sleep(STEP).await
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The same for another process, as long as that lives.
    pub fn shared(&self) -> io::Result<Vec<OwnedFd>> {
        self.0.iter().map(OwnedFd::try_clone).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_directory_is_one_runners_until_the_last_who_has_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = Claims::default();
        first.take(dir.path(), "dataDir").await.unwrap();
        // Who waits for a process that stays needs no real seconds.
        tokio::time::pause();
        let failure = Claims::default()
            .take(dir.path(), "dataDir")
            .await
            .unwrap_err();
        assert_eq!(failure.reason, EndReason::DiskInUse);
        let words = format!("{} is in use by another vm-runner", dir.path().display());
        assert!(
            failure.message.starts_with(&words) && failure.message.contains("a dataDir of its own"),
            "{failure}"
        );
        let of_qemu = first.shared().unwrap();
        drop(first);
        assert!(Claims::default().take(dir.path(), "dataDir").await.is_err());
        tokio::time::resume();
        let soon = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(of_qemu);
        });
        // Who is about to end is waited for.
        Claims::default().take(dir.path(), "dataDir").await.unwrap();
        soon.join().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn one_directory_can_be_both_of_a_runners() {
        let dir = tempfile::tempdir().unwrap();
        let mut claims = Claims::default();
        claims.take(dir.path(), "dataDir").await.unwrap();
        claims
            .take(&dir.path().join("."), "runtimeDir")
            .await
            .unwrap();
        assert_eq!(claims.shared().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn where_nothing_can_be_locked_the_machine_starts_all_the_same() {
        let mut claims = Claims::default();
        claims
            .take(Path::new("/proc/version"), "dataDir")
            .await
            .unwrap();
        assert!(claims.shared().unwrap().is_empty());
    }
}
