//! Properties of every command line, with any combination of options.

use crate::runner::qemu::tests::line::{Line, lines};
use crate::runner::qemu::tests::options::{Choice, OPTIONS, choices, machine, value};
use crate::runner::qemu::tests::rules;
use crate::runner::qemu::*;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// So many that each three values of different options meet.
const COUNT: usize = 3000;

static MACHINES: LazyLock<Vec<(Choice, Vec<Line>)>> = LazyLock::new(|| {
    let line = |choice: Choice| (choice, lines(&arguments(&machine(&choice), DESCRIPTORS)));
    choices(COUNT).into_iter().map(line).collect()
});

/// For messages.
fn reported(choice: &Choice) -> String {
    OPTIONS
        .map(|(name, _)| format!("{name}={}", value(choice, name)))
        .join(" ")
}

#[test]
fn each_argument_is_there_for_known_reasons_whichever_options_meet() {
    insta::assert_snapshot!("combined", rules::table(&MACHINES));
}

#[test]
fn each_value_of_an_option_meets_each_two_of_others() {
    let choices = choices(COUNT);
    for (a, (name, of_a)) in OPTIONS.iter().enumerate() {
        for (b, (_, of_b)) in OPTIONS.iter().enumerate().take(a) {
            for (c, (_, of_c)) in OPTIONS.iter().enumerate().take(b) {
                let mut met = vec![false; of_a.len() * of_b.len() * of_c.len()];
                for choice in &choices {
                    met[(choice[a] * of_b.len() + choice[b]) * of_c.len() + choice[c]] = true;
                }
                assert!(
                    met.iter().all(|met| *met),
                    "{name} with {} and {}",
                    OPTIONS[b].0,
                    OPTIONS[c].0
                );
            }
        }
    }
}

/// What options in QEMU's own syntax may have; `*` is a word without a key.
const KEYS: [(&str, &[&str]); 17] = [
    ("-display", &["*"]),
    ("-vnc", &["*"]),
    (
        "-sandbox",
        &[
            "*",
            "obsolete",
            "elevateprivileges",
            "spawn",
            "resourcecontrol",
        ],
    ),
    ("-action", &["shutdown"]),
    ("-chardev", &["*", "fd", "server", "wait", "name"]),
    ("-mon", &["chardev", "mode"]),
    ("-name", &["guest", "debug-threads"]),
    ("-uuid", &["*"]),
    (
        "-machine",
        &[
            "*",
            "usb",
            "vmport",
            "dump-guest-core",
            "memory-backend",
            "hpet",
            "smm",
            "pflash0",
            "pflash1",
        ],
    ),
    ("-boot", &["menu"]),
    ("-m", &["*"]),
    ("-tpmdev", &["*", "chardev"]),
    ("-cpu", &["*", "-svm"]),
    (
        "-smp",
        &["*", "maxcpus", "sockets", "dies", "cores", "threads"],
    ),
    ("-accel", &["*"]),
    ("-rtc", &["base", "clock", "driftfix"]),
    (
        "-spice",
        &[
            "port",
            "tls-port",
            "disable-ticketing",
            "seamless-migration",
            "x509-key-file",
            "x509-cert-file",
            "x509-cacert-file",
            "addr",
            "streaming-video",
        ],
    ),
];

#[test]
fn no_value_begins_an_option_of_its_own() {
    for (choice, lines) in MACHINES.iter() {
        for line in lines.iter().filter(|line| line.json.is_empty()) {
            let Some((_, keys)) = KEYS.iter().find(|(option, _)| *option == line.option) else {
                assert!(
                    ["-S", "-nodefaults", "-no-user-config", "-global"]
                        .contains(&line.option.as_str()),
                    "{line:?}"
                );
                continue;
            };
            let key = |part: &str| match part.split_once('=') {
                Some((key, _)) => key.to_owned(),
                None if part.starts_with('-') => part.to_owned(),
                None => "*".to_owned(),
            };
            let has: Vec<String> = line.parts.iter().map(|part| key(part)).collect();
            let once: BTreeSet<&String> = has.iter().collect();
            assert!(
                once.len() == has.len(),
                "{line:?} has something twice; {}",
                reported(choice)
            );
            assert!(
                has.iter().all(|key| keys.contains(&key.as_str())),
                "{line:?}; {}",
                reported(choice)
            );
        }
    }
}

