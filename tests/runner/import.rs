//! `vm-runner import` as a process, with the `qemu-img` of its image. The server is behind a proxy, because an import refuses
//! loopback addresses.

mod copies;

use crate::fixture::{Fixture, LIMIT};
use crate::host::{LoopDevice, SmallVolume};
use crate::processes;
use serde_json::Value;
use std::fs::{self, File};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};
use support::web::{Reply, Request, Web};

const MIB: usize = 1 << 20;

/// The files of a VM's pod, and a server with an image.
struct Import {
    fixture: Fixture,
    web: Web,
    /// The disk in the pod.
    to: &'static str,
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
        let reply = move |request: &Request| Reply::image(request, &image, "\"one\"");
        let web = fixture.network.enter(|| Web::start(reply));
        let to = "/tmp/disk/disk.img";
        Self { fixture, web, to }
    }

    /// The disk becomes a device of this size with old contents, whose first and last MiB are zeros.
    fn onto_device(&mut self, mib: usize) -> LoopDevice {
        let mut contents = vec![0xaa; mib * MIB];
        contents[..MIB].fill(0);
        contents[(mib - 1) * MIB..].fill(0);
        fs::write(self.fixture.path("device"), contents).unwrap();
        self.to = "/tmp/system-disk";
        self.device("device", "system-disk")
    }

    /// That file as a device with that name in the pod.
    fn device(&self, file: &str, name: &str) -> LoopDevice {
        let device = LoopDevice::of(&self.fixture.path(file));
        let number = device.0.trim_start_matches("/dev/loop");
        let node = self.fixture.path(name);
        let made = Command::new("mknod")
            .args(["-m", "666"])
            .arg(node)
            .args(["b", "7", number])
            .status();
        assert!(made.unwrap().success());
        device
    }

    /// Serves other responses.
    fn serve(&mut self, reply: impl Fn(&Request) -> Reply + Send + Sync + 'static) {
        self.web = self.fixture.network.enter(|| Web::start(reply));
    }

    /// That file, compressed by a program of the runner's image with these options.
    fn packed_with(&self, program: &str, options: &[&str], file: &str) -> Vec<u8> {
        let mut pack = self.fixture.image_program(&format!("/usr/bin/{program}"));
        let input = File::open(self.fixture.path(file)).unwrap();
        let packed = pack.arg("-c").args(options).stdin(input).output().unwrap();
        assert!(packed.status.success(), "{packed:?}");
        packed.stdout
    }

    fn packed(&self, program: &str, file: &str) -> Vec<u8> {
        self.packed_with(program, &[], file)
    }

    /// The contents of the disk.
    fn disk(&self) -> Vec<u8> {
        let is_device = self.to == "/tmp/system-disk";
        let file = if is_device { "device" } else { "disk/disk.img" };
        fs::read(self.fixture.path(file)).unwrap()
    }

    fn start(&self) -> Child {
        self.start_with(&["--url=http://images.example.org/debian.qcow2"])
    }

    fn start_with(&self, options: &[&str]) -> Child {
        let log = |name: &str| File::create(self.fixture.path(name)).unwrap();
        log("end");
        let mut command = self.fixture.image_program("/tmp/vm-runner");
        command
            .args(["import", "--data=/tmp/vm-data", "--to", self.to])
            .args(options)
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

fn signal(signal: &str, process: u32) {
    let kill = Command::new("kill")
        .args([signal, &process.to_string()])
        .status();
    assert!(kill.unwrap().success());
}

/// Data with holes that a compressed image does not contain.
fn content() -> Vec<u8> {
    let numbers = (0_u64..).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    let mut content: Vec<u8> = numbers.take(8 * MIB).collect();
    content[2 * MIB..4 * MIB].fill(0);
    content
}

/// 64 MiB of zeros behind a boot sector, which are some KiB when they are compressed.
fn zeros() -> Vec<u8> {
    let mut zeros = vec![0; 64 * MIB];
    zeros[510..512].copy_from_slice(&[0x55, 0xaa]);
    zeros
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

#[test]
fn a_device_gets_the_disk_of_the_image_and_zeros_behind_it() {
    for options in [&[][..], &["-c"]] {
        let mut import = Import::of(&content(), options, |_| {});
        let _device = import.onto_device(20);
        let (code, outcome, progress) = import.import();
        assert_eq!(
            (code, &outcome["reason"]),
            (Some(0), &"Fetched".into()),
            "{outcome}"
        );
        assert_eq!(outcome["bytes"], 8 * MIB, "{outcome}");
        assert!(progress.contains("Conversion"), "{progress}");
        let device = import.disk();
        assert!(device[..8 * MIB] == content(), "{options:?}");
        let file = &device[8 * MIB..][..MIB];
        assert!(file.iter().all(|byte| *byte == 0));
        let (code, outcome, _) = import.import();
        assert_eq!(
            (code, &outcome["reason"]),
            (Some(0), &"AlreadyThere".into())
        );
        assert_eq!(import.web.requests().len(), 1);
        let data = fs::read_dir(import.fixture.path("vm-data")).unwrap();
        let names = data.map(|it| it.unwrap().file_name().into_string().unwrap());
        assert!(!names.into_iter().any(|name| name.starts_with("import-")));
    }
}

#[test]
fn a_device_without_space_for_the_disk_and_the_file_is_not_changed() {
    let mut import = Import::of(&content(), &[], |_| {});
    let _device = import.onto_device(12);
    let before = import.disk();
    let (code, outcome, _) = import.import();
    assert_eq!(
        (code, &outcome["reason"]),
        (Some(25), &"TooLarge".into()),
        "{outcome}"
    );
    // 8 MiB of the disk; 6 MiB of data and the metadata of the file.
    let message = outcome["message"].as_str().unwrap();
    assert!(message.contains("use a PVC of at least 15Mi"), "{message}");
    assert!(import.disk() == before);
    // Another image fits.
    import.serve(|_| Reply::new(200, &[], b"<html>".to_vec()));
    let (_, outcome, _) = import.import();
    assert_eq!(outcome["reason"], "FormatNotSupported", "{outcome}");
    assert!(import.disk() == before);
}

#[test]
fn an_importer_that_is_killed_again_and_again_fills_the_disk() {
    let content = content().repeat(8);
    for is_device in [false, true] {
        let mut import = Import::of(&content, &[], |_| {});
        let _device = is_device.then(|| import.onto_device(128));
        let begin = Instant::now();
        let end = import.import();
        assert_eq!(end.0, Some(0), "{}", end.1);
        let whole = begin.elapsed();
        // The same disk again: the record and the contents are those of a new VM.
        let mut import = Import::of(&content, &[], |_| {});
        let _device = is_device.then(|| import.onto_device(128));
        for kill in 1..=10 {
            let mut child = import.start();
            sleep(whole * kill / 11);
            // A container ends with all its processes.
            signal("-STOP", child.id());
            let converter = processes::children(child.id());
            for process in converter.into_iter().chain([child.id()]) {
                signal("-KILL", process);
            }
            child.wait().unwrap();
        }
        let (code, outcome, _) = import.import();
        assert_eq!(code, Some(0), "{outcome}");
        assert!(
            import.disk()[..content.len()] == content,
            "device: {is_device}"
        );
    }
}

#[test]
fn a_compressed_image_is_unpacked_by_the_programs_of_the_runner() {
    for (program, is_qcow2) in [("gzip", true), ("xz", false), ("zstd", true)] {
        for is_device in [false, true] {
            let mut import = Import::of(&content(), &[], |_| {});
            let mut raw = content();
            raw[510..512].copy_from_slice(&[0x55, 0xaa]);
            fs::write(import.fixture.path("raw"), &raw).unwrap();
            let plain = match is_qcow2 {
                true => "image.qcow2",
                false => "raw",
            };
            let packed = import.packed(program, plain);
            import.serve(move |request| Reply::image(request, &packed, "\"packed\""));
            let _device = is_device.then(|| import.onto_device(24));
            let (code, outcome, progress) = import.import();
            assert_eq!(code, Some(0), "{program}: {outcome}");
            assert_eq!(outcome["bytes"], 8 * MIB, "{program}: {outcome}");
            assert!(progress.contains("Conversion"), "{progress}");
            let disk = import.disk();
            let expected = match is_qcow2 {
                true => content(),
                false => raw,
            };
            assert!(
                disk[..8 * MIB] == expected,
                "{program}, device: {is_device}"
            );
            // Nothing of the files is left.
            if is_device {
                assert!(disk[23 * MIB..].iter().all(|byte| *byte == 0), "{program}");
            } else {
                assert_eq!(import.files(), ["disk.img"]);
            }
        }
    }
}

#[test]
fn an_unpacked_image_that_does_not_fit_is_refused() {
    let mut import = Import::of(&content(), &[], |_| {});
    fs::write(import.fixture.path("raw"), zeros()).unwrap();
    let packed = import.packed("xz", "raw");
    let damaged = [&packed[..packed.len() / 2], &[0xff; 64]].concat();
    for (bytes, reason) in [(packed, "TooLarge"), (damaged, "ImageRefused")] {
        let mib = if reason == "TooLarge" { 20 } else { 80 };
        import.serve(move |request| Reply::image(request, &bytes, reason));
        let _device = import.onto_device(mib);
        let (_, outcome, _) = import.import();
        assert_eq!(outcome["reason"], reason, "{outcome}");
        fs::remove_file(import.fixture.path("system-disk")).unwrap();
    }
}

/// Anybody can publish a small file that needs gigabytes of memory.
#[test]
fn an_image_whose_dictionary_needs_too_much_memory_is_refused() {
    let mut import = Import::of(&content(), &[], |_| {});
    let (fits, too_large) = (("Fetched", 26), ("ImageRefused", 28));
    for (reason, log) in [fits, too_large] {
        let xz = format!("--lzma2=dict={}MiB,mf=hc4,mode=fast", (1 << log) / MIB);
        let zstd = format!("--long={log}");
        for (program, option) in [("xz", xz), ("zstd", zstd)] {
            let packed = import.packed_with(program, &[&option], "image.qcow2");
            import.serve(move |request| Reply::image(request, &packed, "\"packed\""));
            let (_, outcome, _) = import.import();
            assert_eq!(outcome["reason"], reason, "{program}: {outcome}");
            let left = import.files();
            assert_eq!(left.is_empty(), reason != "Fetched", "{program}: {left:?}");
            for name in ["vm-data", "disk"] {
                fs::remove_dir_all(import.fixture.path(name)).unwrap();
                fs::create_dir(import.fixture.path(name)).unwrap();
            }
        }
    }
}

#[test]
fn a_download_for_another_format_is_not_resumed() {
    let mut import = Import::of(&content(), &[], |_| {});
    let image = fs::read(import.fixture.path("image.qcow2")).unwrap();
    import.serve(move |request| Reply {
        stall: (request.n == 0).then_some(3 * MIB),
        ..Reply::image(request, &image, "\"one\"")
    });
    let _device = import.onto_device(20);
    let url = "--url=http://images.example.org/debian.qcow2";
    let (_, outcome, _) = import.end(import.start_with(&[url, "--format=raw", "--deadline=2"]));
    assert_eq!(outcome["reason"], "DeadlineExceeded", "{outcome}");
    // The raw image would begin where the disk begins.
    let (_, outcome, _) = import.import();
    assert_eq!(outcome["reason"], "Fetched", "{outcome}");
    assert!(import.disk()[..8 * MIB] == content());
}

#[test]
fn an_unpacked_disk_larger_than_its_volume_is_refused() {
    let mut import = Import::of(&content(), &[], |_| {});
    let _volume = SmallVolume::of(&import.fixture, "small", 24);
    import.to = "/tmp/small/disk.img";
    fs::write(import.fixture.path("raw"), zeros()).unwrap();
    let packed = import.packed("gzip", "raw");
    import.serve(move |request| Reply::image(request, &packed, "\"one\""));
    let (_, outcome, _) = import.import();
    assert_eq!(outcome["reason"], "TooLarge", "{outcome}");
}

#[test]
fn an_image_that_does_not_fit_beside_its_file_is_refused_once() {
    // The downloaded file has 6 MiB, and so has the data of the disk.
    for mib in [4, 10] {
        let mut import = Import::of(&content(), &[], |_| {});
        let volume = SmallVolume::of(&import.fixture, "small", mib);
        import.to = "/tmp/small/disk.img";
        let (_, outcome, _) = import.import();
        assert_eq!(outcome["reason"], "TooLarge", "{mib}: {outcome}");
        let message = outcome["message"].as_str().unwrap();
        assert!(message.contains("increase the size"), "{message}");
        drop(volume);
    }
}

#[test]
fn a_redirect_to_an_address_of_the_pod_is_refused() {
    let mut import = Import::of(&content(), &[], |_| {});
    import.serve(|_| Reply::new(302, &[("Location", "http://127.0.0.1/")], Vec::new()));
    let (_, outcome, _) = import.import();
    assert_eq!(outcome["reason"], "AddressRefused", "{outcome}");
    assert_eq!(import.web.requests().len(), 1);
}
