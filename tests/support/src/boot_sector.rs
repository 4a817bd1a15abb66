//! A guest that is one boot sector, and the machine's KVM that runs it.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Size of its disk, in bytes.
const DISK_SIZE: usize = 1 << 20;

/// The disk of the guest in `boot_sector/boot-sector.s`. Its boot counter is 0. The tools of the C compiler assemble it.
#[must_use]
pub fn disk() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/boot_sector/boot-sector.s");
    let (object, sector) = (dir.path().join("object"), dir.path().join("sector"));
    run(Command::new("as")
        .arg("--32")
        .arg("-o")
        .args([&object, &source]));
    let options = [
        "-m",
        "elf_i386",
        "-Ttext",
        "0x7c00",
        "--oformat",
        "binary",
        "-o",
    ];
    run(Command::new("ld").args(options).args([&sector, &object]));
    let mut disk = fs::read(sector).unwrap();
    assert_eq!(disk.len(), 512);
    disk.resize(DISK_SIZE, 0);
    disk
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

/// Whether the machine has a KVM. Without one, the test fails unless `KVM=absent` is set.
#[must_use]
pub fn machine_has_kvm() -> bool {
    let opened = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm");
    let Err(error) = opened else {
        return true;
    };
    let is_expected = std::env::var("KVM").is_ok_and(|value| value == "absent");
    assert!(
        is_expected,
        "/dev/kvm cannot be used: {error}; set KVM=absent on a machine without KVM"
    );
    println!("this machine has no KVM: nothing was tried");
    false
}
