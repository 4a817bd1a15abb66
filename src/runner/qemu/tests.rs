mod combined;
mod java;
mod line;
mod options;
mod rules;
mod windows;

use crate::runner::config;
use crate::runner::machine::{
    Acceleration, Certificate, Disk, DiskKind, FirmwareFiles, Instance, Screen, testing,
};
use crate::runner::qemu::*;
use crate::runner::spec::Spec;
use std::path::PathBuf;

fn machine(vm: &str) -> Machine {
    let text = format!("\"/Runner\":\n  vm:\n    name: test-vm\n{vm}");
    let spec = Spec::from_config(&config::parse(&text).unwrap().config).unwrap();
    Machine {
        uuid: "7a37e3b4-5bd0-4f7b-8a0c-b0e2a1b2c3d4".to_owned(),
        machine_type: "pc-q35-10.0".to_owned(),
        acceleration: Acceleration::Tcg,
        cpu_model: "max".to_owned(),
        firmware: None,
        macs: (0..spec.vm.network.len())
            .map(|n| format!("52:54:00:12:34:{n:02x}"))
            .collect(),
        cds: spec.cds.clone(),
        disks: Vec::new(),
        seed: None,
        instance: Instance {
            id: None,
            vm: "vm".to_owned(),
        },
        pci_slots: testing::layout(&[], &[]),
        iommu: false,
        panic_device: true,
        generation_id: Some("1c4f2f0e-6f6a-4a1e-9d0c-3b1f5a7c9e24".to_owned()),
        screen: Screen::Vga,
        ticketing: false,
        certificate: None,
        spec,
    }
}

/// One option a line, as a person reads it.
fn lines(machine: &Machine) -> String {
    let mut text = String::new();
    for argument in arguments(machine, DESCRIPTORS) {
        let separator = if argument.starts_with('-') { "\n" } else { " " };
        text.push_str(separator);
        text.push_str(&argument);
    }
    text.trim_start().to_owned()
}

#[test]
fn the_smallest_machine() {
    insta::assert_snapshot!(lines(&machine("    network: []\n    firmware: bios\n")));
}

#[test]
fn b32_the_fullest_machine() {
    let mut machine = machine(
        "    bootMenu: true
    useTpm: true
    firmware: secure
    maximumCpus: 8
    sockets: 2
    coresPerDie: 4
    maximumRam: 4 GiB
    rtcBase: '2026-01-31T12:00:00'
    rtcClock: vm
    network:
    - {type: user, net: 10.0.3.0/24, forward: [{port: 8022, guestPort: 22, protocol: TCP}]}
    - {type: user, device: e1000e}
    - {type: tap, bridge: lan0}
    drives:
    - {type: ide-cd, file: /iso/a, bootindex: 1}
    - {type: ide-cd}
    display: {outputs: 2, spice: {port: 5812, address: 127.0.0.1, streamingVideo: filter, usbRedirects: 1}}
",
    );
    machine.acceleration = Acceleration::Kvm;
    machine.screen = Screen::VirtioVga;
    machine.firmware = Some(FirmwareFiles {
        rom: "/fw/CODE.fd".into(),
        vars: "/data/fw-vars.fd".into(),
        secure: true,
    });
    machine.disks = vec![
        Disk {
            path: "/dev/system-disk".into(),
            kind: DiskKind::Device,
            serial: Some("system-disk".to_owned()),
            bootindex: Some(1000),
            size: 0,
            direct: true,
        },
        Disk {
            path: "/images/a,b.img".into(),
            kind: DiskKind::File,
            serial: None,
            bootindex: None,
            size: 0,
            direct: false,
        },
    ];
    machine.seed = Some(PathBuf::from("/run/seed.img"));
    machine.ticketing = true;
    machine.pci_slots = testing::layout(&machine.macs, &["a", "b"]);
    insta::assert_snapshot!(lines(&machine));
}

#[test]
fn memory_is_ordinary_unless_huge_pages_or_sharing_are_wanted() {
    let memory = |more: &str| {
        let arguments = arguments(
            &machine(&format!("    network: []\n    maximumRam: 2 GiB\n{more}")),
            DESCRIPTORS,
        );
        arguments
            .into_iter()
            .find(|argument| argument.contains("pc.ram\""))
            .unwrap()
    };
    let ordinary = r#"{"id":"pc.ram","qom-type":"memory-backend-ram","size":2147483648}"#;
    assert_eq!(
        (
            memory("").as_str(),
            memory("    sharedMemory: false\n").as_str()
        ),
        (ordinary, ordinary)
    );
    let shared =
        r#"{"id":"pc.ram","qom-type":"memory-backend-memfd","share":true,"size":2147483648}"#;
    assert_eq!(memory("    sharedMemory: true\n"), shared);
    for (size, bytes) in [("2Mi", 2 << 20), ("1Gi", 1 << 30)] {
        let huge = format!(
            r#"{{"hugetlb":true,"hugetlbsize":{bytes},"id":"pc.ram","qom-type":"memory-backend-memfd","share":true,"size":2147483648}}"#
        );
        assert_eq!(memory(&format!("    hugepages: {size}\n")), huge);
    }
}

#[test]
fn the_same_machine_gives_the_same_arguments() {
    let machine = machine("    network: [{type: user}]\n");
    assert_eq!(
        arguments(&machine, DESCRIPTORS),
        arguments(&machine, DESCRIPTORS)
    );
}

#[test]
fn a_screen_is_the_machines_own() {
    let screen = |screen, display: &str| {
        let machine = Machine {
            screen,
            ..machine(&format!("    network: []\n{display}"))
        };
        let arguments = arguments(&machine, DESCRIPTORS);
        let screen = arguments
            .iter()
            .find(|argument| argument.contains("video0"))
            .unwrap();
        serde_json::from_str::<serde_json::Value>(screen).unwrap()
    };
    assert_eq!(screen(Screen::Vga, "")["driver"], "VGA");
    let two = screen(Screen::VirtioVga, "    display: {outputs: 2}\n");
    assert_eq!(
        (&two["driver"], &two["max_outputs"]),
        (&json!("virtio-vga"), &json!(2))
    );
}

#[test]
fn with_a_certificate_the_displays_port_is_encrypted_and_no_other_is_open() {
    let mut machine = machine("    network: []\n    display: {spice: {port: 5900}}\n");
    let of_spice = |machine: &Machine| {
        let arguments = arguments(machine, DESCRIPTORS);
        let at = arguments
            .iter()
            .position(|argument| argument == "-spice")
            .unwrap();
        arguments[at + 1].clone()
    };
    assert!(of_spice(&machine).starts_with("port=5900,"));
    let [chain, key, authority] = ["/c/tls.crt", "/c,d/tls.key", "/c/ca.crt"].map(PathBuf::from);
    machine.certificate = Some(Certificate {
        chain,
        key,
        authority,
    });
    let options = of_spice(&machine);
    assert!(
        options.starts_with("tls-port=5900,") && !options.contains(",port="),
        "{options}"
    );
    let files = ",x509-key-file=/c,,d/tls.key,x509-cert-file=/c/tls.crt,x509-cacert-file=/c/ca.crt";
    assert!(options.ends_with(files), "{options}");
}
