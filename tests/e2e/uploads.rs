//! A disk with an image that a user uploads: `kubectl port-forward` and curl, with a connection that breaks. Meanwhile, the operator is
//! killed and the kubelet restarted.

use super::harness::environment::SLOTS;
use super::harness::vm::{BOOT, tiny};
use super::harness::{Space, console, e2e, environment, eventually, kubectl, process};
use serde_json::{Value, json};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

/// A tunnel to the import pod, its output, which it needs for each connection, and its local address. A kubelet that has just started does
/// not know the pod yet.
async fn forward(space: &Space) -> (Child, BufReader<ChildStdout>, String) {
    eventually("a tunnel to the pod", 60, async || tunnel(space).await).await
}

async fn tunnel(space: &Space) -> Result<(Child, BufReader<ChildStdout>, String), String> {
    let mut command = kubectl::command(&["-n", &space.name, "port-forward", "pod/vm", ":8080"]);
    let mut tunnel = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(tunnel.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).await.unwrap();
    let mut words = line.split_whitespace();
    let address = words.find(|word| word.starts_with("127.0.0.1:"));
    let address = address.ok_or(format!("no address in {line:?}"))?.to_owned();
    Ok((tunnel, output, address))
}

/// Runs curl for the address. Returns its output.
async fn curl(address: &str, arguments: &[&str]) -> String {
    let url = format!("http://{address}/");
    let mut curl = Command::new("curl");
    let curl = curl.args(["-sS", "--noproxy", "*", "--max-time", "60"]);
    let output = curl.args(arguments).arg(url).output().await.unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The message of the condition `Ready`.
async fn message(space: &Space) -> String {
    let vm = space
        .kubectl(&["get", "vm", "vm", "--output", "json"])
        .await;
    let vm: Value = serde_json::from_str(&vm).unwrap();
    let conditions = vm["status"]["conditions"].as_array().cloned();
    let mut conditions = conditions.into_iter().flatten();
    let ready = conditions.find(|it| it["type"] == "Ready");
    ready.map_or(String::new(), |it| it["message"].to_string())
}

/// Waits until the guest reports that it boots for that time. It counts on its disk.
async fn boots(space: &Space, times: u32) {
    let counted = format!("TINY boot={times} ");
    eventually("the guest counts its boot", BOOT, async || {
        let log = console::log(space, "vm").await?;
        match log.contains(&counted) && log.contains(" ready") {
            true => Ok(()),
            false => Err(log),
        }
    })
    .await;
}

/// Writes for a VM with an import until its guest has booted, without events.
const WRITES_MAX: usize = 50;

#[test]
fn an_uploaded_image_boots_although_connection_operator_and_kubelet_ended() {
    // Without other VMs, which need the kubelet.
    e2e(SLOTS, async |space| {
        let mut vm = tiny(space, "vm", &json!({}));
        vm["spec"]["vm"]["disks"] = json!([{
            "volumeClaimTemplate": {
                "metadata": {"name": "system"},
                "spec": {"volumeMode": "Filesystem", "resources": {"requests": {"storage": "64Mi"}}},
            },
            "source": {"upload": {}},
        }]);
        kubectl::create(&vm).await.unwrap();
        eventually("the commands in the status", 60, async || {
            let message = message(space).await;
            let commands = format!(
                "kubectl port-forward --namespace {} pod/vm 8080",
                space.name
            );
            if message.contains(&commands) {
                Ok(())
            } else {
                Err(message)
            }
        })
        .await;

        let image = environment::guest_image().display().to_string();
        let (mut tunnel, _output, address) = forward(space).await;
        // The end of curl breaks the connection.
        let slow = ["--limit-rate", "8M", "--max-time", "2", "-T", &image];
        curl(&address, &slow).await;
        tunnel.kill().await.unwrap();
        let importer = space.pods.uids("vm");
        let operator = space.operator().await["metadata"]["uid"].clone();
        process::kill(operator.as_str().unwrap(), "vm-operator");
        let restart = || environment::cluster(&["restart-kubelet"]);
        tokio::task::spawn_blocking(restart).await.unwrap();
        let (mut tunnel, _output, address) = forward(space).await;
        let length = ["-I", "-o", "/dev/null", "-w", "%header{content-length}"];
        // Bytes of the broken connection can come late.
        eventually("the rest is stored", 60, async || {
            let stored = curl(&address, &length).await;
            let is_some = stored.parse::<u64>().is_ok_and(|it| it > 1 << 20);
            assert!(is_some, "{stored}");
            let answer = curl(&address, &["-C", &stored, "-T", &image]).await;
            match answer.contains("48.0 MiB are stored") {
                true => Ok(()),
                false => Err(answer),
            }
        })
        .await;
        tunnel.kill().await.unwrap();
        let booted = ["wait", "vm/vm", "--for=condition=Booted"];
        let timeout = format!("--timeout={BOOT}s");
        space.kubectl(&[&booted[..], &[&timeout]].concat()).await;
        boots(space, 1).await;
        let pods = space.pods.uids("vm");
        assert_eq!(pods.len(), 2, "one import pod, one pod of the VM");
        assert!(pods.starts_with(&importer), "{importer:?}, {pods:?}");
        let accounts = ["vm-operator", "vm-reporter"];
        let writes = accounts.map(|it| space.audit.writes_by(&space.name, it).len());
        let writes: usize = writes.iter().sum();
        assert!((10..=WRITES_MAX).contains(&writes), "{writes} writes");

        // The guest's own writes stay.
        let request = r#"--patch={"spec": {"vm": {"restartRequest": 1}}}"#;
        space
            .kubectl(&["patch", "vm/vm", "--type=merge", request])
            .await;
        boots(space, 2).await;
        assert_eq!(space.pods.uids("vm").len(), 3, "no second import");
    });
}
