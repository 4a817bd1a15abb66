//! A Kubernetes API server with its own etcd on the loopback interface, without a node. On request it also starts the
//! controllers and the scheduler.

use http::Request;
use kube::config::Kubeconfig;
use kube::{Client, Config};
use serde_json::{Value, json};
use std::fs::{File, Permissions};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;

const TOKEN: &str = "test";
/// The namespace of the test that compares the requests of an account with its Role.
pub const AUDITED: &str = "test-web-granted";
/// The server is ready after 5 s on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(180);

/// The binary with all Kubernetes components. The copy that the local cluster uses is removed with that cluster.
///
/// Cargo runs tests in the root of the checkout. The path at compile time can be that of another checkout, because checkouts
/// share a build directory.
fn binary() -> PathBuf {
    let cache = std::env::current_dir().unwrap().join(".cache/kube");
    let built = std::fs::read_dir(cache)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()));
    built
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmop-kube-")))
        .max_by_key(|path| path.metadata().and_then(|metadata| metadata.modified()).ok())
        .expect("no Kubernetes in .cache/kube of the current directory; build it: tests/cluster/cluster build")
}

/// The binary with the component. With `KUBERNETES_VERSION`, the control plane is of that version.
fn binary_with(component: &str) -> PathBuf {
    match std::env::var("KUBERNETES_VERSION") {
        Ok(version) if !version.is_empty() && component.starts_with("kube-") => {
            let program = format!(".cache/kube/control-plane-{version}");
            let program = std::env::current_dir().unwrap().join(program);
            let hint = "build it: tests/cluster/cluster build";
            assert!(program.exists(), "{} is missing; {hint}", program.display());
            program
        }
        _ => binary(),
    }
}

/// A reserved port of the loopback interface. It is bound with `SO_REUSEPORT` and does not listen. A program that sets
/// the same option can listen on it and gets all connections.
struct ReservedPort {
    port: u16,
    _socket: TcpSocket,
}

impl ReservedPort {
    fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseport(true).unwrap();
        socket
            .bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            .unwrap();
        Self {
            port: socket.local_addr().unwrap().port(),
            _socket: socket,
        }
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://127.0.0.1:{}", self.port)
    }
}

/// A shell that kills the processes and removes the directory when its standard input is closed. That happens when the
/// test's process exits in any way.
struct Reaper(Child);

/// It reads process IDs, one per line. The second attempt removes a directory in which a killed process was still
/// writing.
const REAP: &str = r#"
    while read -r pid; do set -- "$@" "$pid"; done
    directory=$1; shift
    kill -KILL "$@" 2>/dev/null
    n=0; until rm -rf "$directory" 2>/dev/null || [ $n -ge 50 ]; do n=$((n + 1)); sleep 0.1; done"#;

impl Reaper {
    fn new(directory: &Path) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", REAP, "reaper"]).arg(directory);
        // A signal to the test's process group must not end it.
        let command = command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(command.spawn().expect("sh is missing"))
    }

    fn add(&mut self, process: &Child) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{}", process.id()).unwrap();
    }
}

struct Process {
    component: &'static str,
    child: Child,
}

struct Processes {
    running: Vec<Process>,
    reaper: Reaper,
}

/// A running API server. It stops when it is dropped or the test's process exits.
pub struct Server {
    directory: PathBuf,
    port: ReservedPort,
    _etcd_ports: [ReservedPort; 2],
    processes: Mutex<Processes>,
}

impl Server {
    /// Starts etcd and the API server, for a test that simulates all other components.
    #[must_use]
    pub fn start() -> Self {
        // No controller creates the default service accounts.
        Self::launch(&["--disable-admission-plugins=ServiceAccount"])
    }

    /// Starts etcd and the API server as in the local cluster, with an audit log of all writes, and of the reads in the namespace [`AUDITED`].
    /// [`Server::start_controllers`] starts the controllers.
    #[must_use]
    pub fn start_for_controllers() -> Self {
        Self::launch(&[
            "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
            "--allow-privileged=true",
            "--audit-policy-file=audit.yaml",
            "--audit-log-path=audit.log",
        ])
    }

