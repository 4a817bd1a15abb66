//! The options that decide about a command line, and the machine of each choice among their values.

use crate::api::vm::conditions::ConditionReason;
use crate::runner::config;
use crate::runner::failure::Problem;
use crate::runner::machine::{
    Acceleration, Certificate, Disk, DiskKind, FirmwareFiles, Instance, Screen, cpu_model, testing,
};
use crate::runner::qemu::*;
use crate::runner::spec::{self, Firmware, Source, Spec};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Each option with all of its values, as the configuration has them where it has a key for them.
pub const OPTIONS: [(&str, &[&str]); 20] = [
    (
        "firmware",
        &["bios", "uefi", "uefi-4m", "secure", "secure-4m"],
    ),
    ("bootMenu", &["no", "yes"]),
    ("useTpm", &["no", "yes"]),
    ("memory", &["ordinary", "huge", "shared"]),
    (
        "accelerator",
        &["kvm", "tcg", "tcg-for-want-of-kvm", "none"],
    ),
    ("cpuModel", &["host", "EPYC,-svm"]),
    ("cpus", &["1", "4", "2x1x2x1", "32"]),
    ("rtcBase", &["utc", "localtime", "2026-01-31T12:00:00"]),
    ("rtcClock", &["rt", "host", "vm"]),
    ("network", &["none", "user", "tap", "two"]),
    ("cd", &["none", "iso", "two"]),
    ("disks", &["none", "block", "file", "two"]),
    ("bootindex", &["no", "yes"]),
    ("cloudInit", &["no", "yes"]),
    ("outputs", &["1", "2"]),
    ("spice", &["none", "open", "password", "tls"]),
    ("address", &["any", "127.0.0.1"]),
    ("streamingVideo", &["unset", "off", "all", "filter"]),
    ("usbRedirects", &["0", "2"]),
    ("hardware", &["present", "earlier"]),
];

/// A value of each option, by its place in the list.
pub type Choice = [usize; OPTIONS.len()];

/// The chosen value of that option.
pub fn value(choice: &Choice, option: &str) -> &'static str {
    let at = OPTIONS
        .iter()
        .position(|(name, _)| *name == option)
        .unwrap();
    OPTIONS[at].1[choice[at]]
}

/// Random numbers (SplitMix64), the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// This number of random choices. They are the same in each run.
pub fn choices(count: usize) -> Vec<Choice> {
    let mut random = Random(1);
    let mut choice = || OPTIONS.map(|(_, values)| random.below(values.len()));
    (0..count).map(|_| choice()).collect()
}

/// Its configuration file. What may have a comma has one.
fn config(choice: &Choice) -> Value {
    let chosen = |option| value(choice, option);
    let bootindex = |n: u32| (chosen("bootindex") == "yes").then_some(n);
    let cd =
        |n: u32, file: &str| json!({"type": "ide-cd", "file": file, "bootindex": bootindex(n)});
    let disk = |n: u32, key: &str, path: &str| json!({"type": "raw", key: path, "bootindex": bootindex(n)});
    let (block, file) = (
        disk(1000, "device", "/dev/system,disk"),
        disk(1001, "file", "/images/a,b.img"),
    );
    let cds = match chosen("cd") {
        "none" => vec![],
        "iso" => vec![cd(0, "/iso/a,b.iso")],
        _ => vec![cd(0, "/iso/a,b.iso"), cd(1, "")],
    };
    let disks = match chosen("disks") {
        "none" => vec![],
        "block" => vec![block],
        "file" => vec![file],
        _ => vec![block, file],
    };
    let user =
        json!({"type": "user", "net": "10.0.3.0/24", "forward": [{"port": 8022, "guestPort": 22}]});
    let networks = match chosen("network") {
        "none" => vec![],
        "user" => vec![user],
        "tap" => vec![json!({"type": "tap", "bridge": "lan0"})],
        _ => vec![
            json!({"type": "user", "device": "e1000e"}),
            json!({"type": "tap", "device": "usb-net"}),
        ],
    };
    let drives = [cds, disks].concat();
    let mut vm = json!({
        "name": "test-vm", "firmware": chosen("firmware"), "bootMenu": chosen("bootMenu") == "yes",
        "useTpm": chosen("useTpm") == "yes", "maximumRam": "4 GiB",
        "cpuModel": chosen("cpuModel"), "rtcBase": chosen("rtcBase"), "rtcClock": chosen("rtcClock"),
        "network": networks, "drives": drives,
        "display": {"outputs": chosen("outputs").parse::<u32>().unwrap()},
    });
    match chosen("memory") {
        "huge" => vm["hugepages"] = json!("2Mi"),
        "shared" => vm["sharedMemory"] = json!(true),
        _ => {}
    }
    match chosen("cpus") {
        "2x1x2x1" => {
            for (key, count) in [
                ("sockets", 2),
                ("diesPerSocket", 1),
                ("coresPerDie", 2),
                ("threadsPerCore", 1),
            ] {
                vm[key] = json!(count);
            }
        }
        count => vm["maximumCpus"] = json!(count.parse::<u32>().unwrap()),
    }
    if chosen("spice") != "none" {
        let mut spice =
            json!({"port": 5812, "usbRedirects": chosen("usbRedirects").parse::<u32>().unwrap()});
        if chosen("address") != "any" {
            spice["address"] = json!(chosen("address"));
        }
        if chosen("streamingVideo") != "unset" {
            spice["streamingVideo"] = json!(chosen("streamingVideo"));
        }
        vm["display"]["spice"] = spice;
    }
    json!({"/Runner": {"vm": vm}})
}

