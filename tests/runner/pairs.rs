//! Each value of an option with each value of each other option, in as few VMs as possible: QEMU starts all of them.

use crate::display::certify;
use crate::fixture::{DISPLAY, Fixture};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use support::web::Authority;

/// Options with all of their values, without those that need a special machine or pod: KVM, huge pages, taps, block
/// devices. These have their own tests (`kvm`, `guest_memory`, `network`, `storage`).
const OPTIONS: [(&str, &[&str]); 18] = [
    (
        "firmware",
        &["bios", "uefi", "uefi-4m", "secure", "secure-4m"],
    ),
    ("bootMenu", &["no", "yes"]),
    ("useTpm", &["no", "yes"]),
    ("sharedMemory", &["no", "yes"]),
    ("accelerator", &["tcg", "auto"]),
    ("cpuModel", &["host", "qemu64,-svm"]),
    ("cpus", &["1", "4", "2x1x2x1", "32"]),
    ("rtcBase", &["utc", "localtime", "2026-01-31T12:00:00"]),
    ("rtcClock", &["rt", "host", "vm"]),
    ("network", &["none", "user", "two"]),
    ("cd", &["none", "iso", "two"]),
    ("disks", &["none", "file", "two"]),
    ("bootindex", &["no", "yes"]),
    ("cloudInit", &["no", "yes"]),
    ("outputs", &["1", "2"]),
    ("spice", &["none", "open", "password", "tls"]),
    ("streamingVideo", &["unset", "off", "all", "filter"]),
    ("usbRedirects", &["0", "2"]),
];

type Choice = [usize; OPTIONS.len()];
type Pair = [(usize, usize); 2];

fn pairs(choice: &Choice) -> impl Iterator<Item = Pair> {
    let first = (0..OPTIONS.len()).flat_map(|a| (a + 1..OPTIONS.len()).map(move |b| (a, b)));
    first.map(|(a, b)| [(a, choice[a]), (b, choice[b])])
}

/// Pseudo-random numbers, always the same (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) >> 1).unwrap() % end
    }
}

/// Choices that cover each pair. The next choice is the one of many random choices that covers most of the missing
/// pairs.
fn choices() -> Vec<Choice> {
    let mut random = Random(1);
    let mut missing: BTreeSet<Pair> = BTreeSet::new();
    for (a, (_, of_a)) in OPTIONS.iter().enumerate() {
        for (b, (_, of_b)) in OPTIONS.iter().enumerate().skip(a + 1) {
            let values = (0..of_a.len()).flat_map(|x| (0..of_b.len()).map(move |y| (x, y)));
            missing.extend(values.map(|(x, y)| [(a, x), (b, y)]));
        }
    }
    let mut chosen = Vec::new();
    while let Some([(a, x), (b, y)]) = missing.first().copied() {
        let mut candidate = || {
            let mut choice = OPTIONS.map(|(_, values)| random.below(values.len()));
            (choice[a], choice[b]) = (x, y);
            choice
        };
        let has = |choice: &Choice| pairs(choice).filter(|pair| missing.contains(pair)).count();
        let best = (0..200).map(|_| candidate()).max_by_key(has).unwrap();
        for pair in pairs(&best) {
            missing.remove(&pair);
        }
        chosen.push(best);
    }
    chosen
}

fn value(choice: &Choice, option: &str) -> &'static str {
    let at = OPTIONS
        .iter()
        .position(|(name, _)| *name == option)
        .unwrap();
    OPTIONS[at].1[choice[at]]
}

/// Prepares the fixture for the configuration.
fn configure(fixture: &Fixture, choice: &Choice, authority: &Path) {
    let chosen = |option| value(choice, option);
    let yes = |option| chosen(option) == "yes";
    let bootindex = |n: u32| yes("bootindex").then_some(n);
    let cd =
        |n: u32, file: &str| json!({"type": "ide-cd", "file": file, "bootindex": bootindex(n)});
    let disk = |n: u32, file: &str| json!({"type": "raw", "file": format!("/tmp/data/{file}"), "size": "1 MiB", "bootindex": bootindex(n)});
    let cds = match chosen("cd") {
        "none" => vec![],
        "iso" => vec![cd(0, "a,b.iso")],
        _ => vec![cd(0, "a,b.iso"), cd(1, "")],
    };
    let disks = match chosen("disks") {
        "none" => vec![],
        "file" => vec![disk(2, "a,b.img")],
        _ => vec![disk(2, "a,b.img"), disk(3, "c.img")],
    };
    let networks = match chosen("network") {
        "none" => vec![],
        "user" => vec![json!({"type": "user", "net": "10.0.3.0/24"})],
        _ => vec![
            json!({"type": "user", "device": "e1000e"}),
            json!({"type": "user", "device": "usb-net"}),
        ],
    };
    let drives = [cds, disks].concat();
    let mut vm = json!({
        "firmware": chosen("firmware"), "bootMenu": yes("bootMenu"), "useTpm": yes("useTpm"),
        "sharedMemory": yes("sharedMemory"), "accelerator": chosen("accelerator"), "cpuModel": chosen("cpuModel"),
        "maximumRam": "128 MiB", "rtcBase": chosen("rtcBase"), "rtcClock": chosen("rtcClock"),
        "network": networks, "drives": drives, "powerdownTimeout": 0,
        "display": {"outputs": chosen("outputs").parse::<u32>().unwrap()},
    });
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
    for name in ["display-password", "tls.crt", "tls.key", "ca.crt"] {
        let _ = fs::remove_file(fixture.path("config").join(name));
    }
    match chosen("spice") {
        "password" => fixture.write("config/display-password", "secret"),
        "tls" => certify(fixture, authority),
        _ => {}
    }
    if chosen("spice") != "none" {
        let redirects = chosen("usbRedirects").parse::<u32>().unwrap();
        vm["display"]["spice"] = json!({"port": DISPLAY, "usbRedirects": redirects});
        if chosen("streamingVideo") != "unset" {
            vm["display"]["spice"]["streamingVideo"] = json!(chosen("streamingVideo"));
        }
    }
    let seed = json!({"metaData": {"instance-id": "one"}, "userData": {"hostname": "a"}});
    let runner = if yes("cloudInit") {
        json!({"cloudInit": seed})
    } else {
        json!({})
    };
    fixture.configure(&runner, &vm);
}

#[test]
fn each_two_values_of_options_are_started_together_by_qemu() {
    let choices = choices();
    assert!(choices.len() < 60, "{}", choices.len());
    let (fixture, authority) = (Fixture::new(), tempfile::tempdir().unwrap());
    Authority::make(authority.path());
    fs::create_dir(fixture.path("images")).unwrap();
    fs::write(fixture.path("images/a,b.iso"), vec![0; 1 << 20]).unwrap();
    for choice in &choices {
        configure(&fixture, choice, authority.path());
        println!(
            "{}",
            OPTIONS
                .map(|(name, _)| format!("{name}={}", value(choice, name)))
                .join(" ")
        );
        let vm = fixture.start(None);
        vm.reaches("Booting");
        vm.signal("-TERM");
        let end = vm.end();
        assert_eq!(
            (end.code, &end.outcome["reason"]),
            (10, &json!("Stopped")),
            "{}",
            end.log
        );
        let rejected =
            |line: &&str| line.contains("qemu-system-x86_64:") || line.contains("QEMU rejects");
        assert_eq!(end.log.lines().find(rejected), None, "{}", end.log);
    }
    println!("{} machines", choices.len());
}
