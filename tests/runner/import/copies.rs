//! Copies of another disk. The source has the header of a qcow2 image with a backing file, which must not be read.

use super::{End, Import, MIB, content};
use crate::fixture::LIMIT;
use crate::host::LoopDevice;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

const FILE: &str = "--from=/tmp/source/disk.img";
const DEVICE: &str = "--from=/tmp/source-disk";

fn source() -> Vec<u8> {
    let mut content = content();
    content[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    content[15] = 100;
    content
}

fn import() -> Import {
    let import = Import::of(b"", &[], |_| {});
    fs::create_dir(import.fixture.path("source")).unwrap();
    let file = File::create(import.fixture.path("source/disk.img")).unwrap();
    file.write_all_at(&source()[..2 * MIB], 0).unwrap();
    // A hole.
    file.write_all_at(&source()[4 * MIB..], 4 * MIB as u64)
        .unwrap();
    import
}

fn source_device(import: &Import) -> LoopDevice {
    import.device("source/disk.img", "source-disk")
}

fn copy(import: &Import, from: &str) -> End {
    import.end(import.start_with(&[from]))
}

#[test]
fn a_disk_is_copied_byte_by_byte_to_the_other_volume_mode() {
    for (from, to_device) in [(FILE, false), (FILE, true), (DEVICE, false), (DEVICE, true)] {
        let mut import = import();
        let _source = source_device(&import);
        let _target = to_device.then(|| import.onto_device(12));
        let (code, outcome, progress) = copy(&import, from);
        assert_eq!(code, Some(0), "{from}: {outcome}");
        assert_eq!(outcome["bytes"], 8 * MIB, "{outcome}");
        assert!(progress.contains("Copy"), "{progress}");
        assert!(import.disk()[..8 * MIB] == source(), "{from}, {to_device}");
        if !to_device {
            let disk = fs::metadata(import.fixture.path("disk/disk.img")).unwrap();
            assert!(disk.blocks() * 512 < 7 * MIB as u64, "{from}");
            assert_eq!(import.files(), ["disk.img"]);
        }
        // A later copy finds the contents.
        fs::write(import.fixture.path("source/disk.img"), "x").unwrap();
        let (_, outcome, _) = copy(&import, FILE);
        assert_eq!(outcome["reason"], "AlreadyThere", "{outcome}");
        assert!(import.disk()[..8 * MIB] == source());
    }
}

#[test]
fn a_source_that_is_missing_or_too_large_changes_nothing() {
    let mut import = import();
    let (code, outcome, _) = copy(&import, "--from=/tmp/other/disk.img");
    assert_eq!(
        (code, &outcome["reason"]),
        (Some(39), &"SourceMissing".into())
    );
    assert!(import.files().is_empty());
    let _target = import.onto_device(7);
    let before = import.disk();
    let (code, outcome, _) = copy(&import, FILE);
    assert_eq!((code, &outcome["reason"]), (Some(25), &"TooLarge".into()));
    let message = outcome["message"].as_str().unwrap();
    assert!(message.contains("use a PVC of at least 8Mi"), "{message}");
    assert!(import.disk() == before);
}

/// A guest with that disk, and its end.
struct Guest(Child);

impl Guest {
    fn start(import: &Import) -> Self {
        let blockdev =
            "driver=raw,node-name=disk,file.driver=file,file.filename=/tmp/source/disk.img";
        let mut qemu = import.fixture.image_program("/usr/bin/qemu-system-x86_64");
        qemu.args([
            "-S",
            "-display",
            "none",
            "-nodefaults",
            "-pidfile",
            "/tmp/qemu.pid",
        ])
        .args(["-blockdev", blockdev])
        .args(["-device", "virtio-blk-pci,drive=disk"]);
        let guest = Self(qemu.spawn().unwrap());
        let begin = Instant::now();
        // QEMU writes the file after it has opened its disks.
        while fs::read_to_string(import.fixture.path("qemu.pid")).is_err() {
            assert!(begin.elapsed() < LIMIT, "QEMU does not start");
            sleep(Duration::from_millis(10));
        }
        guest
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_source_that_a_vm_uses_is_not_copied() {
    let import = import();
    let guest = Guest::start(&import);
    let (code, outcome, _) = copy(&import, FILE);
    assert_eq!(code, Some(38), "{outcome}");
    assert_eq!(outcome["reason"], "SourceInUse", "{outcome}");
    assert!(import.files().is_empty(), "{:?}", import.files());
    drop(guest);
    assert_eq!(copy(&import, FILE).0, Some(0));

    let import = self::import();
    let source = source_device(&import);
    let mut exclusive = OpenOptions::new();
    let held = exclusive.read(true).custom_flags(libc::O_EXCL);
    let held = held.open(&source.0).unwrap();
    let (_, outcome, _) = copy(&import, DEVICE);
    assert_eq!(outcome["reason"], "SourceInUse", "{outcome}");
    drop(held);
    assert_eq!(copy(&import, DEVICE).0, Some(0));
}
