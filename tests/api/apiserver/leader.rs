//! Two operators as processes: leadership while the leader is terminated, killed, suspended, or disconnected from the
//! API server.
//!
//! The tests prove orders and lower bounds from the Lease's history and the audit log. They have no upper bound that a
//! busy machine could exceed.

use crate::apiserver::objects::{explained_as_unschedulable, unschedulable_vm};
use crate::apiserver::world::{World, eventually, machine, server};
use futures::TryStreamExt;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::jiff::SignedDuration;
use kube::api::{Api, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::real::Server;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use vm_operator::api::VirtualMachine;
use vm_operator::api::conditions::find;
use vm_operator::api::vm::conditions;

pub const FIRST: &str = "first";
const SECOND: &str = "second";

/// The time after which a Lease without renewals can be taken over. The times in the Lease are of a wall clock, which
/// may be adjusted by a few milliseconds in that time.
const LEASE_DURATION: SignedDuration = SignedDuration::from_millis(15_000 - 50);

/// An operator as a process.
pub struct Process {
    child: Child,
    metrics: SocketAddr,
    log: PathBuf,
    dir: TempDir,
}

impl Process {
    /// Starts an operator that connects to that server, and waits until it is ready. Its name is in the Lease and in the audit
    /// log.
    pub async fn start(world: &World, name: &str, server: &SocketAddr) -> Self {
        let dir = tempfile::tempdir().unwrap();
        configure(dir.path(), world, json!({}));
        std::fs::write(
            dir.path().join("kubeconfig"),
            kubeconfig(world, &user(world, name), server).to_string(),
        )
        .unwrap();
        let log = dir.path().join("log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_vm-operator"));
        command.args([
            "run",
            "--http",
            "127.0.0.1:0",
            "--log-format",
            "json",
            "--config",
        ]);
        command.arg(dir.path().join("config.yaml"));
        for proxy in [
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "ALL_PROXY",
            "http_proxy",
            "https_proxy",
            "all_proxy",
        ] {
            command.env_remove(proxy);
        }
        command
            .env("KUBECONFIG", dir.path().join("kubeconfig"))
            .env("POD_UID", name)
            .stdin(Stdio::null());
        command
            .stderr(std::fs::File::create(&log).unwrap())
            .kill_on_drop(true);
        let child = command.spawn().unwrap();
        eventually("the operator serves its metrics", || async {
            address_in(&log).is_some()
        })
        .await;
        let metrics = address_in(&log).unwrap();
        let process = Self {
            child,
            metrics,
            log,
            dir,
        };
        eventually("the operator is ready", || async {
            process.get("/readyz").await.contains("200 OK")
        })
        .await;
        process
    }

    /// Replaces the configuration atomically, as the kubelet does.
    pub fn configure(&self, world: &World, reconciler: Value) {
        configure(self.dir.path(), world, reconciler);
    }

    /// The log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// The response, or an empty text if the process has exited.
    pub async fn get(&self, path: &str) -> String {
        let ask = async {
            let mut stream = TcpStream::connect(self.metrics).await.ok()?;
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.ok()?;
            Some(answer)
        };
        let answer = tokio::time::timeout(Duration::from_secs(60), ask).await;
        answer
            .expect("the operator does not answer")
            .unwrap_or_default()
    }

    pub async fn leads(&self) -> bool {
        let metrics = self.get("/metrics").await;
        metrics.lines().any(|line| line == "vm_operator_leader 1")
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().unwrap().to_string();
        let sent = std::process::Command::new("kill")
            .args([signal, &pid])
            .status();
        assert!(sent.unwrap().success(), "{signal}");
    }

    /// Waits until the log has that text, and the process waits for the Lease again.
    async fn waits_again(&self, text: &str) {
        eventually("the operator has lost its Lease", || async {
            let log = self.log();
            let after = log.find(text).and_then(|at| log.get(at..));
            after.is_some_and(|after| after.contains("another operator is the leader"))
        })
        .await;
        assert!(!self.leads().await, "two lead");
    }

    /// Waits until it exits. Returns the exit code and the log.
    pub async fn exited(&mut self) -> (Option<i32>, String) {
        let status = tokio::time::timeout(Duration::from_secs(120), self.child.wait())
            .await
            .expect("it exits")
            .unwrap();
        (status.code(), self.log())
    }
}

fn configure(dir: &Path, world: &World, reconciler: Value) {
    let config = json!({"/Manager": {"/Controller": {"namespace": world.namespace, "/Reconciler": reconciler}}});
    std::fs::write(dir.join("config.new"), config.to_string()).unwrap();
    std::fs::rename(dir.join("config.new"), dir.join("config.yaml")).unwrap();
}