#[test]
fn b28_qemu_adds_nothing_by_itself_and_starts_nothing() {
    let alone = ["-S", "-nodefaults", "-no-user-config"];
    for (choice, lines) in MACHINES.iter() {
        let only = |option: &str| {
            let mut of = lines.iter().filter(|line| line.option == option);
            let first = of
                .next()
                .unwrap_or_else(|| panic!("no {option}; {}", reported(choice)));
            assert!(
                of.next().is_none(),
                "more than one {option}; {}",
                reported(choice)
            );
            first
        };
        for option in alone {
            only(option);
        }
        assert_eq!(only("-display").parts, ["none"]);
        let denied = [
            "obsolete=deny",
            "elevateprivileges=deny",
            "spawn=deny",
            "resourcecontrol=deny",
        ];
        assert_eq!(only("-sandbox").parts, [&["on"], &denied[..]].concat());
        // Nothing that would start a program, or open what the runner has not.
        for netdev in lines.iter().filter(|line| line.option == "-netdev") {
            let keys: Vec<&String> = netdev.json.keys().collect();
            let expected: &[&str] = match netdev.field("type") {
                Some("tap") => &["fd", "id", "type", "vhost"],
                Some("user") => &["hostfwd", "id", "net", "type"],
                other => panic!("{other:?}"),
            };
            assert!(
                keys.iter().all(|key| expected.contains(&key.as_str())),
                "{netdev:?}; {}",
                reported(choice)
            );
        }
        let listens = |line: &&Line| line.option == "-chardev" && line.parts[0] == "socket";
        assert!(
            lines
                .iter()
                .filter(listens)
                .all(|line| line.part("fd").is_some()),
            "{}",
            reported(choice)
        );
    }
}

/// Devices that are on another bus, or on none.
const NOT_ON_PCI: [&str; 11] = [
    "tpm-tis",
    "intel-iommu",
    "isa-serial",
    "virtserialport",
    "usb-tablet",
    "usb-net",
    "usb-redir",
    "ide-cd",
    "hda-duplex",
    "pvpanic",
    "vmgenid",
];

#[test]
fn each_pci_device_has_a_place_of_its_own() {
    for (choice, lines) in MACHINES.iter() {
        let mut slots = BTreeSet::new();
        for device in lines.iter().filter(|line| line.option == "-device") {
            let driver = device.field("driver").unwrap();
            if NOT_ON_PCI.contains(&driver) {
                assert_eq!(device.field("addr"), None, "{device:?}");
                continue;
            }
            assert_eq!(
                device.field("bus"),
                Some("pcie.0"),
                "{device:?}; {}",
                reported(choice)
            );
            let addr = device
                .field("addr")
                .and_then(|addr| addr.strip_prefix("0x"));
            // Only spare ports share a slot, as its functions.
            let (slot, function) = match addr.and_then(|addr| addr.split_once(".0x")) {
                Some((slot, function)) if driver == "pcie-root-port" => (Some(slot), function),
                _ => (addr, "0"),
            };
            let slot = slot.and_then(|slot| u8::from_str_radix(slot, 16).ok());
            // 0 and 31 are the chipset's.
            assert!(
                slot.is_some_and(|slot| (1..31).contains(&slot)),
                "{device:?}; {}",
                reported(choice)
            );
            assert!(
                slots.insert((slot, function)),
                "{device:?} is where another is; {}",
                reported(choice)
            );
        }
        assert!(slots.len() >= 6, "{}", reported(choice));
        let shared = |slot: &Option<u8>| slots.iter().filter(|(other, _)| other == slot).count();
        assert!(
            slots.iter().all(|(slot, _)| [1, 4].contains(&shared(slot))),
            "{slots:?}"
        );
    }
}