    fn launch(arguments: &[&str]) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("vmop-api-server-")
            .tempdir()
            .unwrap()
            .keep();
        let reaper = Reaper::new(&directory);
        let [etcd, peer, port] = [(); 3].map(|()| ReservedPort::new());
        let (etcd_url, peer_url) = (etcd.url("http"), peer.url("http"));
        let processes = Mutex::new(Processes {
            running: Vec::new(),
            reaper,
        });
        let server = Self {
            directory,
            port,
            _etcd_ports: [etcd, peer],
            processes,
        };
        server.write(
            "tokens.csv",
            &format!("{TOKEN},admin,admin,system:masters\n"),
        );
        server.write("kubeconfig", &server.kubeconfig().to_string());
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
                {"level": "Metadata", "namespaces": [AUDITED]},
            ],
        });
        server.write("audit.yaml", &policy.to_string());
        server.write(
            "kubectl",
            &format!("#!/bin/sh\nexec '{}' kubectl \"$@\"\n", binary().display()),
        );
        std::fs::set_permissions(server.path("kubectl"), Permissions::from_mode(0o755)).unwrap();
        let mut openssl = Command::new("openssl");
        openssl
            .args(["genrsa", "-out", "service-account.key", "2048"])
            .current_dir(&server.directory);
        assert!(
            openssl
                .stderr(Stdio::null())
                .status()
                .expect("openssl is missing")
                .success()
        );
        let etcd_arguments = [
            "--data-dir=etcd",
            "--unsafe-no-fsync",
            "--socket-reuse-port",
            &format!("--listen-client-urls={etcd_url}"),
            &format!("--advertise-client-urls={etcd_url}"),
            &format!("--listen-peer-urls={peer_url}"),
            &format!("--initial-advertise-peer-urls={peer_url}"),
            &format!("--initial-cluster=default={peer_url}"),
            "--log-level=error",
            // Room for ten thousand VMs and their previous versions.
            "--quota-backend-bytes=8589934592",
        ];
        server.spawn("etcd", &etcd_arguments);
        let (etcd_servers, secure_port) = (
            format!("--etcd-servers={etcd_url}"),
            format!("--secure-port={}", server.port.port),
        );
        let mut api_arguments = vec![
            &*etcd_servers,
            "--bind-address=127.0.0.1",
            &*secure_port,
            "--permit-port-sharing",
            "--cert-dir=certificates",
            "--token-auth-file=tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://localhost",
            "--service-account-key-file=service-account.key",
            "--service-account-signing-key-file=service-account.key",
            "--enable-priority-and-fairness=false",
            "--service-cluster-ip-range=10.0.0.0/16",
        ];
        api_arguments.extend(arguments);
        server.spawn("kube-apiserver", &api_arguments);
        server
    }

    /// Starts the scheduler, the garbage collector, and the controllers of default service accounts and aggregated roles. The
    /// garbage collector discovers new kinds only every 30 s, so install definitions first.
    pub fn start_controllers(&self) {
        let common = [
            "--kubeconfig=kubeconfig",
            "--secure-port=0",
            "--leader-elect=false",
        ];
        self.spawn("kube-scheduler", &common);
        let controllers = [
            "--controllers=garbage-collector-controller,serviceaccount-controller,clusterrole-aggregation-controller",
            "--kube-api-qps=100",
            "--kube-api-burst=200",
        ];
        self.spawn(
            "kube-controller-manager",
            &[&common[..], &controllers].concat(),
        );
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn spawn(&self, component: &'static str, arguments: &[&str]) {
        let log = File::create(self.path(&format!("{component}.log"))).unwrap();
        let mut command = Command::new(binary_with(component));
        command
            .arg(component)
            .args(arguments)
            .current_dir(&self.directory);
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut processes = self.processes.lock().unwrap();
        processes.reaper.add(&child);
        processes.running.push(Process { component, child });
    }

    /// The process of that component.
    ///
    /// # Panics
    /// The component was not started.
    #[must_use]
    pub fn process_id(&self, component: &str) -> u32 {
        let processes = self.processes.lock().unwrap();
        let mut running = processes.running.iter();
        let process = running.find(|process| process.component == component);
        process.expect("the component was not started").child.id()
    }

    /// The path of a file in the server's directory: the administrator's `kubeconfig`, the command `kubectl`,
    /// `audit.log`.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The administrator's configuration.
    #[must_use]
    pub fn kubeconfig(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {
                "server": self.port.url("https"), "insecure-skip-tls-verify": true,
            }}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        })
    }

    /// The administrator's configuration for a client.
    pub async fn config(&self) -> Config {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let kubeconfig: Kubeconfig = serde_json::from_value(self.kubeconfig()).unwrap();
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default())
            .await
            .unwrap();
        config.proxy_url = None;
        config
    }

    /// A client, as soon as the server is ready.
    pub async fn client(&self) -> Client {
        let client = Client::try_from(self.config().await).unwrap();
        let began = Instant::now();
        loop {
            let ready = Request::get("/readyz").body(Vec::new()).unwrap();
            if client
                .request_text(ready)
                .await
                .is_ok_and(|text| text == "ok")
            {
                return client;
            }
            if let Some(ended) = self.ended() {
                panic!("{ended}");
            }
            assert!(
                began.elapsed() < START_TIMEOUT,
                "the API server is not ready: {}",
                self.log("kube-apiserver")
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Describes the first component that has exited unexpectedly.
    fn ended(&self) -> Option<String> {
        let mut processes = self.processes.lock().unwrap();
        processes.running.iter_mut().find_map(|process| {
            let status = process.child.try_wait().unwrap()?;
            Some(format!(
                "{} has exited, {status}: {}",
                process.component,
                self.log(process.component)
            ))
        })
    }

    /// The last lines of a component's log.
    fn log(&self, component: &str) -> String {
        let text =
            std::fs::read_to_string(self.path(&format!("{component}.log"))).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(ended) = self.ended() {
            eprintln!("{ended}");
        }
        let processes = self.processes.get_mut().unwrap();
        drop(processes.reaper.0.stdin.take());
        let _ = processes.reaper.0.wait();
        // Last, because the reaper must not kill another process that has reused a process ID.
        for process in &mut processes.running {
            let _ = process.child.wait();
        }
    }
}
