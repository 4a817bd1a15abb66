//! The released operator as a process.

use kube::Client;
use kube::config::Kubeconfig;
use serde_json::Value;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::processor;
use tempfile::TempDir;

/// A running operator, which is stopped when it is dropped.
pub struct Operator {
    process: Child,
    /// The time from its start to its readiness.
    pub ready_after: Duration,
    /// Processor time of the whole machine in that time, including the operator's.
    pub busy: Duration,
    http: u16,
    _directory: TempDir,
}

/// The released program, unless `BENCH_OPERATOR` names another one.
fn program() -> PathBuf {
    if let Some(other) = std::env::var_os("BENCH_OPERATOR") {
        return other.into();
    }
    let program = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/x86_64-unknown-linux-gnu/release/vm-operator");
    assert!(
        program.exists(),
        "the programs are not built; run `make programs`"
    );
    program
}

/// A free port of the loopback interface. Operators of earlier commits, which `BENCH_OPERATOR` may name, do not log a
/// port that the kernel has chosen.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

impl Operator {
    /// Starts the operator with that kubeconfig. Returns when it is ready.
    pub async fn start(kubeconfig: &Value, namespace: &str) -> Self {
        let config = format!("\"/Manager\": {{\"/Controller\": {{namespace: {namespace}}}}}\n");
        Self::start_with(kubeconfig, &[], config).await
    }

    /// The same with these arguments and this configuration.
    pub async fn start_with(kubeconfig: &Value, arguments: &[&str], config: String) -> Self {
        Self::start_command("run", kubeconfig, arguments, config).await
    }

    /// The same for that subcommand.
    pub async fn start_command(
        command: &str,
        kubeconfig: &Value,
        arguments: &[&str],
        config: String,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let kubeconfig = write("kubeconfig", kubeconfig.to_string());
        assert!(Kubeconfig::read_from(&kubeconfig).is_ok());
        let config = write("config.yaml", config);
        let http = free_port();
        let (began, busy) = (Instant::now(), processor::of_machine());
        let process = Command::new(program())
            .args([
                command,
                "--log-level=warn",
                &format!("--http=127.0.0.1:{http}"),
                "--config",
            ])
            .arg(config)
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            // As in deploy/base/vmop-deployment.yaml.
            .env("MALLOC_ARENA_MAX", "2")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        wait_until_ready(http).await;
        let busy = processor::of_machine().saturating_sub(busy);
        let ready_after = began.elapsed();
        Self {
            process,
            ready_after,
            busy,
            http,
            _directory: directory,
        }
    }

    /// Its present memory, in MiB.
    pub fn memory(&self) -> f64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap();
        line.split_whitespace()
            .next()
            .unwrap()
            .parse::<f64>()
            .unwrap()
            / 1024.0
    }

    /// The number of its reconciles, from its metrics.
    pub async fn reconciles(&self) -> u64 {
        let config = kube::Config::new(format!("http://127.0.0.1:{}", self.http).parse().unwrap());
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let text = Client::try_from(config)
            .unwrap()
            .request_text(request)
            .await
            .unwrap();
        let counts = text
            .lines()
            .filter_map(|line| line.strip_prefix("vm_operator_reconciles_total{"));
        counts
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    }

    /// Processor time that it has used.
    pub fn cpu(&self) -> Duration {
        processor::of_process(self.process.id())
    }

    /// Stops it as a rollout does.
    pub async fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let ended = tokio::task::spawn_blocking(move || self.process.wait()).await;
        assert!(
            ended.unwrap().unwrap().success(),
            "the operator did not end well"
        );
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

async fn wait_until_ready(http: u16) {
    let mut config = kube::Config::new(format!("http://127.0.0.1:{http}").parse().unwrap());
    // The client's retries would delay the detection of readiness.
    config.default_retry = false;
    let client = Client::try_from(config).unwrap();
    let began = Instant::now();
    while client
        .request_text(http::Request::get("/readyz").body(Vec::new()).unwrap())
        .await
        .is_err()
    {
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "the operator is not ready after two minutes"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
