//! Disks: creation, growth, full volumes, and I/O modes.

use crate::api::{Api, condition};
use crate::fixture::{Fixture, run};
use crate::host::{LoopDevice, SmallVolume};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

fn drives(size: &str) -> Value {
    json!({"drives": [{"type": "raw", "resource": "/tmp/disk.img"}, {"type": "raw", "file": "/tmp/volume/disk.img", "size": size}]})
}

/// A fixture with an image file of that size on a volume.
fn with_volume(size: &str) -> Fixture {
    let fixture = Fixture::with_guest();
    fs::create_dir(fixture.path("volume")).unwrap();
    fixture.own("volume");
    fixture.configure(&json!({}), &drives(size));
    fixture
}

#[test]
fn an_image_file_is_made_and_grows_while_the_guest_runs() {
    let fixture = with_volume("16 MiB");
    let vm = fixture.start(None);
    let mut console = vm.console();
    console.wait("ready");
    let mut sectors = |expected: u32| {
        console.type_line("disks");
        console.wait(&format!("vdb={expected}"));
    };
    sectors(32768);
    fixture.configure(&json!({}), &drives("32 MiB"));
    vm.logged("QEMU has resized a disk and notified the guest");
    sectors(65536);
    assert_eq!(
        fs::metadata(fixture.path("volume/disk.img")).unwrap().len(),
        32 << 20
    );
}

#[test]
fn a_disk_that_is_taken_from_the_configuration_gives_its_place_to_no_other() {
    let fixture = with_volume("16 MiB");
    let disk = |name: &str, size: &str| json!({"type": "raw", "file": format!("/tmp/volume/{name}.img"), "size": size});
    fixture.configure(
        &json!({}),
        &json!({"drives": [disk("small", "1 MiB"), disk("large", "16 MiB")]}),
    );
    let vm = fixture.start(None);
    vm.reaches("Booting");
    fixture.configure(&json!({}), &json!({"drives": [disk("large", "32 MiB")]}));
    vm.logged("QEMU has resized a disk and notified the guest");
    let length = |name: &str| {
        fs::metadata(fixture.path("volume").join(name))
            .unwrap()
            .len()
            >> 20
    };
    assert_eq!((length("small.img"), length("large.img")), (1, 32));
}

#[test]
fn b29_discarded_or_zeroed_blocks_use_no_space() {
    let fixture = with_volume("64 MiB");
    let vm = fixture.start(None);
    let mut console = vm.console();
    console.wait("ready");
    let mut mebibytes_after = |command: &str| {
        console.type_line(&format!("sh {command} && sync && echo done"));
        console.wait("TINY sh done");
        fs::metadata(fixture.path("volume/disk.img"))
            .unwrap()
            .blocks()
            / 2048
    };
    let ones = "tr '\\0' x </dev/zero | dd of=/dev/vdb bs=1M count=32 iflag=fullblock conv=fsync";
    assert_eq!(mebibytes_after(ones), 32);
    assert_eq!(mebibytes_after("blkdiscard -l 16777216 /dev/vdb"), 16);
    assert_eq!(
        mebibytes_after("dd if=/dev/zero of=/dev/vdb bs=1M count=64 conv=fsync"),
        0
    );
}

#[test]
fn a_device_that_has_grown_is_announced_to_the_guest() {
    let image = Fixture::with_guest();
    let device = LoopDevice::of(&image.path("disk.img"));
    let fixture = Fixture::with_device(&device.0);
    fixture.configure(
        &json!({}),
        &json!({"drives": [{"type": "raw", "resource": "/dev/system-disk"}]}),
    );
    let vm = fixture.start(None);
    let mut console = vm.console();
    console.wait("ready");
    fs::File::options()
        .write(true)
        .open(image.path("disk.img"))
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    run("losetup", &["-c".as_ref(), device.0.as_ref()]);
    vm.logged("QEMU has resized a disk and notified the guest");
    console.type_line("disks");
    console.wait("vda=131072");
}