/// Its machine, as a look at a host would settle it.
pub fn machine(choice: &Choice) -> Machine {
    let chosen = |option| value(choice, option);
    let spec =
        Spec::from_config(&config::parse(&config(choice).to_string()).unwrap().config).unwrap();
    let macs: Vec<String> = (0..spec.vm.network.len())
        .map(|n| format!("52:54:00:12:34:{n:02x}"))
        .collect();
    let is_present = chosen("hardware") == "present";
    let disks: Vec<Disk> = spec
        .disks
        .iter()
        .map(|configured| disk(configured, is_present))
        .collect();
    let names: Vec<String> = disks
        .iter()
        .map(|disk| disk.path.display().to_string())
        .collect();
    let acceleration = match chosen("accelerator") {
        "kvm" => Acceleration::Kvm,
        "tcg" => Acceleration::Tcg,
        "none" => Acceleration::Unset,
        _ => Acceleration::TcgFallback(Problem::new(ConditionReason::KvmNotAvailable, "")),
    };
    let certificate = (chosen("spice") == "tls").then(|| {
        let [chain, key, authority] =
            ["/c,d/tls.crt", "/c,d/tls.key", "/c,d/ca.crt"].map(PathBuf::from);
        Certificate {
            chain,
            key,
            authority,
        }
    });
    let emulated = acceleration.is_emulation();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let pci_slots = if is_present {
        testing::layout(&macs, &names)
    } else {
        testing::earlier_layout(&macs, &names)
    };
    Machine {
        uuid: "7a37e3b4-5bd0-4f7b-8a0c-b0e2a1b2c3d4".to_owned(),
        machine_type: "pc-q35-10.0".to_owned(),
        cpu_model: cpu_model(&spec.vm.cpu_model, &acceleration),
        acceleration,
        firmware: firmware(spec.vm.firmware),
        pci_slots,
        instance: Instance {
            id: None,
            vm: "vm".to_owned(),
        },
        iommu: !is_present,
        panic_device: is_present,
        generation_id: is_present.then(|| "1c4f2f0e-6f6a-4a1e-9d0c-3b1f5a7c9e24".to_owned()),
        macs,
        cds: spec.cds.clone(),
        disks,
        seed: (chosen("cloudInit") == "yes").then(|| "/run/seed.img".into()),
        screen: if emulated && spec.vm.display.outputs == 1 {
            Screen::Vga
        } else {
            Screen::VirtioVga
        },
        ticketing: chosen("spice") == "password",
        certificate,
        spec,
    }
}

/// A file is where the page cache cannot be passed by.
pub fn disk(disk: &spec::Disk, has_serial: bool) -> Disk {
    let (kind, direct) = match &disk.source {
        Source::Device(_) => (DiskKind::Device, true),
        _ => (DiskKind::File, false),
    };
    Disk {
        path: disk.source.path().clone(),
        kind,
        serial: has_serial.then(|| format!("a-{kind:?}")),
        bootindex: disk.bootindex,
        size: 0,
        direct,
    }
}

/// The firmware files of a node.
pub fn firmware(firmware: Firmware) -> Option<FirmwareFiles> {
    let rom = format!("/fw,s/{}.fd", firmware.as_str()).into();
    let files = FirmwareFiles {
        rom,
        vars: "/data/fw-vars.fd".into(),
        secure: firmware.is_secure(),
    };
    (firmware != Firmware::Bios).then_some(files)
}
