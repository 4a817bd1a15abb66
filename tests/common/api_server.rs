//! A Kubernetes API server with an etcd of its own, on loopback, thrown away at the end. Nothing else of Kubernetes runs.

use http::Request;
use kube::config::Kubeconfig;
use kube::{Client, Config};
use serde_json::{Value, json};
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const TOKEN: &str = "test";

/// Runs until it is dropped.
pub struct Server {
    port: u16,
    directory: tempfile::TempDir,
    processes: Vec<Child>,
}

/// The binary with all of Kubernetes. That of the running cluster would not do: what runs it ends with the cluster.
fn binary() -> PathBuf {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/kube");
    let built = std::fs::read_dir(cache).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    built
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmop-kube-")))
        .max_by_key(|path| path.metadata().and_then(|metadata| metadata.modified()).ok())
        .expect("no Kubernetes; build it: tests/cluster/cluster build")
}

/// A port of loopback that is free now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Server {
    /// Starts both. The thread that calls this has to live as long as the server: they end with it.
    pub fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let [etcd, peer, port] = [free_port(), free_port(), free_port()];
        let mut server = Self { port, directory, processes: Vec::new() };
        let path = |name: &str| server.directory.path().join(name).display().to_string();
        let (tokens, key) = (path("tokens.csv"), path("service-account.key"));
        std::fs::write(&tokens, format!("{TOKEN},admin,admin,system:masters\n")).unwrap();
        let made = Command::new("openssl").args(["genrsa", "-out", &key, "2048"]).stderr(Stdio::null()).status();
        assert!(made.expect("openssl is missing").success());
        let (etcd_url, peer_url) = (format!("http://127.0.0.1:{etcd}"), format!("http://127.0.0.1:{peer}"));
        let etcd_arguments = [
            format!("--data-dir={}", path("etcd")),
            "--unsafe-no-fsync".to_owned(),
            format!("--listen-client-urls={etcd_url}"),
            format!("--advertise-client-urls={etcd_url}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster=default={peer_url}"),
            "--log-level=error".to_owned(),
            // Ten thousand VMs and the versions that they had fit.
            "--quota-backend-bytes=8589934592".to_owned(),
        ];
        let api_arguments = [
            format!("--etcd-servers={etcd_url}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            format!("--cert-dir={}", path("certificates")),
            format!("--token-auth-file={tokens}"),
            "--authorization-mode=RBAC".to_owned(),
            "--service-account-issuer=https://localhost".to_owned(),
            format!("--service-account-key-file={key}"),
            format!("--service-account-signing-key-file={key}"),
            // Nobody makes service accounts here, and the namespaces are many.
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--enable-priority-and-fairness=false".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/16".to_owned(),
        ];
        server.spawn("etcd", &etcd_arguments);
        server.spawn("kube-apiserver", &api_arguments);
        server
    }

    fn spawn(&mut self, component: &str, arguments: &[String]) {
        let log = File::create(self.directory.path().join(format!("{component}.log"))).unwrap();
        let mut command = Command::new("setpriv");
        // Whatever ends the test ends them too.
        command.args(["--pdeathsig", "KILL"]).arg(binary()).arg(component).args(arguments);
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn();
        self.processes.push(child.expect("setpriv is missing"));
    }

    /// The administrator's way to it.
    pub fn kubeconfig(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.port), "insecure-skip-tls-verify": true,
            }}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        })
    }

    /// A client, as soon as the server answers.
    pub async fn client(&self) -> Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let kubeconfig: Kubeconfig = serde_json::from_value(self.kubeconfig()).unwrap();
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
        config.proxy_url = None;
        let client = Client::try_from(config).unwrap();
        for _ in 0..600 {
            let ready = Request::get("/readyz").body(Vec::new()).unwrap();
            if client.request_text(ready).await.is_ok_and(|text| text == "ok") {
                return client;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let log = std::fs::read_to_string(self.directory.path().join("kube-apiserver.log")).unwrap_or_default();
        panic!("the API server does not come: {}", log.lines().rev().take(5).collect::<Vec<_>>().join("\n"));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for (log, process) in ["etcd.log", "kube-apiserver.log"].iter().zip(&mut self.processes) {
            if let Ok(Some(status)) = process.try_wait() {
                let text = std::fs::read_to_string(self.directory.path().join(log)).unwrap_or_default();
                let last: Vec<_> = text.lines().rev().take(10).collect();
                eprintln!("it has ended by itself, {status}; the end of {log}, last line first:\n{}", last.join("\n"));
            }
        }
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
