//! What all tests stand on: the local cluster with the project's images, definitions and device plugin, and the guest's disk. Made
//! ready once for a run; whatever an earlier run that was killed has left is removed first.

use super::{disk, kubectl};
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tokio::sync::Semaphore;

/// Every namespace, volume and file of these tests begins so.
pub const PREFIX: &str = "vmop-e2e-";

/// Guests that run at once. Without hardware acceleration each of them is busy while it boots, and idle for most of its test.
pub const SLOTS: u32 = 4;
/// A test takes as many of these as it runs guests. A test that needs the node for itself takes all.
pub static FREE_SLOTS: Semaphore = Semaphore::const_new(SLOTS as usize);

/// The cluster's state.
pub fn dir() -> PathBuf {
    std::env::var_os("VMOP_CLUSTER_DIR")
        .map_or_else(|| PathBuf::from("/var/lib/vmop-cluster"), PathBuf::from)
}

/// How to reach the cluster as administrator.
pub fn kubeconfig() -> PathBuf {
    dir().join("admin.kubeconfig")
}

/// What tells kubectl of the cluster. What it remembers of the cluster's kinds it would else find by the address, which a cluster
/// before had as well.
pub fn kubectl_environment() -> [(&'static str, PathBuf); 2] {
    [
        ("KUBECONFIG", kubeconfig()),
        ("KUBECACHEDIR", dir().join("kubectl-cache")),
    ]
}

/// Where the guests' disks are.
pub fn disks_dir() -> PathBuf {
    dir().join("e2e")
}

/// Where the namespaces' manifests are while a test runs.
pub fn overlays_dir() -> PathBuf {
    repo().join(".cache/e2e")
}

/// The project.
pub fn repo() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// How the names of the last run's namespaces begin, by which its requests are found in the audit log.
pub fn run_file() -> PathBuf {
    repo().join(".cache/e2e-run")
}

/// The disk that guests get copies of.
pub fn guest_image() -> PathBuf {
    repo().join(".cache/guests/tiny.img")
}

/// Makes sure that everything is there.
///
/// # Panics
/// If something is missing; the message says how to get it.
pub fn ready() {
    static READY: OnceLock<Result<File, String>> = OnceLock::new();
    if let Err(missing) = READY.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| e.to_string())?;
        runtime.block_on(make_ready())
    }) {
        panic!("{missing}");
    }
}

/// The lock is held until the process ends.
async fn make_ready() -> Result<File, String> {
    let archives =
        ["vm-operator", "vm-runner"].map(|name| repo().join(format!(".cache/images/{name}.tar")));
    let answer = if kubeconfig().exists() {
        kubectl::run(&["get", "--raw", "/readyz"]).await
    } else {
        Err(String::new())
    };
    answer.map_err(|_| format!("no cluster runs in {}; run `make cluster`", dir().display()))?;
    for (file, target) in archives
        .iter()
        .map(|file| (file.clone(), "images"))
        .chain([(guest_image(), "guests")])
    {
        fs::metadata(&file)
            .map_err(|_| format!("{} is missing; run `make {target}`", file.display()))?;
    }
    let lock = lock()?;
    let mut load = Command::new(repo().join("tests/cluster/cluster"));
    let loaded = load
        .arg("load")
        .args(&archives)
        .output()
        .map_err(|e| format!("tests/cluster/cluster: {e}"))?;
    if !loaded.status.success() {
        let words = String::from_utf8_lossy(&loaded.stderr);
        return Err(format!(
            "the images cannot be loaded ({}); run `make images cluster`",
            words.trim()
        ));
    }
    let crds = repo().join("crds").display().to_string();
    kubectl::run(&[
        "apply",
        "--server-side",
        "--force-conflicts",
        "--filename",
        &crds,
    ])
    .await?;
    let policy = repo().join("deploy/cluster").display().to_string();
    kubectl::run(&[
        "apply",
        "--server-side",
        "--force-conflicts",
        "--kustomize",
        &policy,
    ])
    .await?;
    sweep().await?;
    // Anew, as its image may be another one of the same name.
    let plugin = repo().join("deploy/device-plugin").display().to_string();
    kubectl::run(&[
        "delete",
        "--kustomize",
        &plugin,
        "--ignore-not-found",
        "--timeout",
        "60s",
    ])
    .await?;
    kubectl::run(&["apply", "--kustomize", &plugin]).await?;
    let run = format!("{PREFIX}{:x}-", std::process::id());
    fs::write(run_file(), run).map_err(|e| format!("{}: {e}", run_file().display()))?;
    Ok(lock)
}

/// `tests/cluster/cluster` with these arguments.
///
/// # Panics
/// If it fails; the message is what it has said.
pub fn cluster(arguments: &[&str]) {
    let done = Command::new(repo().join("tests/cluster/cluster"))
        .args(arguments)
        .output();
    let done = done.unwrap_or_else(|e| panic!("tests/cluster/cluster: {e}"));
    assert!(
        done.status.success(),
        "cluster {arguments:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

fn lock() -> Result<File, String> {
    let dir = disks_dir();
    fs::create_dir_all(&dir)
        .map_err(|e| format!("{}: {e}; run the tests as root", dir.display()))?;
    let file =
        File::create(dir.join("lock")).map_err(|e| format!("{}/lock: {e}", dir.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            // Not by eprintln: that is shown for failed tests only.
            let _ = writeln!(
                std::io::stderr(),
                "waiting for another run of these tests ({}/lock)",
                dir.display()
            );
            file.lock()
                .map(|()| file)
                .map_err(|e| format!("{}/lock: {e}", dir.display()))
        }
        Err(TryLockError::Error(e)) => Err(format!("{}/lock: {e}", dir.display())),
    }
}

/// Removes what a killed run has left.
async fn sweep() -> Result<(), String> {
    let ours = |names: &str| -> Vec<String> {
        let names = names
            .lines()
            .filter_map(|line| line.split_once('/').map(|(_, name)| name));
        names
            .filter(|name| name.starts_with(PREFIX))
            .map(str::to_owned)
            .collect()
    };
    for namespace in ours(&kubectl::run(&["get", "namespaces", "--output", "name"]).await?) {
        kubectl::run(&[
            "delete",
            "namespace",
            &namespace,
            "--ignore-not-found",
            "--timeout",
            "120s",
        ])
        .await?;
    }
    for volume in ours(&kubectl::run(&["get", "persistentvolumes", "--output", "name"]).await?) {
        kubectl::run(&[
            "delete",
            "persistentvolume",
            &volume,
            "--ignore-not-found",
            "--timeout",
            "60s",
        ])
        .await?;
    }
    // A drain may have been interrupted.
    kubectl::run(&["uncordon", "--selector", "kubernetes.io/os=linux"]).await?;
    disk::remove_all();
    // It need not be there.
    drop(fs::remove_dir_all(overlays_dir()));
    Ok(())
}
