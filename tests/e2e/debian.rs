//! The Debian examples: a Job or an import writes a cloud image onto the disk, and the guest accepts a login by SSH. Their lines are
//! unchanged except those with a placeholder, and the host of the URL.

use super::harness::vm::BOOT;
use super::harness::{Space, e2e, environment, eventually, kubectl};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::example::filled_in;
use tempfile::TempDir;

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

/// The example with these values in place of its placeholders.
fn example(file: &str, values: &[(&str, &str)]) -> String {
    let text = fs::read_to_string(environment::repo().join("examples").join(file)).unwrap();
    filled_in(file, &text, values)
}

/// Serves that disk under the path of Debian's cloud image. Returns the server and its URL.
async fn serve(dir: &Path, disk: &Path, url: &str) -> (tokio::process::Child, String) {
    let path = dir.join(url.strip_prefix(HOST).unwrap().trim_start_matches('/'));
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
        .arg(dir)
        .arg(&port)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    (server, format!("http://{NODE}:{port}"))
}

async fn apply(space: &Space, dir: &Path, text: &str) {
    let file = dir.join("object.yaml");
    fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    space.kubectl(&["apply", "--filename", &file]).await;
}

/// Fills the VM's disk by the Job of the example, with that disk in place of Debian's image.
pub async fn fill_disk(space: &Space, dir: &Path, disk: &Path) {
    let image = format!("localhost/vm-runner:{}", env!("CARGO_PKG_VERSION"));
    let job = fs::read_to_string(environment::repo().join("examples/debian/disk.yaml")).unwrap();
    let url = job.split_whitespace().find(|word| word.starts_with(HOST));
    let (_server, host) = serve(dir, disk, url.unwrap()).await;
    let replacements = [("<RUNNER-IMAGE>", image.as_str()), (HOST, host.as_str())];
    apply(space, dir, &example("debian/disk.yaml", &replacements)).await;
    let complete = ["wait", "job/debian-disk", "--for=condition=Complete"];
    space
        .kubectl(&[&complete[..], &["--timeout=300s"]].concat())
        .await;
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

/// Waits until the VM runs and accepts a login, and its file system has the size of the PVC.
async fn log_in(space: &Space, vm: &str, key: &Path) {
    let running = ["wait", &format!("vm/{vm}"), "--for=condition=Running"];
    space
        .kubectl(&[&running[..], &["--timeout=300s"]].concat())
        .await;
    let port = free_port();
    let ports = format!("{port}:2222");
    let pod = format!("pod/{vm}");
    let forward = ["port-forward", "-n", &space.name, &pod, &ports];
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

#[test]
fn one_manifest_imports_an_image_and_ends_with_a_login_by_ssh() {
    e2e(1, async |space| {
        let dir = TempDir::new().unwrap();
        let key = dir.path().join("key");
        let public = ssh_key(&key);
        let disk = environment::repo().join(".cache/guests/debian.img");
        let text = fs::read_to_string(environment::repo().join("examples/debian-image.yaml"));
        let text = text.unwrap();
        let url = text.split_whitespace().find(|word| word.starts_with(HOST));
        let (server, host) = serve(dir.path(), &disk, url.unwrap()).await;
        let values = [("<SSH-PUBLIC-KEY>", public.trim()), (HOST, host.as_str())];
        apply(space, dir.path(), &example("debian-image.yaml", &values)).await;
        log_in(space, "debian-image", &key).await;

        // The disk is filled once: the next start needs no server.
        drop(server);
        let restart = r#"{"spec": {"vm": {"restartRequest": 1}}}"#;
        space
            .kubectl(&[
                "patch",
                "vm/debian-image",
                "--type=merge",
                "--patch",
                restart,
            ])
            .await;
        let done = [
            "wait",
            "vm/debian-image",
            "--for=jsonpath={.status.observedRestartRequest}=1",
        ];
        space.kubectl(&done).await;
        let running = [
            "wait",
            "vm/debian-image",
            "--for=condition=Running",
            "--timeout=300s",
        ];
        space.kubectl(&running).await;
    });
}

#[test]
fn debian_example_ends_with_a_login_by_ssh() {
    e2e(1, async |space| {
        let dir = TempDir::new().unwrap();
        let key = dir.path().join("key");
        let public = ssh_key(&key);
        let disk = environment::repo().join(".cache/guests/debian.img");
        fill_disk(space, dir.path(), &disk).await;

        let vm = example("debian/vm.yaml", &[("<SSH-PUBLIC-KEY>", public.trim())]);
        apply(space, dir.path(), &vm).await;
        log_in(space, "debian", &key).await;
    });
}
