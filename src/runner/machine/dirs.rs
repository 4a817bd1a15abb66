//! (io) The two directories of a VM. The data directory outlives the pod. The runtime directory
//! contains sockets and the cloud-init seed.

use crate::runner::config::RunnerConfig;
use crate::runner::failure::Failure;
use crate::runner::machine::path_failure::ProcessUser;
use crate::runner::machine::{DirectoryLocks, atomic_file, check_writable, uid};
use rustix::fs::Access;
use rustix::io::Errno;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Environment variables that select directories.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `$XDG_RUNTIME_DIR`
    pub runtime: Option<PathBuf>,
    /// `$XDG_DATA_HOME`
    pub data: Option<PathBuf>,
    /// `$HOME`
    pub home: Option<PathBuf>,
}

impl Environment {
    /// The variables of this process.
    pub fn current() -> Self {
        let path = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self {
            runtime: path("XDG_RUNTIME_DIR"),
            data: path("XDG_DATA_HOME"),
            home: path("HOME"),
        }
    }
}

/// The directories of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directories {
    /// Outlives the VM's pod: UUID, firmware variables, TPM state.
    pub data: PathBuf,
    /// Is removed with the VM's pod.
    pub runtime: PathBuf,
}

/// Socket of the guest agent's channel, in the runtime directory.
pub const GUEST_AGENT_SOCKET: &str = "guest-agent.sock";
/// Socket of the desktop agent's channel, in the runtime directory.
pub const VMOP_AGENT_SOCKET: &str = "vmop-agent.sock";
/// Socket of the serial console, in the runtime directory.
pub const CONSOLE_SOCKET: &str = "console.sock";
/// Image with the cloud-init seed, in the runtime directory.
pub const SEED_IMAGE: &str = "seed.img";

/// All files in the runtime directory.
const RUNTIME_FILES: [&str; 4] = [
    GUEST_AGENT_SOCKET,
    VMOP_AGENT_SOCKET,
    CONSOLE_SOCKET,
    SEED_IMAGE,
];

/// State of the TPM, in the data directory. swtpm gives it this name.
pub const TPM_STATE_FILE: &str = "tpm2-00.permall";

/// Files of the data directory, and whether they are written in place. All others are replaced.
const DATA_FILES: [(&str, bool); 5] = [
    ("uuid.txt", false),
    ("machine.json", false),
    ("fw-vars.fd", true),
    (TPM_STATE_FILE, false),
    // The lock file of swtpm.
    (".lock", true),
];

impl Directories {
    /// The paths of the directories. The file system is not accessed.
    pub fn locate(config: &RunnerConfig, name: &str, environment: &Environment) -> Self {
        let own = |base: PathBuf| base.join("vmrunner").join(name);
        let home_data = || {
            environment
                .home
                .clone()
                .unwrap_or_else(|| "/".into())
                .join(".local/share")
        };
        let data = || own(environment.data.clone().unwrap_or_else(home_data));
        let runtime = || {
            own(environment
                .runtime
                .clone()
                .unwrap_or_else(|| "/dev/shm".into()))
        };
        Self {
            data: config.data_dir.as_ref().map_or_else(data, PathBuf::from),
            runtime: config
                .runtime_dir
                .as_ref()
                .map_or_else(runtime, PathBuf::from),
        }
    }

    /// Creates and locks the directories. A directory that another runner has locked is not
    /// changed.
    pub async fn create(&self) -> Result<DirectoryLocks, Failure> {
        let mut private = DirBuilder::new();
        private.recursive(true).mode(0o700);
        let failure = |path: &Path, error: std::io::Error| {
            ProcessUser::current().access_failure("is not writable", path, path, &error)
        };
        let mut locks = DirectoryLocks::default();
        for (path, key) in [(&self.data, "dataDir"), (&self.runtime, "runtimeDir")] {
            let made = if path.is_dir() {
                Ok(())
            } else {
                private.create(path)
            };
            made.map_err(|error| failure(path, error))?;
            check_writable(path).map_err(|error| failure(path, error.into()))?;
            locks.acquire(path, key).await?;
        }
        self.check_data_access()?;
        self.take_over_tpm_state()?;
        self.remove_runtime_files();
        self.check_socket_path_length()?;
        Ok(locks)
    }