#[test]
fn unreadable_sector_is_reported_to_the_guest_and_cleared_at_reboot() {
    const MIB: u64 = 1 << 20;
    let (image, api) = (Fixture::with_guest(), Api::start());
    let file = fs::File::options()
        .write(true)
        .open(image.path("disk.img"))
        .unwrap();
    let size = file.metadata().unwrap().len();
    file.set_len(size + 16 * MIB).unwrap();
    let device = LoopDevice::of(&image.path("disk.img"));
    let fixture = Fixture::with_device(&device.0);
    let drives = json!({"drives": [{"type": "raw", "resource": "/dev/system-disk"}]});
    fixture.configure(&json!({"namespace": "ns"}), &drives);
    let vm = fixture.start(Some(&api));
    let mut console = vm.console();
    console.wait("ready");
    // The device has its old size and no content any more.
    file.set_len(size).unwrap();
    let place = (size + 8 * MIB) / 4096;
    console.type_line(&format!(
        "sh dd if=/dev/vda of=/dev/null bs=4096 count=1 iflag=direct skip={place} || echo bad"
    ));
    console.wait("TINY sh bad");
    let storage = |status: &str| {
        vm.until("a report", || {
            let last = api.statuses().pop()?;
            let healthy = condition(&last, "StorageHealthy").clone();
            (healthy["status"] == status).then_some(healthy)
        })
    };
    let healthy = storage("False");
    assert_eq!(healthy["reason"], "DiskError");
    for text in [
        "QEMU could not read disk /dev/system-disk",
        "has reported the error to the guest",
    ] {
        assert!(
            healthy["message"].as_str().unwrap().contains(text),
            "{healthy}"
        );
    }
    file.set_len(size + 16 * MIB).unwrap();
    console.type_line("reboot");
    console.wait("TINY boot=2");
    storage("True");
}

#[test]
fn a_full_volume_pauses_the_guest_says_so_and_the_guest_goes_on_when_there_is_room() {
    let (fixture, api) = (Fixture::with_guest(), Api::start());
    let volume = SmallVolume::of(&fixture, "volume", 4);
    let namespace = json!({"namespace": "ns"});
    fixture.configure(&namespace, &drives("16 MiB"));
    let vm = fixture.start(Some(&api));
    let mut console = vm.console();
    console.wait("ready");
    let full = Instant::now();
    // Zeros would use no space.
    console.type_line(
        "sh tr '\\0' x </dev/zero | dd of=/dev/vdb bs=1M count=8 iflag=fullblock conv=fsync && echo written",
    );
    let storage = |status: &str| {
        vm.until("a report", || {
            let last = api.statuses().pop()?;
            let healthy = condition(&last, "StorageHealthy").clone();
            (healthy["status"] == status).then_some(healthy)
        })
    };
    let healthy = storage("False");
    // Ten seconds are promised.
    assert!(
        full.elapsed() < Duration::from_secs(50),
        "{:?}",
        full.elapsed()
    );
    assert_eq!(healthy["reason"], "DiskFull");
    assert!(
        healthy["message"]
            .as_str()
            .unwrap()
            .contains("/tmp/volume/disk.img"),
        "{healthy}"
    );
    let cpus = || condition(&api.statuses().pop().unwrap(), "CpusInSync").clone();
    assert_eq!(
        (&cpus()["status"], &cpus()["reason"]),
        (&json!("False"), &json!("GuestPaused"))
    );
    volume.grow(20);
    console.wait("TINY sh written");
    storage("True");
    assert_eq!(cpus()["status"], "True");
    let log = fixture.log();
    assert!(
        log.matches("has no free space, so QEMU has paused the guest")
            .count()
            == 1
            && log.contains("the guest runs again after a disk error"),
        "{log}"
    );
}

#[test]
fn guest_that_is_reset_while_its_volume_is_full_runs_and_shuts_down_completely() {
    let (fixture, api) = (Fixture::with_guest(), Api::start());
    let _volume = SmallVolume::of(&fixture, "volume", 4);
    let reset = |counter: u32| {
        fixture.configure(
            &json!({"namespace": "ns", "resetCounter": counter}),
            &drives("16 MiB"),
        )
    };
    reset(1);
    let vm = fixture.start(Some(&api));
    let mut console = vm.console();
    console.wait("TINY boot=1");
    console.wait("ready");
    console.type_line(
        "sh tr '\\0' x </dev/zero | dd of=/dev/vdb bs=1M count=8 iflag=fullblock conv=fsync",
    );
    vm.logged("has no free space, so QEMU has paused the guest");
    reset(2);
    console.wait("TINY boot=2");
    console.wait("ready");
    vm.until("a report", || {
        let last = api.statuses().pop()?;
        let is_healthy = |type_| condition(&last, type_)["status"] == "True";
        (is_healthy("StorageHealthy") && is_healthy("CpusInSync") && is_healthy("Booted"))
            .then_some(())
    });
    console.slow_down_shutdown(60);
    vm.signal("-TERM");
    console.wait("TINY shuts down");
    console.wait("TINY is down");
    let end = vm.end();
    assert_eq!(
        (end.code, &end.outcome["qemuExit"]),
        (10, &json!(0)),
        "{}",
        end.log
    );
}

