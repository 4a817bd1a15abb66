//! The guest's disk: a copy of the tiny guest's image behind a loop device of the node, and a PersistentVolume for it.
//! The node is this machine, so that tests can read the disk.

use super::{Space, environment, kubectl};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The position of the guest's counts.
const COUNTS_OFFSET: u64 = 47 << 20;

/// The output format that prints the name of the node.
const NODE_NAME: &str = "jsonpath={.items[0].metadata.name}";

/// The counts of a guest's boots and shutdowns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub boot: u32,
    /// Shutdowns by the power button or the guest agent. A guest that was powered off counts none.
    pub shutdowns: u32,
}

impl Counts {
    /// Parses the guest's counts: `boot=1 powerbuttons=0 agentshutdowns=0`.
    pub fn parse(text: &str) -> Option<Self> {
        let count = |name: &str| {
            let value = text
                .split_whitespace()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
            value.parse::<u32>().ok()
        };
        Some(Self {
            boot: count("boot")?,
            shutdowns: count("powerbuttons")? + count("agentshutdowns")?,
        })
    }
}

/// A disk. It exists until [`Disk::remove`], or until the next run removes it.
#[derive(Debug)]
pub struct Disk {
    /// Name of the volume.
    pub volume: String,
    file: PathBuf,
    device: String,
}

impl Disk {
    /// Creates a disk with the tiny guest.
    pub fn tiny(volume: &str) -> Self {
        let file = environment::disks_dir().join(format!("{volume}.img"));
        tool(
            "cp",
            &[
                "--sparse=always",
                &text(&environment::guest_image()),
                &text(&file),
            ],
        );
        let device = tool("losetup", &["--find", "--show", &text(&file)]);
        Self {
            volume: volume.to_owned(),
            file,
            device,
        }
    }

    /// Replaces the guest by the boot sector. No VM has used the disk yet.
    pub fn write_boot_sector(&self) {
        let device = File::options().write(true).open(&self.device).unwrap();
        device
            .write_all_at(&support::boot_sector::disk(), 0)
            .unwrap();
        device.sync_all().unwrap();
    }

    /// Creates the volume with those labels, reserved for that claim.
    pub async fn publish(&self, labels: &Value, namespace: &str, claim: &str) {
        let claim = (namespace, claim);
        create_volume(
            &self.volume,
            labels,
            "Block",
            Path::new(&self.device),
            claim,
        )
        .await;
    }

    /// The counts that the guest has written.
    pub fn counts(&self) -> Counts {
        let mut line = [0; 512];
        File::open(&self.file)
            .unwrap()
            .read_exact_at(&mut line, COUNTS_OFFSET)
            .unwrap();
        let line = String::from_utf8_lossy(&line);
        Counts::parse(&line)
            .unwrap_or_else(|| panic!("the disk {} holds no counts: {line:?}", self.volume))
    }

    /// Removes the volume and the disk. If the claim is deleted later, the volume is, too.
    pub async fn remove(&self) {
        let args = [
            "delete",
            "persistentvolume",
            &self.volume,
            "--ignore-not-found",
            "--wait=false",
        ];
        if let Err(complaint) = kubectl::try_run(&args).await {
            eprintln!("{complaint}");
        }
        detach(&self.device);
        drop(fs::remove_file(&self.file));
    }
}

/// Creates a volume of the node with that path, reserved for the claim of that namespace and name.
async fn create_volume(name: &str, labels: &Value, mode: &str, path: &Path, claim: (&str, &str)) {
    let node = kubectl::run(&["get", "nodes", "--output", NODE_NAME]).await;
    let on_node = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    let volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "volumeMode": mode,
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
            "claimRef": {"namespace": claim.0, "name": claim.1},
        },
    });
    kubectl::create(&volume).await.unwrap();
}

/// A file system in memory, and a PersistentVolume for it. Both exist until the value is dropped.
#[derive(Debug)]
pub struct SmallVolume {
    /// Name of the PersistentVolume.
    pub name: String,
    dir: PathBuf,
}

impl SmallVolume {
    /// Creates a volume of that many MiB, reserved for that claim. Its object promises more space.
    pub async fn publish(space: &Space, claim: &str, mib: u32) -> Self {
        let name = format!("{}-{claim}", space.name);
        let dir = environment::disks_dir().join(&name);
        fs::create_dir_all(&dir).unwrap();
        let size = format!("size={mib}m,mode=0770,gid=107");
        tool("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", &text(&dir)]);
        create_volume(&name, &json!({}), "Filesystem", &dir, (&space.name, claim)).await;
        Self { name, dir }
    }
}

impl Drop for SmallVolume {
    fn drop(&mut self) {
        // The pod may still use it.
        drop(Command::new("umount").arg("--lazy").arg(&self.dir).status());
        drop(fs::remove_dir(&self.dir));
    }
}

/// Removes the disks of earlier runs.
pub fn remove_all() {
    let dir = environment::disks_dir();
    let listed = tool(
        "losetup",
        &[
            "--list",
            "--noheadings",
            "--raw",
            "--output",
            "NAME,BACK-FILE",
        ],
    );
    for (device, file) in listed.lines().filter_map(|line| line.split_once(' ')) {
        if Path::new(file).starts_with(&dir) {
            detach(device);
        }
    }
    for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(environment::PREFIX)
        {
            drop(fs::remove_file(entry.path()));
        }
    }
}

/// The kernel releases the device with its last user.
fn detach(device: &str) {
    drop(Command::new("losetup").args(["--detach", device]).output());
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn tool(name: &str, args: &[&str]) -> String {
    let output = Command::new(name)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{name} {}: {}",
        args.join(" "),
        error.trim()
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