/// The first address in a program's log. The kernel chooses the port.
pub fn address_in(log: &Path) -> Option<SocketAddr> {
    let text = std::fs::read_to_string(log).unwrap();
    let mut lines = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.find_map(|line| line["address"].as_str()?.parse().ok())
}

/// Each operator has its own user, so that the audit log shows the writer.
fn user(world: &World, name: &str) -> String {
    format!("{}-{name}", world.namespace)
}

fn kubeconfig(world: &World, user: &str, server_address: &SocketAddr) -> Value {
    let mut kubeconfig = world.server.kubeconfig();
    kubeconfig["clusters"][0]["cluster"]["server"] = format!("https://{server_address}").into();
    kubeconfig["users"][0]["user"]["as"] = user.into();
    kubeconfig["users"][0]["user"]["as-groups"] = json!(["system:masters"]);
    kubeconfig
}

pub fn server_address() -> SocketAddr {
    address_of(server())
}

pub fn address_of(server: &Server) -> SocketAddr {
    let url = server.kubeconfig()["clusters"][0]["cluster"]["server"]
        .as_str()
        .unwrap()
        .to_owned();
    url.trim_start_matches("https://").parse().unwrap()
}

/// A connection to the API server that can be broken: then no data passes, and neither side is notified.
struct Line {
    cut: watch::Sender<bool>,
    address: SocketAddr,
}

impl Line {
    async fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (cut, is_cut) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut is_cut = is_cut.clone();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(server_address()).await else {
                        return;
                    };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => return,
                        _ = is_cut.wait_for(|cut| *cut) => {}
                    }
                    std::future::pending::<()>().await;
                });
            }
        });
        Self { cut, address }
    }
}

/// Each state of the Lease, in order.
#[derive(Clone, Default)]
pub struct Leases(Arc<Mutex<Vec<LeaseSpec>>>);

impl Leases {
    pub fn watch(world: &World) -> Self {
        let leases = Self::default();
        let (states, api) = (
            leases.clone(),
            Api::<Lease>::namespaced(world.client.clone(), &world.namespace),
        );
        tokio::spawn(async move {
            let lease = watcher::Config::default().fields("metadata.name=vm-operator");
            let watched = watcher(api, lease).default_backoff().applied_objects();
            let saw = |lease: Lease| {
                states.0.lock().unwrap().push(lease.spec.unwrap());
                futures::future::ok(())
            };
            watched.try_for_each(saw).await.unwrap();
        });
        leases
    }

    fn states(&self) -> Vec<LeaseSpec> {
        self.0.lock().unwrap().clone()
    }

    /// The holders in order, each once: the operators' names, or an empty name for a released Lease.
    pub fn holders(&self) -> Vec<String> {
        let states = self.states();
        let holders = states
            .iter()
            .map(|state| state.holder_identity.clone().unwrap_or_default());
        let mut holders: Vec<_> = holders
            .map(|holder| holder.rsplit('_').next().unwrap().to_owned())
            .collect();
        holders.dedup();
        holders
    }

    /// The time from the first operator's last renewal until the takeover by the second one.
    fn time_without_renewal(&self) -> SignedDuration {
        let states = self.states();
        let is_second = |state: &LeaseSpec| {
            state
                .holder_identity
                .as_ref()
                .is_some_and(|holder| holder.ends_with(SECOND))
        };
        let second = states
            .iter()
            .position(is_second)
            .expect("the second has the Lease");
        let renewed = states[second - 1].renew_time.as_ref().unwrap().0;
        states[second]
            .acquire_time
            .as_ref()
            .unwrap()
            .0
            .duration_since(renewed)
    }
}

/// Two operators. The first one leads and has reconciled a VM; the second one is ready.
async fn two(world: &World, first: &SocketAddr) -> (Process, Process, Leases) {
    let leases = Leases::watch(world);
    let first = Process::start(world, FIRST, first).await;
    eventually("the first leads", || first.leads()).await;
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    vms.create(&PostParams::default(), &unschedulable_vm("Running"))
        .await
        .unwrap();
    explained_as_unschedulable(&vms).await;
    let second = Process::start(world, SECOND, &server_address()).await;
    assert!(!second.leads().await);
    (first, second, leases)
}

/// Waits until the operator leads and the watch has shown that.
async fn leads(second: &Process, leases: &Leases) {
    eventually("the second leads", || second.leads()).await;
    eventually("the Lease is the second's", || async {
        leases
            .holders()
            .last()
            .is_some_and(|holder| holder == SECOND)
    })
    .await;
}

/// Waits until the operators reconcile a new VM.
async fn reconcile_new_vm(world: &World, name: &str) {
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    vms.create(&PostParams::default(), &machine(name, json!({"vm": {}})))
        .await
        .unwrap();
    eventually("the new VM has a status", || async {
        let status = vms.get(name).await.unwrap().status.unwrap();
        find(&status.conditions, conditions::READY).is_some_and(|it| it.status != "Unknown")
    })
    .await;
}

