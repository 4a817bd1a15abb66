//! (pure) CD drives, disks and the cloud-init seed, in this order.

use crate::runner::machine::{Disk, DiskKind, Machine};
use crate::runner::qemu::args::Args;
use crate::runner::qemu::bootable;
use serde_json::{Value, json};
use std::path::Path;

/// Number of queues of a disk. More do not increase the throughput.
const QUEUES_MAX: u32 = 16;

pub fn cds(args: &mut Args, machine: &Machine) {
    for (n, cd) in machine.cds.iter().enumerate() {
        let mut device = json!({"driver": "ide-cd", "id": cd_device(n), "bus": format!("ide.{n}")});
        if let Some(file) = &cd.file {
            let mut node = cd_image(file);
            for (fields, key) in [(&mut node, "node-name"), (&mut device, "drive")] {
                fields
                    .as_object_mut()
                    .map(|fields| fields.insert(key.to_owned(), json!(cd_node(n))));
            }
            args.json("-blockdev", &node);
        }
        args.device(&bootable(device, cd.bootindex));
    }
}

pub fn cd_device(n: usize) -> String {
    format!("cd{n}")
}

/// The block node of the image that a CD drive has at the start.
pub fn cd_node(n: usize) -> String {
    format!("drive-cdrom{n}")
}

/// A CD image as a block node. VMs share images, so QEMU neither locks nor writes them.
pub fn cd_image(file: &Path) -> Value {
    json!({
        "driver": "raw", "read-only": true,
        "file": {"driver": "file", "filename": file.to_string_lossy(), "locking": "off", "read-only": true},
    })
}

/// Disks, with `O_DIRECT` if possible. Each has its own thread, so that it is independent of QEMU's
/// main loop and of other disks.
pub fn disks(args: &mut Args, machine: &Machine) {
    for (n, disk) in machine.disks.iter().enumerate() {
        let driver = match disk.kind {
            DiskKind::File => "file",
            DiskKind::Device => "host_device",
        };
        let resource = json!({
            "driver": driver, "node-name": resource(n), "filename": disk.path,
            "aio": disk.aio(), "cache": {"direct": disk.direct, "no-flush": false},
            "auto-read-only": true, "discard": "unmap",
        });
        let slot = machine.pci_slots.disks.get(n).copied().unwrap_or_default();
        blk(args, machine, slot, n, &resource, Some(disk));
    }
}

/// The cloud-init seed, after the disks.
pub fn seed(args: &mut Args, machine: &Machine) {
    if let Some(path) = &machine.seed {
        let n = machine.disks.len();
        blk(
            args,
            machine,
            machine.pci_slots.seed,
            n,
            &seed_resource(n, path),
            None,
        );
    }
}

fn seed_resource(n: usize, path: &Path) -> Value {
    json!({"driver": "file", "node-name": resource(n), "filename": path, "read-only": true})
}

/// The block node that the guest's disk uses.
pub fn disk_node(n: usize) -> String {
    format!("drive-{n}-backend")
}

fn resource(n: usize) -> String {
    format!("drive-{n}-host-resource")
}

/// A virtio disk. Without `disk` it is the seed, which is read-only.
fn blk(
    args: &mut Args,
    machine: &Machine,
    slot: u8,
    n: usize,
    resource: &Value,
    disk: Option<&Disk>,
) {
    let read_only = disk.is_none();
    args.json("-blockdev", resource);
    let backend = disk_node(n);
    let mut node = json!({"driver": "raw", "node-name": backend, "file": self::resource(n), "read-only": read_only});
    // Discarded and zeroed blocks free space. Each node in the chain must pass them on.
    if let (Some(fields), false) = (node.as_object_mut(), read_only) {
        fields.insert("discard".to_owned(), json!("unmap"));
        fields.insert("detect-zeroes".to_owned(), json!("unmap"));
    }
    args.json("-blockdev", &node);
    let thread = format!("iothread-{n}");
    args.json("-object", &json!({"qom-type": "iothread", "id": thread}));
    // QEMU's default is the number of CPUs at its start, which is one.
    let queues = machine.spec.maximum_cpus.min(QUEUES_MAX);
    // A full volume stops the guest until there is space. Other errors are reported to the guest:
    // it knows the importance of the sector, and a permanent error would otherwise stop the guest
    // forever.
    let mut device = json!({
        "driver": "virtio-blk-pci", "drive": backend, "num-queues": queues, "iothread": thread, "werror": "enospc",
        "rerror": "report",
    });
    let serial = disk.and_then(|disk| disk.serial.as_ref());
    if let (Some(fields), Some(serial)) = (device.as_object_mut(), serial) {
        fields.insert("serial".to_owned(), json!(serial));
    }
    let bootindex = disk.and_then(|disk| disk.bootindex);
    args.pci_device(slot, bootable(device, bootindex));
}
