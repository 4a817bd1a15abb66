//! (io) The socket on which one resource answers, in the kubelet's directory.
//!
//! It has the same name in each plugin for the resource. Of two plugins the newer takes the name and the older notices;
//! none removes the other's.

use crate::device_plugin::grpc::{Answer, serve};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// What tells a file from the next one of the same name. The time is that of the last change to the inode, whose number
/// may be given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    file: (u64, u64),
    changed: (i64, i64),
}

impl Mark {
    /// Of the file that has the name now. None if there is none.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let found = std::fs::symlink_metadata(path).ok()?;
        Some(Self {
            file: (found.dev(), found.ino()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

/// Who has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This socket.
    Us,
    /// Another plugin's.
    Another,
    /// The kubelet has removed it, as it does when it starts.
    Nobody,
}

/// A socket that is answered. When it is dropped, no connection is left, nor the file.
pub struct Socket {
    path: PathBuf,
    mark: Mark,
    serving: JoinHandle<()>,
}

impl Socket {
    /// Listens at `path`, whoever has had that name.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn bind(path: &Path, answer: impl Answer) -> io::Result<Self> {
        // Under another name at first: so there is never none, and what was there is replaced at once.
        let new = path.with_extension(format!("{}.new", std::process::id()));
        drop(std::fs::remove_file(&new));
        let listener = UnixListener::bind(&new)?;
        let mark = std::fs::rename(&new, path)
            .and_then(|()| Mark::of(path).ok_or(io::ErrorKind::NotFound.into()));
        let mark = mark.inspect_err(|_| drop(std::fs::remove_file(&new)))?;
        Ok(Self {
            path: path.to_owned(),
            mark,
            serving: tokio::spawn(serve(listener, answer)),
        })
    }

    /// Who has the name now. The number of our inode is not given again while we listen.
    #[must_use]
    pub fn owner(&self) -> Owner {
        match Mark::of(&self.path) {
            Some(mark) if mark.file == self.mark.file => Owner::Us,
            Some(_) => Owner::Another,
            None => Owner::Nobody,
        }
    }

    /// Whether somebody answers under the name.
    pub async fn is_answered(&self) -> bool {
        tokio::net::UnixStream::connect(&self.path).await.is_ok()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.owner() == Owner::Us {
            drop(std::fs::remove_file(&self.path));
        }
        self.serving.abort();
    }
}
