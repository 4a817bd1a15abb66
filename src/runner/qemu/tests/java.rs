//! VMs that the Java VM-Operator has started keep QEMU's arguments byte by byte.

use crate::api::runner::identity::PodIdentity;
use crate::runner::config;
use crate::runner::machine::{Acceleration, Directories, MachineInputs, prepare};
use crate::runner::qemu::{DESCRIPTORS, arguments};
use crate::runner::spec::Spec;
use std::fs;
use tempfile::TempDir;

/// A VM with three networks, two disks and a seed. `/t` stands for the test's directory.
const VM: &str = "    network:
    - {type: user}
    - {type: tap, bridge: lan0, mac: '52:54:00:00:00:07'}
    - {type: tap, bridge: lan0}
    drives:
    - {type: raw, file: /t/system-disk/disk.img, size: 1 MiB, bootindex: 0}
    - {type: raw, resource: /t/other.img}
";
const UUID: &str = "2f3c1f9e-8e6e-4d6e-9f0e-0d5f6f2d9b11\n";
const UID: &str = "0f9a1b6c-93ab-4c5e-8a4f-6d9d0b7a7c11";

fn path(dir: &TempDir) -> String {
    let path = fs::canonicalize(dir.path()).unwrap();
    path.display().to_string()
}

/// A data directory with these files, and the images of the VM.
fn data(files: &[(&str, &str)]) -> TempDir {
    // Not in /tmp, which may be a file system without direct I/O.
    let dir = tempfile::tempdir_in(".").unwrap();
    for name in ["data", "run", "system-disk"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    for image in ["system-disk/disk.img", "other.img"] {
        fs::write(dir.path().join(image), [0; 512]).unwrap();
    }
    let path = path(&dir);
    for (name, content) in files {
        let content = content.replace("/t/", &format!("{path}/"));
        fs::write(dir.path().join("data").join(name), content).unwrap();
    }
    dir
}

/// QEMU's arguments of one start, an option a line.
fn start(dir: &TempDir, vm: &str) -> String {
    let path = path(dir);
    let text = format!("\"/Runner\":\n  vm:\n    name: test-vm\n    firmware: bios\n{vm}");
    let config = config::parse(&text.replace("/t/", &format!("{path}/"))).unwrap();
    let dirs = Directories {
        data: format!("{path}/data").into(),
        runtime: format!("{path}/run").into(),
    };
    let inputs = MachineInputs {
        uid: Some(UID),
        pod: &PodIdentity::default(),
        cloud_init: None,
        acceleration: Acceleration::Tcg,
        ticketing: false,
        certificate: None,
        images: Vec::new(),
        seed: Some("/run/seed.img".into()),
    };
    let spec = Spec::from_config(&config.config).unwrap();
    let machine = prepare(spec, &dirs, inputs).unwrap().machine;
    let mut text = String::new();
    for argument in arguments(&machine, DESCRIPTORS) {
        text.push(if argument.starts_with('-') { '\n' } else { ' ' });
        text.push_str(&argument);
    }
    text.trim_start().replace(&path, "/t")
}

/// The arguments of the first start with this version, which all later starts repeat.
fn starts(dir: &TempDir, vm: &str) -> String {
    let first = start(dir, vm);
    assert_eq!(first, start(dir, vm));
    first
}

#[test]
fn a_vm_of_the_java_vm_operator_keeps_its_hardware() {
    let dir = data(&[("uuid.txt", UUID), ("VM.ftl.yaml", "- pc-q35-8.1,usb=off")]);
    insta::assert_snapshot!(starts(&dir, VM));
}

#[test]
fn a_vm_of_the_java_vm_operator_without_networks_keeps_its_hardware() {
    let dir = data(&[("uuid.txt", UUID)]);
    insta::assert_snapshot!(starts(&dir, "    network: []\n"));
}
