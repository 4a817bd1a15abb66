//! The import of a cloud image onto a disk, compared with `curl` and `qemu-img convert` on the same volume: the time in turns, and the
//! peak memory of the importer with its child. The image is the Debian guest, padded with random data to 3 GiB.

use super::shipped;
use crate::fixture::Fixture;
use crate::processes::children;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const SIZE: u64 = 3 << 30;
const ROUNDS: usize = 3;
/// An address of the test's own network that is not a loopback address, which an import refuses.
const SERVER: &str = "10.99.0.1";

fn run(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

/// The padded image as qcow2, and a server for it.
fn serve(fixture: &Fixture) -> Child {
    let raw = fixture.path("raw");
    let guest = concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/guests/debian.img");
    fs::copy(guest, &raw).unwrap();
    let mut file = File::options().append(true).open(&raw).unwrap();
    let random = File::open("/dev/urandom").unwrap();
    let missing = SIZE - file.metadata().unwrap().len();
    std::io::copy(&mut random.take(missing), &mut file).unwrap();
    file.flush().unwrap();
    let mut convert = fixture.image_program("/usr/bin/qemu-img");
    let files = ["/tmp/raw", "/tmp/image.qcow2"];
    run(convert
        .args(["convert", "-f", "raw", "-O", "qcow2"])
        .args(files));
    fs::remove_file(raw).unwrap();
    run(fixture
        .network
        .command("ip")
        .args(["address", "add", SERVER, "dev", "lo"]));
    let server = fixture
        .network
        .command("python3")
        .args(["-m", "http.server", "--bind", SERVER, "--directory"])
        .arg(fixture.path(""))
        .arg("8000")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    sleep(Duration::from_secs(1));
    server.unwrap()
}

/// Time, and the peak memory of the importer and of its child, in MiB.
fn import(fixture: &Fixture) -> (Duration, u64) {
    for name in ["vm-data", "disk"] {
        fs::create_dir(fixture.path(name)).unwrap();
    }
    let begin = Instant::now();
    let mut import = fixture.image_program("/tmp/vm-runner");
    let mut importer = import
        .args(["import", "--data=/tmp/vm-data", "--to=/tmp/disk/disk.img"])
        .arg(format!("--url=http://{SERVER}:8000/image.qcow2"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut peaks = [0, 0];
    let status = loop {
        let all = [
            Some(importer.id()),
            children(importer.id()).first().copied(),
        ];
        for (peak, process) in peaks.iter_mut().zip(all) {
            *peak = process.and_then(peak_memory).unwrap_or(0).max(*peak);
        }
        match importer.try_wait().unwrap() {
            Some(status) => break status,
            None => sleep(Duration::from_millis(50)),
        }
    };
    assert!(status.success());
    (begin.elapsed(), peaks.iter().sum::<u64>() >> 10)
}

/// In KiB, with pages of the program.
fn peak_memory(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

fn by_hand(fixture: &Fixture) -> Duration {
    fs::create_dir(fixture.path("disk")).unwrap();
    let begin = Instant::now();
    run(fixture
        .network
        .command("curl")
        .args(["--silent", "--fail", "--output"])
        .arg(fixture.path("disk/image.qcow2"))
        .arg(format!("http://{SERVER}:8000/image.qcow2")));
    let mut convert = fixture.image_program("/usr/bin/qemu-img");
    run(convert
        .args(["convert", "-f", "qcow2", "-O", "raw"])
        .args(["/tmp/disk/image.qcow2", "/tmp/disk/disk.img"]));
    // An import ends with its bytes on the volume.
    let disk = File::open(fixture.path("disk/disk.img")).unwrap();
    disk.sync_all().unwrap();
    begin.elapsed()
}

#[test]
fn import_beside_curl_and_qemu_img() {
    let fixture = shipped();
    let mut server = serve(&fixture);
    let (mut ratios, mut memory, mut times) = (Vec::new(), 0, Vec::new());
    for _ in 0..ROUNDS {
        let other = by_hand(&fixture);
        fs::remove_dir_all(fixture.path("disk")).unwrap();
        let (own, peak) = import(&fixture);
        for name in ["vm-data", "disk"] {
            fs::remove_dir_all(fixture.path(name)).unwrap();
        }
        memory = peak.max(memory);
        times.push(own.as_secs_f64());
        ratios.push(own.as_secs_f64() / other.as_secs_f64());
    }
    server.kill().unwrap();
    server.wait().unwrap();
    for values in [&mut ratios, &mut times] {
        values.sort_by(f64::total_cmp);
    }
    println!(
        "| import of an image of 3 GiB, beside curl and qemu-img | × {:.2} ({:.2} to {:.2}); {:.0} s |",
        ratios[ROUNDS / 2],
        ratios[0],
        ratios[ROUNDS - 1],
        times[ROUNDS / 2]
    );
    println!("| peak memory of the importer and its child | {memory} MiB |");
}
