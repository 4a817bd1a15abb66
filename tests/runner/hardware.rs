//! The hardware that a guest sees, and its stability over starts.

use crate::fixture::{Console, Fixture, LIMIT};
use serde_json::json;
use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// PCI slots with vendor and device, as the guest sees them, without the chipset.
fn devices(console: &mut Console) -> Vec<String> {
    console.type_line(
        "sh cd /sys/bus/pci/devices; for d in 0000:00:*; do echo dev ${d#0000:00:} $(cat $d/vendor $d/device); done; echo done",
    );
    let lines = console.wait("TINY sh done");
    let devices = lines
        .lines()
        .filter_map(|line| line.trim().strip_prefix("TINY sh dev "));
    let devices = devices.filter(|device| !device.starts_with("1f.") && !device.starts_with("00."));
    devices.map(|device| device.replace("0x", "")).collect()
}

/// The devices of the Java VM-Operator's command line with pc-q35-9.2 and QEMU 10.0, from `query-pci`: balloon, serial
/// bus, USB, entropy, screen, sound, one network, two disks.
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

/// The spare root ports of a VM that this version has started first.
const SPARE_PORTS: [&str; 4] = [
    "1e.0 1b36 000c",
    "1e.1 1b36 000c",
    "1e.2 1b36 000c",
    "1e.3 1b36 000c",
];

#[test]
fn devices_are_where_the_reference_has_them_and_stay_when_others_come_and_go() {
    let fixture = Fixture::with_guest();
    let disks = ["/tmp/disk.img", "/tmp/two.img", "/tmp/three.img"];
    for disk in &disks[1..] {
        fs::File::create(fixture.path(&disk[5..]))
            .unwrap()
            .set_len(1 << 20)
            .unwrap();
        fixture.own(&disk[5..]);
    }
    let configure = |network: serde_json::Value, disks: &[&str]| {
        let drives: Vec<_> = disks
            .iter()
            .map(|disk| json!({"type": "raw", "resource": disk}))
            .collect();
        // With two heads, because an emulated VM with one head gets a simpler screen than that of the Java VM-Operator.
        fixture.configure(
            &json!({}),
            &json!({"network": network, "drives": drives, "display": {"outputs": 2}}),
        );
    };
    let run = || {
        let vm = fixture.start(None);
        let mut console = vm.console();
        console.wait("ready");
        let devices = devices(&mut console);
        console.type_line("poweroff");
        assert_eq!(vm.end().code, 0);
        devices
    };
    configure(json!([{"type": "user"}]), &disks[..2]);
    assert_eq!(run(), [&OF_REFERENCE[..], &SPARE_PORTS].concat());
    // Without the network, and with a disk that is not the last.
    configure(json!([]), &[disks[0], disks[2], disks[1]]);
    let third = ["0a.0 1af4 1001"];
    let expected = [&OF_REFERENCE[..6], &OF_REFERENCE[7..], &third, &SPARE_PORTS].concat();
    assert_eq!(run(), expected);
    configure(json!([{"type": "user"}]), &disks);
    assert_eq!(run(), [&OF_REFERENCE[..], &third, &SPARE_PORTS].concat());
}

#[test]
fn a_machine_of_the_reference_keeps_its_type_its_places_and_its_address() {
    let fixture = Fixture::with_guest();
    fixture.write("data/uuid.txt", "2f3c1f9e-8e6e-4d6e-9f0e-0d5f6f2d9b11\n");
    fixture.write(
        "data/VM.ftl.yaml",
        "- - \"-machine\"\n  - \"pc-q35-9.1,usb=off\"\n",
    );
    fixture.configure(
        &json!({}),
        &json!({"network": [{"type": "user"}], "display": {"outputs": 2}}),
    );
    let vm = fixture.start(None);
    let mut console = vm.console();
    console.wait("ready");
    assert_eq!(devices(&mut console), OF_REFERENCE[..8]);
    let mut ask = |command: &str| {
        console.type_line(&format!("sh {command}; echo done"));
        console.wait("TINY sh done")
    };
    // QEMU's default for a first interface without an address, as with the Java VM-Operator.
    assert!(ask("cat /sys/class/net/eth0/address").contains("52:54:00:12:34:56"));
    assert!(ask("cat /sys/class/dmi/id/product_version").contains("pc-q35-9.1"));
    assert!(
        ask("cat /sys/class/dmi/id/product_uuid").contains("2f3c1f9e-8e6e-4d6e-9f0e-0d5f6f2d9b11")
    );
}

