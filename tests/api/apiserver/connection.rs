//! A connection to the API server breaks without a packet that says so: a route is gone, a load balancer forgets the connection.
//! Client and server are in a network namespace of their own, in which nftables drops every packet from some moment on.

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, WatchEvent, WatchParams};
use kube::{Client, Config};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::json;
use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use vm_operator::k8s::client::connect;

/// Time within which a broken connection has to be noticed.
const LIMIT: Duration = Duration::from_secs(30);

/// A network namespace, which exists while this process runs.
struct Namespace(Child);

impl Namespace {
    fn new() -> Self {
        let keeper = Command::new("unshare")
            .args(["--net", "sleep", "600"])
            .spawn();
        Self(keeper.expect("unshare is missing"))
    }

    /// Moves the calling thread, and the processes that it starts from now on, into the namespace.
    fn enter(&self) {
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let path = format!("/proc/{}/ns/net", self.0.id());
        let begin = Instant::now();
        while std::fs::read_link(&path).unwrap() == own {
            assert!(begin.elapsed() < LIMIT, "unshare has made no namespace");
            thread::sleep(Duration::from_millis(5));
        }
        let file = File::open(path).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status();
    assert!(status.expect(command).success(), "{command}");
}

/// Answers the first request with the beginning of a watch, and then keeps the connection.
async fn serve(listener: TcpListener) {
    let (mut connection, _) = listener.accept().await.unwrap();
    let _ = connection.read(&mut [0; 4096]).await.unwrap();
    let object = json!({"metadata": {"name": "a", "resourceVersion": "1"}});
    let event = format!("{}\n", json!({"type": "ADDED", "object": object}));
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked";
    let answer = format!("{head}\r\n\r\n{:x}\r\n{event}\r\n", event.len());
    connection.write_all(answer.as_bytes()).await.unwrap();
    std::future::pending::<()>().await;
}

async fn watch_breaks() {
    run("ip link set lo up");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(serve(listener));
    let mut config = Config::new(address.parse().unwrap());
    // Only the connection itself may notice it here.
    config.read_timeout = None;
    let client: Client = connect::builder(config).unwrap().build();
    let api = Api::<ConfigMap>::default_namespaced(client);
    let events = api.watch(&WatchParams::default(), "0").await.unwrap();
    let mut events = std::pin::pin!(events);
    let first = events.next().await;
    assert!(matches!(first, Some(Ok(WatchEvent::Added(_)))), "{first:?}");

    run("nft add table ip test");
    run("nft add chain ip test input { type filter hook input priority 0 ; policy drop ; }");
    let begin = Instant::now();
    let next = tokio::time::timeout(5 * LIMIT, events.next()).await;
    let next = next.expect("the watch waits on a connection that is broken");
    println!(
        "noticed after {:.1} s: {next:?}",
        begin.elapsed().as_secs_f64()
    );
    assert!(matches!(next, Some(Err(_))), "{next:?}");
}

#[test]
fn a_connection_that_breaks_silently_is_noticed() {
    let thread = thread::spawn(|| {
        let namespace = Namespace::new();
        namespace.enter();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(watch_breaks());
    });
    thread.join().unwrap();
}
