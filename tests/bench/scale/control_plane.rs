//! etcd and an API server of the bench's own, on loopback, without any controller: whatever is done in it, the bench or the
//! operator does. The binary is the local cluster's.

use kube::Config;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Runs until it is dropped.
pub struct ControlPlane {
    /// How the bench gets there.
    pub config: Config,
    processes: Vec<Child>,
    // Removed with what the processes have written.
    _directory: TempDir,
}

/// A port that is free now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn binary() -> PathBuf {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/kube");
    let built = std::fs::read_dir(&cache).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    built
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmop-kube-")))
        .max_by_key(|path| path.metadata().and_then(|metadata| metadata.modified()).ok())
        .expect("the local cluster's binary is not built; run `make cluster` once")
}

impl ControlPlane {
    /// Starts it and waits until it is ready.
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (client, peer, api) = (free_port(), free_port(), free_port());
        let key = directory.path().join("service-account.key");
        let made = Command::new("openssl").args(["genrsa", "-out"]).arg(&key).arg("2048").output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        std::fs::write(directory.path().join("tokens.csv"), "bench,bench,1,system:masters\n").unwrap();

        let etcd = format!("http://127.0.0.1:{client}");
        let peers = format!("http://127.0.0.1:{peer}");
        let log = |name: &str| Stdio::from(std::fs::File::create(directory.path().join(name)).unwrap());
        let mut processes = vec![
            Command::new(binary())
                .args(["etcd", "--name=bench", "--unsafe-no-fsync", "--log-level=error"])
                .args(["--quota-backend-bytes=8589934592", &format!("--initial-cluster=bench={peers}")])
                .args([format!("--listen-client-urls={etcd}"), format!("--advertise-client-urls={etcd}")])
                .args([format!("--listen-peer-urls={peers}"), format!("--initial-advertise-peer-urls={peers}")])
                .arg(format!("--data-dir={}", directory.path().join("etcd").display()))
                .stdout(log("etcd.log"))
                .stderr(log("etcd.errors"))
                .spawn()
                .unwrap(),
        ];
        let file = |name: &str| directory.path().join(name).display().to_string();
        processes.push(
            Command::new(binary())
                .args(["kube-apiserver", "--bind-address=127.0.0.1", "--authorization-mode=AlwaysAllow"])
                .args(["--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.97.0.0/24"])
                .args(["--service-account-issuer=https://kubernetes.default.svc", &format!("--secure-port={api}")])
                .args([format!("--etcd-servers={etcd}"), format!("--cert-dir={}", file("certificates"))])
                .args([format!("--token-auth-file={}", file("tokens.csv"))])
                .args(
                    ["key-file", "signing-key-file"].map(|what| format!("--service-account-{what}={}", key.display())),
                )
                .stdout(log("kube-apiserver.log"))
                .stderr(log("kube-apiserver.errors"))
                .spawn()
                .unwrap(),
        );
        let mut config = Config::new(format!("https://127.0.0.1:{api}").parse().unwrap());
        config.accept_invalid_certs = true;
        config.auth_info.token = Some("bench".to_owned().into());
        let plane = Self { config, processes, _directory: directory };
        plane.ready().await;
        plane
    }

    async fn ready(&self) {
        let client = kube::Client::try_from(self.config.clone()).unwrap();
        for _ in 0..600 {
            let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
            if client.request_text(request).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the API server is not ready after a minute");
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            drop(process.kill());
            drop(process.wait());
        }
    }
}
