//! Two operators as processes of their own: which of them leads, and what becomes of that when the leader ends, is
//! killed, is stopped for a while, or is cut off.

use crate::objects::{explained_as_unschedulable, homeless};
use crate::world::{World, eventually, kubeconfig, machine};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use kube::config::Kubeconfig;
use serde_json::json;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use vm_operator::api::{VirtualMachine, conditions};

/// An operator in a process of its own.
struct Process {
    child: Child,
    /// Where it serves its figures.
    port: u16,
    log: PathBuf,
    _dir: TempDir,
}

impl Process {
    /// Starts one that reaches the API server as that file says.
    async fn start(world: &World, kubeconfig: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = json!({"/Manager": {"/Controller": {"namespace": world.namespace}}});
        std::fs::write(dir.path().join("config.yaml"), config.to_string()).unwrap();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap().port();
        let log = dir.path().join("log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_vm-operator"));
        command.args(["run", "--http", &format!("127.0.0.1:{port}"), "--config"]).arg(dir.path().join("config.yaml"));
        for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
            command.env_remove(proxy);
        }
        command.env("KUBECONFIG", kubeconfig).stdin(Stdio::null());
        command.stderr(std::fs::File::create(&log).unwrap()).kill_on_drop(true);
        let child = command.spawn().unwrap();
        let process = Self { child, port, log, _dir: dir };
        eventually("the operator is ready", || async { process.get("/readyz").await.contains("200 OK") }).await;
        process
    }

    async fn get(&self, path: &str) -> String {
        let ask = async {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.ok()?;
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.ok()?;
            Some(answer)
        };
        // One that is stopped does not answer.
        tokio::time::timeout(Duration::from_millis(300), ask).await.ok().flatten().unwrap_or_default()
    }

    async fn leads(&self) -> bool {
        self.get("/metrics").await.contains("vm_operator_leader 1")
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().unwrap().to_string();
        let sent = std::process::Command::new("kill").args([signal, &pid]).status();
        assert!(sent.unwrap().success(), "{signal}");
    }

    /// Its exit code, once it has ended; and what it has logged.
    async fn ended(&mut self) -> (Option<i32>, String) {
        let status = tokio::time::timeout(Duration::from_secs(20), self.child.wait()).await.expect("it ends").unwrap();
        (status.code(), std::fs::read_to_string(&self.log).unwrap())
    }
}

/// A way to the API server that can be cut: then nothing passes, and nobody is told.
struct Line {
    cut: watch::Sender<bool>,
    kubeconfig: PathBuf,
    _dir: TempDir,
}

impl Line {
    async fn new() -> Self {
        let mut config = Kubeconfig::read_from(kubeconfig()).unwrap();
        let cluster = config.clusters[0].cluster.as_mut().unwrap();
        let server: http::Uri = cluster.server.clone().unwrap().parse().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        cluster.tls_server_name = server.host().map(str::to_owned);
        cluster.server = Some(format!("https://{}", listener.local_addr().unwrap()));
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        std::fs::write(&kubeconfig, serde_json::to_string(&config).unwrap()).unwrap();
        let (cut, is_cut) = watch::channel(false);
        let server = (server.host().unwrap().to_owned(), server.port_u16().unwrap_or(443));
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (server, mut is_cut) = (server.clone(), is_cut.clone());
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(server).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => return,
                        _ = is_cut.wait_for(|cut| *cut) => {}
                    }
                    std::future::pending::<()>().await;
                });
            }
        });
        Self { cut, kubeconfig, _dir: dir }
    }
}

/// Two operators, of which the first leads and has settled a VM. The second knows of it.
async fn two(world: &World, first: &Path) -> (Process, Process) {
    let first = Process::start(world, first).await;
    eventually("the first leads", || first.leads()).await;
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    vms.create(&PostParams::default(), &homeless("Running")).await.unwrap();
    explained_as_unschedulable(&vms).await;
    let second = Process::start(world, &kubeconfig()).await;
    assert!(first.leads().await && !second.leads().await);
    (first, second)
}

/// Waits until the second leads; at no time do both. Gives how long it took.
async fn handed_over(first: &Process, second: &Process) -> Duration {
    let began = Instant::now();
    // Whoever led a moment ago is asked last: were it still leading, both would be.
    while !second.leads().await {
        assert!(began.elapsed() < Duration::from_secs(30), "nobody leads");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = began.elapsed();
    assert!(!first.leads().await, "two lead");
    took
}

/// Whatever there is, with its version: who writes to any of it is seen.
async fn versions(world: &World) -> Vec<(String, Option<String>)> {
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    let vms = vms.list(&ListParams::default()).await.unwrap().items;
    let pods = pods.list(&ListParams::default()).await.unwrap().items;
    let vms = vms.iter().map(|vm| (format!("vm {}", vm.name_any()), vm.resource_version()));
    vms.chain(pods.iter().map(|pod| (format!("pod {}", pod.name_any()), pod.resource_version()))).collect()
}

/// The operators work: a VM that is new gets its status.
async fn serves(world: &World, name: &str) {
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    vms.create(&PostParams::default(), &machine(name, json!({"vm": {}}))).await.unwrap();
    eventually("the new VM is seen to", || async {
        let status = vms.get(name).await.unwrap().status.unwrap();
        conditions::find(&status.conditions, conditions::READY).is_some()
    })
    .await;
}

async fn lease(world: &World) -> Lease {
    Api::namespaced(world.client.clone(), &world.namespace).get("vm-operator").await.unwrap()
}

#[tokio::test]
async fn a_leader_that_is_asked_to_end_hands_over_within_five_seconds() {
    let world = World::new("leader-ends").await;
    let (mut first, second) = two(&world, &kubeconfig()).await;
    let before = versions(&world).await;
    first.signal("-TERM");
    let took = handed_over(&first, &second).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    let (code, log) = first.ended().await;
    assert_eq!(code, Some(0), "{log}");
    serves(&world, "second").await;
    let after = versions(&world).await;
    assert!(before.iter().all(|object| after.contains(object)), "settled objects are left alone: {before:?} {after:?}");
    assert_eq!(lease(&world).await.spec.unwrap().lease_transitions, Some(1));
}

#[tokio::test]
async fn a_leader_that_is_killed_is_replaced_within_twenty_seconds() {
    let world = World::new("leader-killed").await;
    let (first, second) = two(&world, &kubeconfig()).await;
    first.signal("-KILL");
    let took = handed_over(&first, &second).await;
    assert!(took < Duration::from_secs(20), "{took:?}");
    serves(&world, "second").await;
}

#[tokio::test]
async fn a_leader_that_is_cut_off_ends_before_another_leads() {
    let world = World::new("leader-cut").await;
    let line = Line::new().await;
    let (mut first, second) = two(&world, &line.kubeconfig).await;
    line.cut.send_replace(true);
    let (code, log) = first.ended().await;
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("could not be renewed within 10s"), "{log}");
    assert!(!second.leads().await, "it ended in time");
    handed_over(&first, &second).await;
    serves(&world, "second").await;
}

#[tokio::test]
async fn a_leader_that_was_stopped_for_a_while_writes_nothing_when_it_goes_on() {
    let world = World::new("leader-stopped").await;
    let (mut first, second) = two(&world, &kubeconfig()).await;
    first.signal("-STOP");
    handed_over(&first, &second).await;
    serves(&world, "second").await;
    let before = versions(&world).await;
    first.signal("-CONT");
    let (code, log) = first.ended().await;
    assert_eq!(code, Some(1), "{log}");
    assert_eq!(versions(&world).await, before);
    assert!(second.leads().await);
}
