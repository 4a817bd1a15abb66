//! The environment of all tests: the local cluster with the project's images, definitions and device plugin, and the
//! guest's disk. It is prepared once for a run. Remains of a killed run are removed first.

use super::{disk, kubectl};
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tokio::sync::Semaphore;

/// The prefix of each namespace, volume and file of these tests.
pub const PREFIX: &str = "vmop-e2e-";

/// Concurrent guests. Without hardware acceleration each of them is busy while it boots, and idle for most of its test.
pub const SLOTS: u32 = 4;
/// A test takes one slot for each of its guests. A test that needs the node for itself takes all.
pub static FREE_SLOTS: Semaphore = Semaphore::const_new(SLOTS as usize);

/// The directory of the cluster's state.
pub fn dir() -> PathBuf {
    std::env::var_os("VMOP_CLUSTER_DIR")
        .map_or_else(|| PathBuf::from("/var/lib/vmop-cluster"), PathBuf::from)
}

/// The administrator's kubeconfig.
pub fn kubeconfig() -> PathBuf {
    dir().join("admin.kubeconfig")
}

/// Environment variables for kubectl. Its discovery cache is named after the cluster's address, which an earlier
/// cluster had, too.
pub fn kubectl_environment() -> [(&'static str, PathBuf); 2] {
    [
        ("KUBECONFIG", kubeconfig()),
        ("KUBECACHEDIR", dir().join("kubectl-cache")),
    ]
}

/// The directory of the guests' disks.
pub fn disks_dir() -> PathBuf {
    dir().join("e2e")
}

/// The directory of the namespaces' manifests while a test runs.
pub fn overlays_dir() -> PathBuf {
    repo().join(".cache/e2e")
}

/// The root of the project.
pub fn repo() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The prefix of the last run's namespaces, by which the audit log is filtered.
pub fn run_file() -> PathBuf {
    repo().join(".cache/e2e-run")
}

/// The image from which the guests' disks are copied.
pub fn guest_image() -> PathBuf {
    repo().join(".cache/guests/tiny.img")
}

/// Checks the prerequisites and prepares the environment.
///
/// # Panics
/// A prerequisite is missing. The message says how to get it.
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

/// The lock is held until the process exits.
async fn make_ready() -> Result<File, String> {
    let archives =
        ["vm-operator", "vm-runner"].map(|name| repo().join(format!(".cache/images/{name}.tar")));
    let answer = if kubeconfig().exists() {
        kubectl::try_run(&["get", "--raw", "/readyz"]).await
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
        let error = String::from_utf8_lossy(&loaded.stderr);
        return Err(format!(
            "the images cannot be loaded ({}); run `make images cluster`",
            error.trim()
        ));
    }
    let crds = repo().join("crds").display().to_string();
    kubectl::try_run(&[
        "apply",
        "--server-side",
        "--force-conflicts",
        "--filename",
        &crds,
    ])
    .await?;
    remove_remains().await?;
    // The device plugin is restarted, because its image may be another one with the same name.
    let plugin = repo().join("deploy/device-plugin").display().to_string();
    kubectl::try_run(&[
        "delete",
        "--kustomize",
        &plugin,
        "--ignore-not-found",
        "--timeout",
        "60s",
    ])
    .await?;
    let cluster = repo().join("deploy/cluster").display().to_string();
    kubectl::try_run(&[
        "apply",
        "--server-side",
        "--force-conflicts",
        "--kustomize",
        &cluster,
    ])
    .await?;
    let run = format!("{PREFIX}{:x}-", std::process::id());
    fs::write(run_file(), run).map_err(|e| format!("{}: {e}", run_file().display()))?;
    Ok(lock)
}

/// Runs `tests/cluster/cluster` with these arguments.
///
/// # Panics
/// It fails. The message is its output.
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
            // Not by eprintln, which is shown only for failed tests.
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

/// Removes the remains of a killed run.
async fn remove_remains() -> Result<(), String> {
    let ours = |names: &str| -> Vec<String> {
        let names = names
            .lines()
            .filter_map(|line| line.split_once('/').map(|(_, name)| name));
        names
            .filter(|name| name.starts_with(PREFIX))
            .map(str::to_owned)
            .collect()
    };
    for namespace in ours(&kubectl::try_run(&["get", "namespaces", "--output", "name"]).await?) {
        kubectl::try_run(&[
            "delete",
            "namespace",
            &namespace,
            "--ignore-not-found",
            "--timeout",
            "120s",
        ])
        .await?;
    }
    for volume in ours(&kubectl::try_run(&["get", "persistentvolumes", "--output", "name"]).await?)
    {
        kubectl::try_run(&[
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
    kubectl::try_run(&["uncordon", "--selector", "kubernetes.io/os=linux"]).await?;
    disk::remove_all();
    // The taint may be absent.
    drop(fs::remove_dir_all(overlays_dir()));
    Ok(())
}
