//! Commands of a user.

use super::environment;
use serde_json::Value;
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Environment variables that would select another cluster or proxy.
const PROXIES: [&str; 6] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
];

/// A kubectl for the local cluster, independent of `KUBECONFIG`, because these tests drain a node.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(environment::dir().join("bin/vmop-kube"));
    command
        .arg("kubectl")
        .args(args)
        .envs(environment::kubectl_environment())
        .kill_on_drop(true);
    without_proxies(&mut command);
    command
}

/// Removes the variables of proxies from the environment. The cluster is on this machine.
pub fn without_proxies(command: &mut Command) {
    for proxy in PROXIES {
        command.env_remove(proxy);
    }
}

/// Runs kubectl and returns its output.
///
/// # Errors
/// The error output of kubectl.
pub async fn try_run(args: &[&str]) -> Result<String, String> {
    let output = command(args)
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|e| format!("kubectl: {e}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!(
            "kubectl {}: {}{}",
            args.join(" "),
            text(&output.stdout),
            text(&output.stderr)
        ))
    }
}

/// Runs kubectl, which must succeed.
pub async fn run(args: &[&str]) -> String {
    try_run(args)
        .await
        .unwrap_or_else(|complaint| panic!("{complaint}"))
}

/// Creates an object.
///
/// # Errors
/// The API server's rejection.
pub async fn create(object: &Value) -> Result<String, String> {
    let mut kubectl = command(&["create", "--filename", "-"]);
    kubectl
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let failed = |e: std::io::Error| format!("kubectl create: {e}");
    let mut child = kubectl.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(object.to_string().as_bytes())
            .await
            .map_err(failed)?;
    }
    let output = child.wait_with_output().await.map_err(failed)?;
    let text = String::from_utf8_lossy(if output.status.success() {
        &output.stdout
    } else {
        &output.stderr
    });
    if output.status.success() {
        Ok(text.into_owned())
    } else {
        Err(text.into_owned())
    }
}

/// Runs a command at the root of the project, as a user types it. It must succeed. Returns its output.
pub async fn typed(line: &str) -> String {
    let tool = environment::dir()
        .join("bin/vmop-kube")
        .display()
        .to_string();
    let mut shell = Command::new("bash");
    shell
        .args([
            "-c",
            &format!("kubectl() {{ {tool} kubectl \"$@\"; }}\n{line}"),
        ])
        .current_dir(environment::repo());
    shell
        .envs(environment::kubectl_environment())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    without_proxies(&mut shell);
    let output = shell.output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{line}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}