#[test]
fn a_guest_that_waits_for_a_full_volume_is_ended_within_its_time() {
    let fixture = Fixture::with_guest();
    let _volume = SmallVolume::of(&fixture, "volume", 4);
    let mut vm = drives("16 MiB");
    vm["powerdownTimeout"] = json!(5);
    fixture.configure(&json!({}), &vm);
    let vm = fixture.start(None);
    let mut console = vm.console();
    console.wait("ready");
    console.type_line(
        "sh tr '\\0' x </dev/zero | dd of=/dev/vdb bs=1M count=8 iflag=fullblock conv=fsync",
    );
    vm.logged("has no free space, so QEMU has paused the guest");
    vm.signal("-TERM");
    let requested = Instant::now();
    let end = vm.end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (10, &json!("Stopped")),
        "{}",
        end.log
    );
    // SIGKILL comes 4 s after the configured 5 s; five times that at most.
    assert!(
        (5..45).contains(&requested.elapsed().as_secs()),
        "{:?}",
        requested.elapsed()
    );
}

#[test]
fn a_guest_has_its_disk_also_where_the_kernel_refuses_native_aio() {
    let fixture = Fixture::with_guest();
    fixture.configure(&json!({}), &json!({}));
    let vm = fixture.start_without_native_aio();
    vm.console().wait("ready");
    assert!(
        vm.arguments()
            .iter()
            .any(|argument| argument.contains("\"aio\":\"native\"")),
        "{}",
        fixture.log()
    );
}

#[test]
fn a_lost_image_is_never_replaced_by_an_empty_one_until_its_loss_is_accepted() {
    let fixture = Fixture::new();
    let disk = "/tmp/volume/disk.img";
    let volume = fixture.path("volume");
    let make_volume = || {
        fs::create_dir(&volume).unwrap();
        fixture.own("volume");
    };
    make_volume();
    let drive = json!({"type": "raw", "file": disk, "size": "16 MiB"});
    let vm = json!({"drives": [drive], "powerdownTimeout": 0});
    fixture.configure(&json!({}), &vm);
    let start = |claim: &str| {
        let vm = fixture.start_with_claims(&[(disk, claim)]);
        vm.reaches("Booting");
        vm.signal("-TERM");
        assert_eq!(vm.end().code, 10, "{}", fixture.log());
    };
    let refused = |claim: &str| {
        let end = fixture.start_with_claims(&[(disk, claim)]).end();
        let reason = &end.outcome["reason"];
        assert_eq!(
            (end.code, reason),
            (74, &json!("DataMissing")),
            "{}",
            end.log
        );
        let message = end.outcome["message"].as_str().unwrap().to_owned();
        for part in [disk, "the volume of the image is mounted", "delete PVC"] {
            assert!(message.contains(part), "{part} is not in {message}");
        }
        assert!(!volume.join("disk.img").exists());
    };
    start("one");
    fs::rename(volume.join("disk.img"), fixture.path("saved.img")).unwrap();
    refused("one");
    refused("one");
    // The image is restored.
    fs::rename(fixture.path("saved.img"), volume.join("disk.img")).unwrap();
    start("one");
    // The mount below the claim is lost: its directory is empty.
    fs::rename(&volume, fixture.path("mounted")).unwrap();
    make_volume();
    refused("one");
    fs::remove_dir(&volume).unwrap();
    fs::rename(fixture.path("mounted"), &volume).unwrap();
    start("one");
    // The PVC is deleted, and the operator has created another one.
    fs::remove_file(volume.join("disk.img")).unwrap();
    start("two");
    assert!(volume.join("disk.img").exists());
}