/// The identities of the guest's network cards and disks, by slot. The guest finds them one after the other, so it
/// waits for that number.
fn cards_and_disks(console: &mut Console, count: usize) -> Vec<String> {
    let began = Instant::now();
    loop {
        console.type_line(
            "sh modprobe virtio_net; cd /sys/bus/pci/devices; for f in */virtio*/net/*/address */virtio*/block/*/size; do test -e \"$f\" && echo dev ${f%%/*} $(cat $f); done; echo done",
        );
        let lines = console.wait("TINY sh done");
        let devices = lines
            .lines()
            .filter_map(|line| line.trim().strip_prefix("TINY sh dev 0000:00:"));
        let devices: Vec<String> = devices.map(str::to_owned).collect();
        if devices.len() >= count || began.elapsed() > LIMIT {
            return devices;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The recorded choices of a runner for a VM with two networks, two disks and a seed.
const KEPT: &str = r#"{"machineType": "pc-q35-9.2", "pci": {"first": 1, "slots": {"network 52:54:00:00:00:01": 7,
    "network 52:54:00:00:00:02": 8, "disk /tmp/disk.img": 9, "disk /tmp/two.img": 10, "seed": 11}}}"#;

#[test]
fn a_vm_that_we_have_installed_keeps_each_card_and_disk_where_it_was_when_others_come_and_go() {
    let fixture = Fixture::with_guest();
    fixture.write("data/machine.json", KEPT);
    fixture.own("data/machine.json");
    for (disk, mebibytes) in [("two.img", 2), ("three.img", 3)] {
        fs::File::create(fixture.path(disk))
            .unwrap()
            .set_len(mebibytes << 20)
            .unwrap();
        fixture.own(disk);
    }
    let card = |n: u32| {
        (
            format!("52:54:00:00:00:0{n}"),
            json!({"type": "user", "mac": format!("52:54:00:00:00:0{n}")}),
        )
    };
    let run = |cards: &[u32], disks: &[&str]| {
        let count = cards.len() + disks.len();
        let cards: Vec<_> = cards.iter().map(|n| card(*n).1).collect();
        let drives: Vec<_> = disks
            .iter()
            .map(|disk| json!({"type": "raw", "resource": format!("/tmp/{disk}")}))
            .collect();
        fixture.configure(&json!({}), &json!({"network": cards, "drives": drives}));
        let vm = fixture.start(None);
        let mut console = vm.console();
        console.wait("ready");
        let seen = cards_and_disks(&mut console, count);
        console.type_line("sh cat /sys/class/dmi/id/product_version; echo done");
        assert!(console.wait("TINY sh done").contains("pc-q35-9.2"));
        console.type_line("poweroff");
        assert_eq!(vm.end().code, 0);
        seen.into_iter()
            .filter(|device| !device.starts_with("09.0 "))
            .collect::<Vec<_>>()
    };
    let (one, two, three) = (card(1).0, card(2).0, card(3).0);
    assert_eq!(
        run(&[2], &["disk.img", "two.img"]),
        [format!("08.0 {two}"), "0a.0 4096".to_owned()]
    );
    // A new card, and a new disk before the others.
    let seen = run(&[3, 2], &["three.img", "disk.img", "two.img"]);
    assert_eq!(
        seen,
        [
            format!("08.0 {two}"),
            format!("0c.0 {three}"),
            "0a.0 4096".to_owned(),
            "0d.0 6144".to_owned()
        ]
    );
    // The removed devices are back, and the new ones are removed.
    assert_eq!(
        run(&[1], &["disk.img", "three.img"]),
        [format!("07.0 {one}"), "0d.0 6144".to_owned()]
    );
}