/// Where an option names another, and the options that can be meant.
const REFERENCES: [(&str, &[&str]); 11] = [
    ("chardev", &["-chardev"]),
    ("netdev", &["-netdev"]),
    ("tpmdev", &["-tpmdev"]),
    ("audiodev", &["-audiodev"]),
    ("rng", &["-object"]),
    ("iothread", &["-object"]),
    ("memory-backend", &["-object"]),
    ("drive", &["-blockdev"]),
    ("file", &["-blockdev"]),
    ("pflash0", &["-blockdev"]),
    ("pflash1", &["-blockdev"]),
];

#[test]
fn referenced_identifiers_are_defined_once_and_used() {
    for (choice, lines) in MACHINES.iter() {
        let identity = |line: &Line| {
            let of_text = || line.name.split_once(" id=").map(|(_, id)| id.to_owned());
            line.field("id")
                .or(line.field("node-name"))
                .map(str::to_owned)
                .or_else(of_text)
        };
        let defined: Vec<(&str, String)> = lines
            .iter()
            .filter_map(|line| Some((line.option.as_str(), identity(line)?)))
            .collect();
        let unique: BTreeSet<&String> = defined.iter().map(|(_, id)| id).collect();
        assert!(
            unique.len() == defined.len(),
            "{defined:?}; {}",
            reported(choice)
        );
        let mut used = BTreeSet::new();
        for line in lines {
            for (key, options) in REFERENCES {
                let named = line
                    .field(key)
                    .or_else(|| line.part(key).filter(|_| line.json.is_empty()));
                let Some(named) = named else { continue };
                let there = defined
                    .iter()
                    .any(|(option, id)| options.contains(option) && id == named);
                assert!(there, "{line:?} names {named}; {}", reported(choice));
                assert!(
                    used.insert(named.to_owned()),
                    "{named} is used twice; {}",
                    reported(choice)
                );
            }
        }
        let needless = |(option, id): &&(&str, String)| {
            !["-device", "-mon"].contains(option) && !used.contains(id)
        };
        assert_eq!(defined.iter().find(needless), None, "{}", reported(choice));
    }
}

#[test]
fn each_disk_has_a_thread_of_its_own_and_each_descriptor_one_use() {
    for (choice, lines) in MACHINES.iter() {
        let disks = || {
            lines
                .iter()
                .filter(|line| line.field("driver") == Some("virtio-blk-pci"))
        };
        let threads: BTreeSet<&str> = disks().filter_map(|disk| disk.field("iothread")).collect();
        assert_eq!(threads.len(), disks().count(), "{}", reported(choice));
        let of_json = |line: &Line| line.field("fd").map(str::to_owned);
        let descriptor = |line: &Line| of_json(line).or_else(|| line.part("fd").map(str::to_owned));
        let descriptors: Vec<String> = lines.iter().filter_map(descriptor).collect();
        assert!(
            descriptors.iter().collect::<BTreeSet<_>>().len() == descriptors.len(),
            "{descriptors:?}"
        );
    }
}

#[test]
fn the_machine_has_all_the_memory_that_is_set_aside_for_it() {
    for (choice, lines) in MACHINES.iter() {
        let backend = lines
            .iter()
            .find(|line| line.field("id") == Some("pc.ram"))
            .unwrap();
        let of_machine = lines.iter().find(|line| line.option == "-m").unwrap();
        let bytes = backend.json.get("size").and_then(Value::as_u64).unwrap();
        assert_eq!(
            of_machine.parts,
            [format!("{bytes}B")],
            "{}",
            reported(choice)
        );
    }
}
