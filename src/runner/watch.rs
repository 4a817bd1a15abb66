//! (io) Watches the files of the configuration directory: configuration, display password and
//! certificate.
//!
//! It compares the files' attributes four times a second, which costs a few microseconds. This
//! works for volumes that the kubelet swaps, files that an editor replaces, and files that are
//! written in place. Invariant: an unchanged content is not reported as a change.

use crate::api::vm::names;
use crate::pinned_tls::PublicKey;
use crate::runner::desired::display_password::DisplayPassword;
use crate::runner::failure::Failure;
use crate::runner::{config, machine};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc;

/// Delay between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Contents of the files. An unreadable certificate counts as missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFiles {
    /// The configuration's text, if there is a file, or the reason why it cannot be read.
    pub config: Result<Option<String>, Failure>,
    /// The display's password, or the reason why it cannot be read.
    pub password: Result<Option<DisplayPassword>, Failure>,
    /// Digests of certificate, key and authority. The key itself is not stored.
    pub certificate: [Option<[u8; 32]>; 3],
    /// Keys of the web consoles that may connect to the runner. Lines that are no keys are ignored.
    pub console_keys: Vec<PublicKey>,
}

impl ConfigFiles {
    pub fn read(config: &Path) -> Self {
        let [.., chain, key, authority, consoles] = paths(config);
        let consoles = fs::read_to_string(consoles).unwrap_or_default();
        let digest = |path| {
            fs::read(path)
                .ok()
                .map(|content| Sha256::digest(content).into())
        };
        Self {
            config: config::text(config),
            password: machine::password(directory(config)),
            certificate: [chain, key, authority].map(digest),
            console_keys: consoles
                .lines()
                .filter_map(|key| key.parse().ok())
                .collect(),
        }
    }
}

fn directory(config: &Path) -> &Path {
    config.parent().unwrap_or(Path::new("."))
}

fn paths(config: &Path) -> [PathBuf; 7] {
    let beside = |name| directory(config).join(name);
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
        beside(names::CONSOLE_KEYS),
    ]
}

/// Attributes that change with a file's content or its permissions.
type FileStamp = Option<(u64, u64, (i64, i64), (i64, i64), u64)>;

fn file_stamps(config: &Path) -> [FileStamp; 7] {
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

/// Sends the files' contents whenever they differ from the previous ones, starting with `known`.
pub async fn follow(
    config: PathBuf,
    mut known: ConfigFiles,
    changes: mpsc::UnboundedSender<ConfigFiles>,
) {
    let mut seen = [None; 7];
    loop {
        let now = file_stamps(&config);
        if now != seen {
            seen = now;
            let files = ConfigFiles::read(&config);
            // A missing file is about to be replaced. It is not a change of the configuration.
            if files.config != Ok(None) && files != known {
                known = files.clone();
                if changes.send(files).is_err() {
                    return;
                }
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
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
        let known = ConfigFiles::read(&config);
        assert_eq!(known.password.clone().unwrap().unwrap().text, "p");
        let (sender, mut changes) = mpsc::unbounded_channel();
        tokio::spawn(follow(config, known, sender));
        swap(
            dir.path(),
            "two",
            &[("config.yaml", "a"), ("display-password", "p")],
        );
        tokio::time::sleep(POLL_INTERVAL * 2).await;
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
        fs::write(dir.path().join("console-keys"), "YQ==\n?\nYg==").unwrap();
        let keys = changes.recv().await.unwrap().console_keys;
        let keys: Vec<_> = keys.iter().map(ToString::to_string).collect();
        assert_eq!(keys, ["YQ==", "Yg=="]);
        assert!(changes.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn unreadable_file_is_a_change_and_missing_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config.yaml");
        fs::write(&config, "a").unwrap();
        let (sender, mut changes) = mpsc::unbounded_channel();
        tokio::spawn(follow(config.clone(), ConfigFiles::read(&config), sender));
        let mut next = async || changes.recv().await.unwrap().config;
        fs::write(&config, [b'a', 0xff]).unwrap();
        let failure = next().await.unwrap_err();
        assert_eq!(
            failure.message,
            format!(
                "the configuration file {} is not UTF-8 text; save the file as UTF-8",
                config.display()
            )
        );
        fs::remove_file(&config).unwrap();
        tokio::time::sleep(POLL_INTERVAL * 2).await;
        fs::create_dir(&config).unwrap();
        let failure = next().await.unwrap_err();
        assert!(
            failure.message.contains("config.yaml: Is a directory"),
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