#[test]
fn a_network_card_has_the_queues_and_interrupts_that_qemu_gives_by_itself() {
    let fixture = Fixture::new();
    fixture.configure(
        &json!({}),
        &json!({"drives": [], "network": [{"type": "user"}], "powerdownTimeout": 0}),
    );
    let vm = fixture.start(None);
    let card = vm
        .arguments()
        .into_iter()
        .find(|argument| argument.contains("virtio-net"))
        .unwrap();
    let mut card: serde_json::Value = serde_json::from_str(&card).unwrap();
    let properties = |card: &serde_json::Value| {
        let card = card.to_string();
        let machine = [
            "-nodefaults",
            "-display",
            "none",
            "-machine",
            "q35",
            "-S",
            "-monitor",
            "stdio",
        ];
        let network = ["-netdev", "user,id=hostnet0", "-device", &card];
        let mut qemu = fixture.qemu(&[&machine[..], &network].concat());
        let mut qemu = qemu
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        qemu.stdin
            .take()
            .unwrap()
            .write_all(b"info qtree\nquit\n")
            .unwrap();
        String::from_utf8(qemu.wait_with_output().unwrap().stdout).unwrap()
    };
    let explicit = properties(&card);
    for own in ["mq", "rx_queue_size", "tx_queue_size", "vectors"] {
        assert!(
            card.as_object_mut().unwrap().remove(own).is_some(),
            "{own} is not among {card}"
        );
    }
    let by_itself = properties(&card);
    assert!(by_itself.contains("vectors = 4 "), "{by_itself}");
    let differs: Vec<_> = explicit
        .lines()
        .zip(by_itself.lines())
        .filter(|(one, two)| one != two)
        .collect();
    assert!(differs.is_empty(), "{differs:?}");
}

#[test]
fn a_machine_type_that_qemu_no_longer_has_is_explained() {
    let fixture = Fixture::new();
    fixture.write("data/machine.json", r#"{"machineType": "pc-q35-2.3"}"#);
    fixture.configure(&json!({}), &json!({"drives": []}));
    let end = fixture.start(None).end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (70, &json!("StartFailed")),
        "{}",
        end.log
    );
    let message = end.outcome["message"].as_str().unwrap();
    assert!(
        message.contains("the QEMU of this runner image no longer supports the machine type")
            && message.contains("pc-q35-2.3")
    );
}

/// The hardware as the guest sees it: UUID, slots, MAC address, serial number of the first disk, and ACPI devices by
/// which it detects a copy and reports a crash.
fn seen_by_guest(console: &mut Console) -> Vec<String> {
    let mut seen = devices(console);
    seen.extend(cards_and_disks(console, 2));
    for file in [
        "/sys/class/dmi/id/product_uuid",
        "/sys/block/vda/serial",
        "/sys/bus/acpi/devices/QEMUVGID:00/hid",
        "/sys/bus/acpi/devices/QEMU0001:00/hid",
    ] {
        console.type_line(&format!("sh echo value $(cat {file}); echo done"));
        let lines = console.wait("TINY sh done");
        let value = |line: &str| {
            line.trim()
                .strip_prefix("TINY sh value ")
                .map(str::to_owned)
        };
        seen.extend(lines.lines().find_map(value));
    }
    seen
}

/// The value of that key of the device with the text in its argument.
fn device_value(arguments: &[String], device: &str, key: &str) -> String {
    let argument = arguments.iter().find(|argument| argument.contains(device));
    let device: serde_json::Value = serde_json::from_str(argument.unwrap()).unwrap();
    device[key].as_str().unwrap().to_owned()
}

