//! Connections into the guest's network.

use super::harness::{e2e, eventually, kubectl};
use serde_json::json;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// The response of a web server.
///
/// # Errors
/// There is none within five seconds.
pub async fn http_get(address: &str, path: &str) -> Result<String, String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    match tokio::time::timeout(Duration::from_secs(5), exchange).await {
        Ok(answer) => answer.map_err(|e| e.to_string()),
        Err(_) => Err("no answer".to_owned()),
    }
}

async fn guest_answers(way: &str, address: &str) {
    eventually(&format!("the guest answers by {way}"), 60, async || {
        let answer = http_get(address, "/").await?;
        if answer.contains("TINY http") {
            Ok(())
        } else {
            Err(format!("{answer:?}"))
        }
    })
    .await;
}

#[test]
fn a_port_of_the_guest_is_reached_by_a_service_and_by_a_port_forward() {
    e2e(1, async |space| {
        let forward = json!([{"port": 8000, "guestPort": 8080}]);
        let vm = space
            .create(
                "vm",
                json!({"spec": {"vm": {"networks": [{"user": {"forward": forward}}]}}}),
            )
            .await;
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"namespace": space.name, "name": "web"},
            "spec": {
                "selector": {"app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": "vm"},
                "ports": [{"port": 80, "targetPort": 8000}],
            },
        });
        kubectl::create(&service).await.unwrap();
        vm.booted().await;

        let address = space
            .kubectl(&[
                "get",
                "service",
                "web",
                "--output",
                "jsonpath={.spec.clusterIP}",
            ])
            .await;
        guest_answers("the Service's address", &format!("{address}:80")).await;

        let mut command = kubectl::command(&[
            "--namespace",
            &space.name,
            "port-forward",
            "pod/vm",
            ":8000",
        ]);
        let mut forwarding = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(forwarding.stdout.take().unwrap()).lines();
        let line = lines.next_line().await.unwrap().unwrap_or_default();
        let local = line
            .split_whitespace()
            .find(|word| word.starts_with("127.0.0.1:"));
        guest_answers(
            "port-forward",
            local.unwrap_or_else(|| panic!("no address in {line:?}")),
        )
        .await;
        forwarding.kill().await.unwrap();
    });
}
