//! An operator outside the cluster, as a developer runs it. No kubelet controls it.

use super::environment;
use std::fs::{self, File};
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// The operator. Dropping it stops it.
pub struct Outside {
    process: Child,
    dir: TempDir,
}

impl Outside {
    /// Starts the operator for that namespace, with the configuration of the overlay `dev`.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn start(namespace: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config =
            fs::read_to_string(environment::repo().join("deploy/overlays/dev/config.yaml"))
                .unwrap();
        assert!(
            config.contains("vmop-dev"),
            "the namespace comes from the file: {config}"
        );
        fs::write(
            dir.path().join("config.yaml"),
            config.replace("vmop-dev", namespace),
        )
        .unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        let mut operator = Command::new(env!("CARGO_BIN_EXE_vm-operator"));
        operator
            .args(["run", "--http", "127.0.0.1:0", "--config"])
            .arg(dir.path().join("config.yaml"));
        operator
            .env("KUBECONFIG", environment::kubeconfig())
            .stderr(log)
            .kill_on_drop(true);
        Self {
            process: operator.spawn().unwrap(),
            dir,
        }
    }

    /// Its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }
}