#[test]
fn a_vm_over_its_volumes_keeps_its_hardware_and_a_copy_detects_that_it_is_one() {
    let disk = "/tmp/disk.img";
    let start = |fixture: &Fixture, uid: &str, claim: &str| {
        let network = json!([{"type": "user"}]);
        fixture.configure(&json!({"uid": uid}), &json!({"network": network}));
        let vm = fixture.start_with_claims(&[(disk, claim)]);
        let mut console = vm.console();
        console.wait("ready");
        let arguments = vm.arguments();
        assert!(!arguments.iter().any(|argument| argument.contains("iommu")));
        let seen = seen_by_guest(&mut console);
        console.type_line("poweroff");
        assert_eq!(vm.end().code, 0);
        (seen, device_value(&arguments, "vmgenid", "guid"))
    };
    let fixture = Fixture::with_guest();
    let (hardware, generation) = start(&fixture, "uid-1", "claim-1");
    let text = hardware.join(" ");
    // The name of the disk is that of its directory.
    for part in ["tmp", "QEMUVGID", "QEMU0001", "1e.3 1b36 000c", "02:"] {
        assert!(text.contains(part), "{part} is not in {hardware:?}");
    }
    // The object is created again over the same claims.
    let again = start(&fixture, "uid-2", "claim-1");
    assert_eq!(again, (hardware.clone(), generation.clone()));
    // All claims are copied to another cluster state.
    let (copied, copied_generation) = start(&fixture, "uid-3", "claim-2");
    assert_eq!(copied, hardware);
    assert_ne!(copied_generation, generation);
    assert_eq!(start(&fixture, "uid-3", "claim-2").1, copied_generation);
    // A clone of the disk has new runner data.
    for file in ["uuid.txt", "machine.json"] {
        fs::remove_file(fixture.path("data").join(file)).unwrap();
    }
    let (cloned, cloned_generation) = start(&fixture, "uid-1", "claim-1");
    assert_ne!(cloned_generation, generation);
    let identities = |seen: &[String]| {
        let is_identity = |line: &&String| line.contains("02:") || line.matches('-').count() == 4;
        seen.iter().filter(is_identity).cloned().collect::<Vec<_>>()
    };
    let (before, after) = (identities(&hardware), identities(&cloned));
    assert_eq!((before.len(), after.len()), (2, 2), "{before:?} {after:?}");
    assert!(before.iter().zip(&after).all(|(one, two)| one != two));
}

#[test]
fn a_network_keeps_address_and_slot_when_another_comes_before_it_and_when_its_address_is_configured()
 {
    let fixture = Fixture::new();
    let start = |network: serde_json::Value| {
        let vm = json!({"drives": [], "network": network, "powerdownTimeout": 0});
        fixture.configure(&json!({}), &vm);
        let vm = fixture.start(None);
        vm.reaches("Booting");
        let arguments = vm.arguments();
        vm.signal("-TERM");
        assert_eq!(vm.end().code, 10);
        let card = |id: &str| {
            let id = format!("\"netdev\":\"{id}\"");
            ["mac", "addr"].map(|key| device_value(&arguments, &id, key))
        };
        [card("hostnet0"), card("hostnet1")]
    };
    let user = json!({"type": "user"});
    let fixed = "52:54:00:00:00:09";
    let [first, second] = start(json!([user, user]));
    assert_ne!(first, second);
    let configured = json!({"type": "user", "mac": fixed});
    let [one, two] = start(json!([configured, user]));
    assert_eq!((one, &two), ([fixed.to_owned(), first[1].clone()], &second));
    assert_eq!(start(json!([user, user])), [first, second]);
}

/// A boot sector that reports a crash: it writes bit 0 to the port of pvpanic, and halts.
///
/// ```text
/// mov dx, 0x505
/// mov al, 1
/// out dx, al
/// hlt
/// ```
const CRASHING_GUEST: [u8; 7] = [0xba, 0x05, 0x05, 0xb0, 0x01, 0xee, 0xf4];

#[test]
fn a_crash_that_the_guest_reports_ends_the_vm() {
    let fixture = Fixture::new();
    let mut disk = vec![0; 1 << 20];
    disk[..CRASHING_GUEST.len()].copy_from_slice(&CRASHING_GUEST);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(fixture.path("disk.img"), disk).unwrap();
    fixture.own("disk.img");
    fixture.configure(&json!({}), &json!({}));
    let end = fixture.start(None).end();
    assert_eq!(end.outcome["reason"], "GuestHalted", "{}", end.log);
    let message = end.outcome["message"].as_str().unwrap();
    assert!(message.contains("guest-panicked"), "{message}");
}
