//! What a guest sees of its machine, and that it stays.

use crate::rig::{Console, Rig};
use serde_json::json;
use std::fs;
use std::time::Duration;

/// Slots, each with the vendor and the device there, as the guest sees them; the chipset is left out.
fn devices(console: &mut Console) -> Vec<String> {
    console.type_line(
        "sh cd /sys/bus/pci/devices; for d in 0000:00:*; do echo dev ${d#0000:00:} $(cat $d/vendor $d/device); done; echo done",
    );
    let lines = console.wait("TINY sh done");
    let devices = lines.lines().filter_map(|line| line.trim().strip_prefix("TINY sh dev "));
    let devices = devices.filter(|device| !device.starts_with("1f.") && !device.starts_with("00."));
    devices.map(|device| device.replace("0x", "")).collect()
}

/// What the reference's command line gives with pc-q35-9.2 and QEMU 10.0, seen by `query-pci`: balloon, serial bus, USB,
/// entropy, screen, sound, one network, two disks.
const OF_REFERENCE: [&str; 9] = [
    "01.0 1af4 1002",
    "02.0 1af4 1003",
    "03.0 1b36 000d",
    "04.0 1af4 1005",
    "05.0 1af4 1050",
    "06.0 8086 293e",
    "07.0 1af4 1000",
    "08.0 1af4 1001",
    "09.0 1af4 1001",
];

#[test]
fn devices_are_where_the_reference_has_them_and_stay_when_others_come_and_go() {
    let rig = Rig::with_guest();
    let disks = ["/tmp/disk.img", "/tmp/two.img", "/tmp/three.img"];
    for disk in &disks[1..] {
        fs::File::create(rig.path(&disk[5..])).unwrap().set_len(1 << 20).unwrap();
        rig.own(&disk[5..]);
    }
    let configure = |network: serde_json::Value, disks: &[&str]| {
        let drives: Vec<_> = disks.iter().map(|disk| json!({"type": "raw", "resource": disk})).collect();
        // With two heads, as an emulated machine with one gets a simpler screen than the reference's.
        rig.configure(&json!({}), &json!({"network": network, "drives": drives, "display": {"outputs": 2}}));
    };
    let run = || {
        let vm = rig.start(None);
        let mut console = vm.console();
        console.wait("ready");
        let devices = devices(&mut console);
        console.type_line("poweroff");
        assert_eq!(vm.end(Duration::from_secs(30)).code, 0);
        devices
    };
    configure(json!([{"type": "user"}]), &disks[..2]);
    assert_eq!(run(), OF_REFERENCE);
    // Without the network, and with a disk that is not the last.
    configure(json!([]), &[disks[0], disks[2], disks[1]]);
    let expected = [&OF_REFERENCE[..6], &OF_REFERENCE[7..], &["0a.0 1af4 1001"]].concat();
    assert_eq!(run(), expected);
    configure(json!([{"type": "user"}]), &disks);
    assert_eq!(run(), [&OF_REFERENCE[..], &["0a.0 1af4 1001"]].concat());
}

#[test]
fn a_machine_of_the_reference_keeps_its_type_its_places_and_its_address() {
    let rig = Rig::with_guest();
    rig.write("data/uuid.txt", "2f3c1f9e-8e6e-4d6e-9f0e-0d5f6f2d9b11\n");
    rig.write("data/VM.ftl.yaml", "- - \"-machine\"\n  - \"pc-q35-9.1,usb=off\"\n");
    rig.configure(&json!({}), &json!({"network": [{"type": "user"}], "display": {"outputs": 2}}));
    let vm = rig.start(None);
    let mut console = vm.console();
    console.wait("ready");
    assert_eq!(devices(&mut console), OF_REFERENCE[..8]);
    let mut ask = |command: &str| {
        console.type_line(&format!("sh {command}; echo done"));
        console.wait("TINY sh done")
    };
    // What QEMU gives to a first interface without an address, as the reference did.
    assert!(ask("cat /sys/class/net/eth0/address").contains("52:54:00:12:34:56"));
    assert!(ask("cat /sys/class/dmi/id/product_version").contains("pc-q35-9.1"));
    assert!(ask("cat /sys/class/dmi/id/product_uuid").contains("2f3c1f9e-8e6e-4d6e-9f0e-0d5f6f2d9b11"));
}

#[test]
fn a_machine_type_that_qemu_no_longer_has_is_explained() {
    let rig = Rig::new();
    rig.write("data/machine.json", r#"{"machineType": "pc-q35-2.3"}"#);
    rig.configure(&json!({}), &json!({"drives": []}));
    let end = rig.start(None).end(Duration::from_secs(10));
    assert_eq!((end.code, &end.outcome["reason"]), (70, &json!("StartFailed")), "{}", end.log);
    let message = end.outcome["message"].as_str().unwrap();
    assert!(message.contains("machine type that this image's QEMU does not have") && message.contains("pc-q35-2.3"));
}
