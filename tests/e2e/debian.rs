//! The Debian example: an import writes a cloud image onto the disk, and the guest accepts a login by SSH. Its lines are unchanged except
//! the placeholder, the host of the URL, and the volume mode.

use super::harness::vm::BOOT;
use super::harness::{Space, e2e, environment, eventually, kubectl};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::example::filled_in;
use tempfile::TempDir;
use tokio::process::Child;

const EXAMPLE: &str = "debian.yaml";
/// The host of the image in the example.
const HOST: &str = "https://cloud.debian.org";
/// The node's address, under which pods reach it.
const NODE: &str = "10.88.0.1";

/// Runs the program, which must succeed. Returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// A free port of the node.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind((NODE, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// The example with this key, and with the address of a server that has that disk in place of Debian's image. The server runs until it
/// is dropped.
pub fn example(dir: &Path, disk: &Path, key: &str) -> (Child, String) {
    let text = fs::read_to_string(environment::repo().join("examples").join(EXAMPLE)).unwrap();
    let url = text.split_whitespace().find(|word| word.starts_with(HOST));
    let path = url.unwrap().strip_prefix(HOST).unwrap();
    let web = dir.join("web");
    let path = web.join(path.trim_start_matches('/'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let root = environment::repo().join(".cache/images/runner-root/usr");
    // The image's qemu-img, because the machine need not have one.
    run(Command::new(root.join("lib64/ld-linux-x86-64.so.2"))
        .arg("--library-path")
        .arg(root.join("lib/x86_64-linux-gnu"))
        .arg(root.join("bin/qemu-img"))
        .args(["convert", "-f", "raw", "-O", "qcow2"])
        .arg(disk)
        .arg(&path));
    let port = free_port().to_string();
    let server = tokio::process::Command::new("python3")
        .args(["-m", "http.server", "--bind", NODE, "--directory"])
        .arg(&web)
        .arg(&port)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let host = format!("http://{NODE}:{port}");
    let values = [("<SSH-PUBLIC-KEY>", key.trim()), (HOST, &host)];
    (server, filled_in(EXAMPLE, &text, &values))
}

/// Creates a key for SSH in this file. Returns the public key.
pub fn ssh_key(file: &Path) -> String {
    run(Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(file));
    fs::read_to_string(file.with_extension("pub")).unwrap()
}

/// Logs in by the command of the example, and runs this command in the guest.
async fn ssh(key: &Path, port: u16, command: &str) -> Result<String, String> {
    let output = tokio::process::Command::new("timeout")
        .args(["30", "ssh", "-o", "StrictHostKeyChecking=no", "-o"])
        .args(["UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes", "-i"])
        .arg(key)
        .args(["-p", &port.to_string(), "debian@127.0.0.1", command])
        .output()
        .await
        .unwrap();
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Waits until the VM accepts a login, and its file system has the size of the PVC.
async fn log_in(space: &Space, key: &Path) {
    let port = free_port();
    let ports = format!("{port}:2222");
    let forward = ["port-forward", "-n", &space.name, "pod/debian", &ports];
    // A port-forward ends with the first connection that fails, so each attempt has its own.
    let login = async || {
        let _forward = kubectl::command(&forward).stdout(Stdio::null()).spawn();
        tokio::time::sleep(Duration::from_secs(2)).await;
        ssh(key, port, "id -un; sudo id -un; df --output=size -BG /").await
    };
    eventually("a login by SSH", BOOT * 3, async || {
        let seen = login().await?;
        let size = seen.lines().last().unwrap_or_default().trim();
        let size: u32 = size.trim_end_matches('G').parse().unwrap_or(0);
        let is_whole = seen.starts_with("debian\nroot\n") && size >= 8;
        if is_whole { Ok(()) } else { Err(seen) }
    })
    .await;
}

/// Applies the example in that volume mode, logs in, and restarts the VM without the server.
fn ends_with_a_login(volume_mode: &str) {
    e2e(1, async |space| {
        let dir = TempDir::new().unwrap();
        let key = dir.path().join("key");
        let disk = environment::repo().join(".cache/guests/debian.img");
        let (server, text) = example(dir.path(), &disk, &ssh_key(&key));
        let file = dir.path().join(EXAMPLE).display().to_string();
        let mode = format!("volumeMode: {volume_mode}");
        fs::write(&file, text.replace("volumeMode: Filesystem", &mode)).unwrap();
        space.kubectl(&["apply", "--filename", &file]).await;
        let wait = async |condition| {
            let wait = ["wait", "vm/debian", "--timeout=300s", "--for", condition];
            space.kubectl(&wait).await;
        };
        wait("condition=Running").await;
        log_in(space, &key).await;

        // The disk is filled once: the next start needs no server.
        drop(server);
        // The test ends while the guest boots, and such a guest does not react to its power button.
        let request = r#"--patch={"spec": {"vm": {"restartRequest": 1, "powerdownTimeout": 5}}}"#;
        let restart = ["patch", "vm/debian", "--type=merge", request];
        space.kubectl(&restart).await;
        wait("jsonpath={.status.observedRestartRequest}=1").await;
        wait("condition=Running").await;
    });
}

#[test]
fn debian_example_ends_with_a_login_by_ssh() {
    ends_with_a_login("Filesystem");
}

#[test]
fn debian_example_with_a_block_device_ends_with_a_login_by_ssh() {
    ends_with_a_login("Block");
}
