//! `vm-runner fetch` as a process, with misbehaving web servers.

mod limits;
mod resume;
mod servers;

use crate::fixture::{LIMIT, programs};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// An image repository, and the program.
struct Repository {
    dir: TempDir,
    _programs: Arc<TempDir>,
    /// Additional environment variables.
    env: Vec<(String, String)>,
}

/// A running download.
struct Fetch<'a> {
    repository: &'a Repository,
    child: Child,
    n: u32,
}

/// The result of a download.
#[derive(Debug)]
struct End {
    code: Option<i32>,
    reason: String,
    message: String,
    bytes: u64,
    /// The standard output.
    progress: Vec<Value>,
    log: String,
}

impl Repository {
    fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("fetch")
            .tempdir_in("/tmp")
            .unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let programs = programs();
        fs::hard_link(
            programs.path().join("vm-runner"),
            dir.path().join("vm-runner"),
        )
        .unwrap();
        for name in ["images", "logs"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Self {
            dir,
            _programs: programs,
            env: Vec::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The path of the image.
    fn file(&self) -> PathBuf {
        self.path("images/fetched/a.iso")
    }

    fn start(&self, arguments: &[&str]) -> Fetch<'_> {
        self.start_as(0, arguments)
    }

    fn start_as(&self, uid: u32, arguments: &[&str]) -> Fetch<'_> {
        let n = (0..)
            .find(|n| !self.path(&format!("logs/{n}.out")).exists())
            .unwrap();
        let log = |ending: &str| File::create(self.path(&format!("logs/{n}.{ending}"))).unwrap();
        let (end, to, uid) = (log("end"), self.file(), uid.to_string());
        end.set_permissions(fs::Permissions::from_mode(0o666))
            .unwrap();
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &uid, "--regid", &uid, "--clear-groups"])
            .arg(self.path("vm-runner"));
        command
            .arg("fetch")
            .arg(format!("--to={}", to.display()))
            .args(arguments);
        command.env(
            "VMRUNNER_TERMINATION_LOG",
            self.path(&format!("logs/{n}.end")),
        );
        for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
            command.env_remove(name).env_remove(name.to_uppercase());
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let child = command
            .stdin(Stdio::null())
            .stdout(log("out"))
            .stderr(log("log"))
            .spawn()
            .unwrap();
        Fetch {
            repository: self,
            child,
            n,
        }
    }

    fn fetch(&self, arguments: &[&str]) -> End {
        self.start(arguments).end()
    }

    /// Names of the present files.
    fn files(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path("images/fetched")) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Fetch<'_> {
    fn read(&self, ending: &str) -> String {
        fs::read_to_string(self.repository.path(&format!("logs/{}.{ending}", self.n)))
            .unwrap_or_default()
    }

    fn until(&self, what: &str, mut is: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !is() {
            assert!(
                begin.elapsed() < LIMIT,
                "waited for {what}; the log:\n{}",
                self.read("log")
            );
            sleep(Duration::from_millis(10));
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A line of `/proc/PID/status`.
    fn status(&self, name: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    }

    fn signal(&self, signal: &str) {
        assert!(
            Command::new("kill")
                .args([signal, &self.pid().to_string()])
                .status()
                .unwrap()
                .success()
        );
    }

    fn end(mut self) -> End {
        let begin = Instant::now();
        let code = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status.code(),
                None if begin.elapsed() < LIMIT => sleep(Duration::from_millis(5)),
                None => panic!("has not exited; the log:\n{}", self.read("log")),
            }
        };
        let outcome: Value = serde_json::from_str(&self.read("end")).unwrap_or_default();
        let text = |key: &str| outcome[key].as_str().unwrap_or_default().to_owned();
        let out = self.read("out");
        End {
            code,
            reason: text("reason"),
            message: text("message"),
            bytes: outcome["bytes"].as_u64().unwrap_or_default(),
            progress: out
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect(),
            log: self.read("log"),
        }
    }
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl End {
    /// Asserts the exit code.
    #[track_caller]
    fn is(&self, reason: &str, code: i32) {
        assert_eq!(
            (self.reason.as_str(), self.code),
            (reason, Some(code)),
            "{self:#?}"
        );
    }
}

/// An image without two equal pages.
fn image(bytes: usize) -> Vec<u8> {
    let numbers = (0_u64..).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    numbers.take(bytes).collect()
}

fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