    /// Checks access to files of a runner with another user. They exist on volumes that do not
    /// follow `fsGroup`.
    fn check_data_access(&self) -> Result<(), Failure> {
        for (name, is_written_in_place) in DATA_FILES {
            let path = self.data.join(name);
            let access = if is_written_in_place {
                Access::READ_OK | Access::WRITE_OK
            } else {
                Access::READ_OK
            };
            let Err(error) = rustix::fs::access(&path, access) else {
                continue;
            };
            if error == Errno::NOENT {
                continue;
            }
            let owner = fs::metadata(&path)
                .map(|metadata| metadata.uid())
                .unwrap_or_default();
            let usage = format!("belongs to uid {owner} and cannot be used");
            return Err(ProcessUser::current().access_failure(
                &usage,
                &path,
                &self.data,
                &error.into(),
            ));
        }
        Ok(())
    }

    /// swtpm sets the mode of its state file at each start, which only the owner may do. A readable
    /// file of another owner is replaced by a copy.
    fn take_over_tpm_state(&self) -> Result<(), Failure> {
        let path = self.data.join(TPM_STATE_FILE);
        let has_other_owner = |metadata: fs::Metadata| metadata.uid() != uid();
        if !fs::metadata(&path).is_ok_and(has_other_owner) {
            return Ok(());
        }
        let failure = |error| {
            ProcessUser::current().access_failure(
                "belongs to another user and cannot be replaced",
                &path,
                &self.data,
                &error,
            )
        };
        atomic_file::copy(&path, &path).map_err(failure)
    }

    fn check_socket_path_length(&self) -> Result<(), Failure> {
        // The kernel limits the path of a socket to 108 bytes, including the final zero.
        match self.file(GUEST_AGENT_SOCKET).as_os_str().len() {
            0..108 => Ok(()),
            _ => Err(Failure::data(format!(
                "{} is too long for the path of a socket; set runtimeDir to a shorter path",
                self.runtime.display()
            ))),
        }
    }

    /// The path of a file in the runtime directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.runtime.join(name)
    }

    /// The failure to create a file in the runtime directory.
    pub fn failure(&self, error: &std::io::Error) -> Failure {
        Failure::data(format!("{}: {error}", self.runtime.display()))
    }

    /// Removes the runner's files from the runtime directory. A process that is restricted by Landlock cannot create the
    /// directory again, so it stays.
    pub fn remove_runtime_files(&self) {
        for name in RUNTIME_FILES {
            let _ = fs::remove_file(self.file(name));
        }
    }

    /// Removes the runtime directory, unless it contains other files.
    pub fn remove_runtime(&self) {
        self.remove_runtime_files();
        let _ = fs::remove_dir(&self.runtime);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn b09_configured_directories_win_over_the_environments_and_that_over_the_defaults() {
        let environment = Environment {
            runtime: Some("/run/user/1".into()),
            data: None,
            home: Some("/home/u".into()),
        };
        let dirs = Directories::locate(&RunnerConfig::default(), "t", &environment);
        assert_eq!(dirs.runtime, Path::new("/run/user/1/vmrunner/t"));
        assert_eq!(dirs.data, Path::new("/home/u/.local/share/vmrunner/t"));
        let dirs = Directories::locate(&RunnerConfig::default(), "t", &Environment::default());
        assert_eq!(dirs.runtime, Path::new("/dev/shm/vmrunner/t"));
        let config = RunnerConfig {
            data_dir: Some("/d".into()),
            runtime_dir: Some("/r".into()),
            ..Default::default()
        };
        let dirs = Directories::locate(&config, "t", &environment);
        assert_eq!((dirs.data, dirs.runtime), ("/d".into(), "/r".into()));
    }

    #[tokio::test]
    async fn runtime_directory_is_private_and_removed_with_its_contents() {
        let base = tempfile::tempdir().unwrap();
        let dirs = Directories {
            data: base.path().join("data"),
            runtime: base.path().join("a/run"),
        };
        dirs.create().await.unwrap();
        assert_eq!(
            fs::metadata(&dirs.runtime).unwrap().permissions().mode() & 0o777,
            0o700
        );
        fs::write(dirs.file("seed.img"), "x").unwrap();
        dirs.remove_runtime();
        assert!(!dirs.runtime.exists() && dirs.data.exists());
    }

    #[tokio::test]
    async fn directory_creation_failure_names_uid_and_path() {
        let dirs = Directories {
            data: "/proc/nothing".into(),
            runtime: "/proc/nothing".into(),
        };
        let message = dirs.create().await.unwrap_err().message;
        assert!(
            message.starts_with("/proc/nothing is not writable by uid"),
            "{message}"
        );
    }
}
