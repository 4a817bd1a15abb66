//! `vm-runner import` as a process, with the `qemu-img` of its image. The server is behind a proxy, because an import refuses
//! loopback addresses.

use crate::fixture::{Fixture, LIMIT};
use crate::processes;
use serde_json::Value;
use std::fs::{self, File};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};
use support::web::{Reply, Web};

const MIB: usize = 1 << 20;

/// The files of a VM's pod, and a server with an image.
struct Import {
    fixture: Fixture,
    web: Web,
}

/// The result of an import: exit code, termination message and standard output.
type End = (Option<i32>, Value, String);

impl Import {
    /// A server with a qcow2 image of that content, after a change of its bytes.
    fn of(content: &[u8], options: &[&str], change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let fixture = Fixture::new();
        for name in ["vm-data", "disk"] {
            fs::create_dir(fixture.path(name)).unwrap();
        }
        fs::write(fixture.path("raw"), content).unwrap();
        let mut convert = fixture.image_program("/usr/bin/qemu-img");
        convert
            .args(["convert", "-f", "raw", "-O", "qcow2"])
            .args(options);
        let made = convert.args(["/tmp/raw", "/tmp/image.qcow2"]).status();
        assert!(made.unwrap().success());
        let mut image = fs::read(fixture.path("image.qcow2")).unwrap();
        change(&mut image);
        let reply = move |request: &support::web::Request| Reply::image(request, &image, "\"one\"");
        let web = fixture.network.enter(|| Web::start(reply));
        Self { fixture, web }
    }

    fn start(&self) -> Child {
        let log = |name: &str| File::create(self.fixture.path(name)).unwrap();
        log("end");
        let mut command = self.fixture.image_program("/tmp/vm-runner");
        command
            .args(["import", "--data=/tmp/vm-data", "--to=/tmp/disk/disk.img"])
            .arg("--url=http://images.example.org/debian.qcow2")
            .env("http_proxy", format!("http://127.0.0.1:{}", self.web.port))
            .env("VMRUNNER_TERMINATION_LOG", "/tmp/end")
            .stdout(log("out"))
            .stderr(log("err"));
        command.spawn().unwrap()
    }

    fn end(&self, mut child: Child) -> End {
        let code = child.wait().unwrap().code();
        let read = |name: &str| fs::read_to_string(self.fixture.path(name)).unwrap();
        let outcome = serde_json::from_str(&read("end"));
        (
            code,
            outcome.unwrap_or_else(|_| panic!("{}", read("err"))),
            read("out"),
        )
    }

    fn import(&self) -> End {
        self.end(self.start())
    }

    /// Names of the files of the volume.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.fixture.path("disk")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }
}

/// Data with holes that a compressed image does not contain.
fn content() -> Vec<u8> {
    let numbers = (0_u64..).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    let mut content: Vec<u8> = numbers.take(8 * MIB).collect();
    content[2 * MIB..4 * MIB].fill(0);
    content
}

#[test]
fn a_qcow2_image_becomes_a_sparse_disk() {
    for options in [&[][..], &["-c"], &["-c", "-o", "compression_type=zstd"]] {
        let import = Import::of(&content(), options, |_| {});
        let (code, outcome, progress) = import.import();
        assert_eq!(
            (code, &outcome["reason"]),
            (Some(0), &"Fetched".into()),
            "{outcome}"
        );
        assert_eq!(outcome["bytes"], 8 * MIB, "{outcome}");
        let disk = import.fixture.path("disk/disk.img");
        assert!(fs::read(&disk).unwrap() == content(), "{options:?}");
        use std::os::unix::fs::MetadataExt;
        assert!(fs::metadata(&disk).unwrap().blocks() * 512 < 7 * MIB as u64);
        assert!(progress.contains("Conversion"), "{progress}");
        let (code, outcome, _) = import.import();
        assert_eq!(
            (code, &outcome["reason"]),
            (Some(0), &"AlreadyThere".into())
        );
        assert_eq!(
            (import.files(), import.web.requests().len()),
            (vec!["disk.img".into()], 1)
        );
    }
}

#[test]
fn a_damaged_image_is_refused_and_leaves_nothing() {
    // Compressed clusters follow 320 KiB of metadata.
    let compressible: Vec<u8> = (0_u64..1 << 20).flat_map(u64::to_le_bytes).collect();
    let import = Import::of(&compressible, &["-c"], |image| {
        image[400 << 10..][..64 << 10].fill(0xff)
    });
    let (code, outcome, _) = import.import();
    assert_eq!(
        (code, &outcome["reason"]),
        (Some(33), &"ImageRefused".into()),
        "{outcome}"
    );
    assert!(import.files().is_empty(), "{:?}", import.files());
    // A backing file is refused before qemu-img starts.
    let import = Import::of(&content(), &[], |image| {
        image[8..20].copy_from_slice(&[1; 12])
    });
    let (code, outcome, progress) = import.import();
    assert_eq!(
        (code, &outcome["reason"]),
        (Some(33), &"ImageRefused".into()),
        "{outcome}"
    );
    assert!(!progress.contains("Conversion"), "{progress}");
}

#[test]
fn a_signal_ends_the_conversion_and_the_next_process_completes_it() {
    let import = Import::of(&content().repeat(32), &[], |_| {});
    let child = import.start();
    let begin = Instant::now();
    let converter = loop {
        let is_converter = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "qemu-img\n")
        };
        if let Some(pid) = processes::children(child.id())
            .into_iter()
            .find(is_converter)
        {
            break pid;
        }
        assert!(begin.elapsed() < LIMIT, "qemu-img has not started");
        sleep(Duration::from_millis(1));
    };
    let signal = |signal: &str, pid: u32| {
        let status = Command::new("kill")
            .args([signal, &pid.to_string()])
            .status();
        assert!(status.unwrap().success());
    };
    signal("-STOP", converter);
    signal("-TERM", child.id());
    let begin = Instant::now();
    let (code, outcome, _) = import.end(child);
    assert_eq!(
        (code, &outcome["reason"]),
        (Some(30), &"Interrupted".into()),
        "{outcome}"
    );
    // Five times the expected maximum.
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert!(
        !import.files().contains(&"disk.img".to_owned()),
        "{:?}",
        import.files()
    );
    let (code, outcome, _) = import.import();
    assert_eq!(
        (code, &outcome["reason"]),
        (Some(0), &"Fetched".into()),
        "{outcome}"
    );
    assert_eq!(
        (import.files(), import.web.requests().len()),
        (vec!["disk.img".into()], 1)
    );
}