/// A write to the API server, from the audit log. The log has the order of the responses.
struct Write {
    user: String,
    /// Verb, resource and name.
    what: String,
}

/// The operators' writes so far, except for Lease and events.
fn writes(world: &World) -> Vec<Write> {
    let text = std::fs::read_to_string(server().path("audit.log")).unwrap();
    // The last line may be incomplete.
    let entries = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_world = entries.filter(|entry| {
        let object = &entry["objectRef"];
        object["namespace"] == world.namespace.as_str()
            && object["resource"] != "leases"
            && object["resource"] != "events"
    });
    let writes = of_world.filter_map(|entry| {
        let object = &entry["objectRef"];
        let user = entry["impersonatedUser"]["username"].as_str()?.to_owned();
        Some(Write {
            user,
            what: format!(
                "{} {} {}",
                entry["verb"], object["resource"], object["name"]
            ),
        })
    });
    writes.collect()
}

/// Asserts that the operators have written one after the other.
fn assert_separate_writes(world: &World) {
    let writes = writes(world);
    let users: Vec<&str> = writes.iter().map(|write| write.user.as_str()).collect();
    let changes = users.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!(
        (changes, users.first(), users.last()),
        (1, Some(&&*user(world, FIRST)), Some(&&*user(world, SECOND)))
    );
}

#[tokio::test]
async fn terminated_leader_releases_the_lease_and_its_successor_writes_nothing_about_settled_vms() {
    let world = World::new("leader-terminated").await;
    let (mut first, second, leases) = two(&world, &server_address()).await;
    first.signal("-TERM");
    leads(&second, &leases).await;
    let (code, log) = first.exited().await;
    assert_eq!(code, Some(0), "{log}");
    // The empty holder lets the second operator take over immediately.
    assert_eq!(leases.holders(), [FIRST, "", SECOND]);
    assert_eq!(leases.states().last().unwrap().lease_transitions, Some(1));
    reconcile_new_vm(&world, "new").await;
    assert_separate_writes(&world);
    let by_second: Vec<_> = writes(&world)
        .into_iter()
        .filter(|write| write.user == user(&world, SECOND))
        .collect();
    for write in by_second {
        assert!(write.what.contains("\"new"), "{}", write.what);
    }
}

#[tokio::test]
async fn killed_leader_is_replaced_when_its_lease_has_expired() {
    let world = World::new("leader-killed").await;
    let (first, second, leases) = two(&world, &server_address()).await;
    first.signal("-KILL");
    leads(&second, &leases).await;
    assert_eq!(leases.holders(), [FIRST, SECOND]);
    assert!(
        leases.time_without_renewal() >= LEASE_DURATION,
        "{}",
        leases.time_without_renewal()
    );
    reconcile_new_vm(&world, "new").await;
    assert_separate_writes(&world);
}

#[tokio::test]
async fn leader_without_connection_is_replaced_when_its_lease_has_expired_and_waits() {
    let world = World::new("leader-cut").await;
    let line = Line::new().await;
    let (first, second, leases) = two(&world, &line.address).await;
    line.cut.send_replace(true);
    leads(&second, &leases).await;
    assert!(!first.leads().await, "two lead");
    assert_eq!(leases.holders(), [FIRST, SECOND]);
    assert!(
        leases.time_without_renewal() >= LEASE_DURATION,
        "{}",
        leases.time_without_renewal()
    );
    let lost = "cannot renew the Lease within 10s";
    eventually("it reports that", || async { first.log().contains(lost) }).await;
    assert!(first.get("/livez").await.contains("200 OK"));
    reconcile_new_vm(&world, "new").await;
    assert_separate_writes(&world);
    // The same process leads again when it can.
    line.cut.send_replace(false);
    first.waits_again(lost).await;
    second.signal("-KILL");
    eventually("the first leads again", || first.leads()).await;
    reconcile_new_vm(&world, "newer").await;
}

#[tokio::test]
async fn leader_that_was_stopped_past_its_lease_waits_without_a_write() {
    let world = World::new("leader-stopped").await;
    let (first, second, leases) = two(&world, &server_address()).await;
    first.signal("-STOP");
    leads(&second, &leases).await;
    assert!(
        leases.time_without_renewal() >= LEASE_DURATION,
        "{}",
        leases.time_without_renewal()
    );
    reconcile_new_vm(&world, "new").await;
    first.signal("-CONT");
    first.waits_again("starts again as a standby").await;
    // A later write of the second shows that the log is complete.
    reconcile_new_vm(&world, "newer").await;
    assert_separate_writes(&world);
    assert_eq!(leases.holders(), [FIRST, SECOND]);
    assert!(second.leads().await);
}
