//! The operator's start, from the times in its log, since the start of the process.

use super::Steps;
use k8s_openapi::jiff::Timestamp;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::real::Server;

const NAMESPACE: &str = "startup";
/// The texts in the log line that ends a step.
const STEPS: [(&str, &[&str]); 3] = [
    ("first log line", &["starting"]),
    (
        "first request for the list of VMs",
        &["/namespaces/startup/vms?", "requesting"],
    ),
    ("leadership acquired", &["this operator is the leader now"]),
];
/// The time limit until it leads.
const DEADLINE: Duration = Duration::from_secs(30);

fn program() -> PathBuf {
    let program = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/x86_64-unknown-linux-gnu/release/vm-operator");
    let program = std::env::var_os("BENCH_OPERATOR").map_or(program, PathBuf::from);
    assert!(
        program.exists(),
        "the programs are not built; run `make programs`"
    );
    program
}

/// Measures that number of starts.
pub fn starts(count: usize) -> Steps {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(prepare(&server));
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let kubeconfig = write("kubeconfig", server.kubeconfig().to_string());
    let config = write(
        "config.yaml",
        format!("\"/Manager\": {{\"/Controller\": {{namespace: {NAMESPACE}}}}}\n"),
    );
    let mut steps: Steps = STEPS.iter().map(|(step, _)| (*step, Vec::new())).collect();
    for _ in 0..count {
        let log = directory.path().join("log");
        let file = File::create(&log).unwrap();
        let mut command = Command::new(program());
        command
            .args(["run", "--log-level=debug", "--http=127.0.0.1:0", "--config"])
            .arg(&config);
        command
            .env("KUBECONFIG", &kubeconfig)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        let began = Timestamp::now();
        let mut process = command.spawn().unwrap();
        let ends = ends(&log, began);
        let pid = rustix::process::Pid::from_child(&process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(
            process.wait().unwrap().success(),
            "the operator did not end well"
        );
        steps
            .iter_mut()
            .zip(ends)
            .for_each(|((_, all), end)| all.push(end));
    }
    steps
}

async fn prepare(server: &Server) {
    let client = server.client().await;
    let post = |path: &str, body: Vec<u8>| {
        http::Request::post(path)
            .header("Content-Type", "application/json")
            .body(body)
            .unwrap()
    };
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("crds")).unwrap() {
        let file = file.unwrap().path();
        if file.is_dir() {
            continue;
        }
        let crd: serde_json::Value =
            serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let request = post(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            crd.to_string().into_bytes(),
        );
        client.request::<serde_json::Value>(request).await.unwrap();
    }
    let namespace = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    client
        .request::<serde_json::Value>(post(
            "/api/v1/namespaces",
            namespace.to_string().into_bytes(),
        ))
        .await
        .unwrap();
    let vms = || {
        http::Request::get("/apis/vmoperator.jdrupes.org/v1/vms")
            .body(Vec::new())
            .unwrap()
    };
    while client.request_text(vms()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The ends of all steps, in ms.
fn ends(log: &Path, began: Timestamp) -> Vec<f64> {
    let from = Instant::now();
    loop {
        let text = fs::read_to_string(log).unwrap();
        let at = |line: &str| line.split(' ').next()?.parse::<Timestamp>().ok();
        let end = |texts: &[&str]| {
            text.lines()
                .find(|line| texts.iter().all(|text| line.contains(text)))
                .and_then(at)
        };
        let ends: Option<Vec<Timestamp>> = STEPS.iter().map(|(_, texts)| end(texts)).collect();
        if let Some(ends) = ends {
            return ends
                .iter()
                .map(|end| end.duration_since(began).as_secs_f64() * 1e3)
                .collect();
        }
        assert!(
            from.elapsed() < DEADLINE,
            "the operator does not lead; its log:\n{text}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
