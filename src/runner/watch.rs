//! (io) Follows the files of the configuration directory: the configuration, the display's password and its certificate.
//!
//! Looks four times a second at what a `stat` tells; that works alike for a volume that the kubelet swaps, a file that
//! an editor replaces and one that is written in place, and costs a few microseconds. What always holds: files whose
//! content is the same are no change.

use crate::api::vm::names;
use crate::runner::desired::display::Password;
use crate::runner::failure::Failure;
use crate::runner::{config, machine};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc;

/// Pause between looks.
const PAUSE: Duration = Duration::from_millis(250);

/// What the files hold. A certificate that is not readable is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The configuration's text, if there is a file, or why it cannot be used.
    pub config: Result<Option<String>, Failure>,
    /// The display's password, or why it cannot be used.
    pub password: Result<Option<Password>, Failure>,
    /// What its certificate, key and authority are known by; nothing of the key is kept.
    pub certificate: [Option<[u8; 32]>; 3],
}

impl Files {
    /// Reads them.
    pub fn read(config: &Path) -> Self {
        let [.., chain, key, authority] = paths(config);
        let digest = |path| {
            fs::read(path)
                .ok()
                .map(|content| Sha256::digest(content).into())
        };
        Self {
            config: config::text(config),
            password: machine::password(folder(config)),
            certificate: [chain, key, authority].map(digest),
        }
    }
}

fn folder(config: &Path) -> &Path {
    config.parent().unwrap_or(Path::new("."))
}

fn paths(config: &Path) -> [PathBuf; 6] {
    let beside = |name| folder(config).join(name);
    let [password, expiry] = [names::SECRET_PASSWORD, names::SECRET_EXPIRY].map(beside);
    let [certificate, key, authority] = [
        names::SECRET_TLS_CERTIFICATE,
        names::SECRET_TLS_KEY,
        names::SECRET_TLS_AUTHORITY,
    ]
    .map(beside);
    [
        config.to_owned(),
        password,
        expiry,
        certificate,
        key,
        authority,
    ]
}

/// What tells that a file may have changed, or who may read it.
type Mark = Option<(u64, u64, (i64, i64), (i64, i64), u64)>;

fn marks(config: &Path) -> [Mark; 6] {
    paths(config).map(|path| {
        let metadata = fs::metadata(path).ok()?;
        let written = (metadata.mtime(), metadata.mtime_nsec());
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        Some((
            metadata.dev(),
            metadata.ino(),
            written,
            changed,
            metadata.size(),
        ))
    })
}

/// Sends the files' content whenever it has changed from the one given.
pub async fn follow(config: PathBuf, mut known: Files, changes: mpsc::UnboundedSender<Files>) {
    let mut seen = [None; 6];
    loop {
        let now = marks(&config);
        if now != seen {
            seen = now;
            let files = Files::read(&config);
            // A file that is not there is about to be replaced; nobody configures a machine by that.
            if files.config != Ok(None) && files != known {
                known = files.clone();
                if changes.send(files).is_err() {
                    return;
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Writes a generation of a volume and swaps to it, as the kubelet does.
    fn swap(dir: &Path, generation: &str, files: &[(&str, &str)]) {
        let data = dir.join(format!("..{generation}"));
        fs::create_dir(&data).unwrap();
        for (name, content) in files {
            fs::write(data.join(name), content).unwrap();
            let _ = symlink(format!("..data/{name}"), dir.join(name));
        }
        symlink(format!("..{generation}"), dir.join("..data_tmp")).unwrap();
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_swapped_volume_is_seen_once_and_only_if_its_content_differs() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config.yaml");
        swap(
            dir.path(),
            "one",
            &[("config.yaml", "a"), ("display-password", "p")],
        );
        let known = Files::read(&config);
        assert_eq!(known.password.clone().unwrap().unwrap().text, "p");
        let (sender, mut changes) = mpsc::unbounded_channel();
        tokio::spawn(follow(config, known, sender));
        swap(
            dir.path(),
            "two",
            &[("config.yaml", "a"), ("display-password", "p")],
        );
        tokio::time::sleep(PAUSE * 2).await;
        assert!(changes.try_recv().is_err());
        swap(
            dir.path(),
            "three",
            &[("config.yaml", "b"), ("display-password", "p")],
        );
        assert_eq!(
            changes.recv().await.unwrap().config,
            Ok(Some("b".to_owned()))
        );
        fs::write(dir.path().join("password-expiry"), "now\n").unwrap();
        let password = changes.recv().await.unwrap().password.unwrap().unwrap();
        assert_eq!(password.expiry.as_deref(), Some("now"));
        for name in ["tls.crt", "tls.key", "ca.crt"] {
            fs::write(dir.path().join(name), "one").unwrap();
            let one = changes.recv().await.unwrap().certificate;
            fs::write(dir.path().join(name), "another").unwrap();
            assert_ne!(changes.recv().await.unwrap().certificate, one, "{name}");
        }
        assert!(changes.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_cannot_be_read_is_a_change_and_one_that_is_not_there_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config.yaml");
        fs::write(&config, "a").unwrap();
        let (sender, mut changes) = mpsc::unbounded_channel();
        tokio::spawn(follow(config.clone(), Files::read(&config), sender));
        let mut next = async || changes.recv().await.unwrap().config;
        fs::write(&config, [b'a', 0xff]).unwrap();
        let failure = next().await.unwrap_err();
        assert_eq!(
            failure.message,
            format!("{} is not text in UTF-8; write it anew", config.display())
        );
        fs::remove_file(&config).unwrap();
        tokio::time::sleep(PAUSE * 2).await;
        fs::create_dir(&config).unwrap();
        let failure = next().await.unwrap_err();
        assert!(
            failure.message.contains("config.yaml cannot be read"),
            "{failure}"
        );
        fs::remove_dir(&config).unwrap();
        fs::write(&config, "a").unwrap();
        assert_eq!(
            next().await,
            Ok(Some("a".to_owned())),
            "also what was there before"
        );
    }
}
