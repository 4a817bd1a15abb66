//! Directories and disks of a VM are locked by one runner, also if the runner is an ordinary process.
#![allow(unsafe_code)]

use crate::fixture::{Fixture, LIMIT};
use crate::host::LoopDevice;
use crate::processes::field;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_second_runner_in_the_same_directories_is_refused_and_touches_nothing() {
    let fixture = Fixture::new();
    let configure =
        |runner: Value| fixture.configure(&runner, &json!({"drives": [], "powerdownTimeout": 0}));
    configure(json!({}));
    let vm = fixture.start(None);
    vm.reaches("Booting");
    let there = || {
        let entries = ["data", "run"].map(|dir| fs::read_dir(fixture.path(dir)).unwrap());
        let known = |entry: fs::DirEntry| {
            (
                entry.path(),
                entry.metadata().unwrap().ino(),
                entry.metadata().unwrap().mtime(),
            )
        };
        let mut all: Vec<_> = entries
            .into_iter()
            .flatten()
            .map(|entry| known(entry.unwrap()))
            .collect();
        all.sort();
        all
    };
    let before = there();
    for (runner, message) in [
        (json!({}), "uses the directory /tmp/data"),
        (
            json!({"runtimeDir": "/tmp/run2"}),
            "set a different dataDir for this VM",
        ),
        (
            json!({"dataDir": "/tmp/data2"}),
            "uses the directory /tmp/run",
        ),
    ] {
        configure(runner);
        let second = vm.exec(&["run"]);
        let log = String::from_utf8_lossy(&second.stdout).into_owned();
        assert_eq!(second.status.code(), Some(67), "{log}");
        assert!(log.contains(message), "{log}");
    }
    // While it waits for the first runner, it can be terminated.
    configure(json!({}));
    let second = std::thread::scope(|scope| {
        let second = scope.spawn(|| vm.exec(&["run"]));
        let pid = vm.until("the second runner", || beside(vm.pid()));
        let _ = Command::new("kill")
            .args(["-TERM", &pid.to_string()])
            .status();
        second.join().unwrap()
    });
    assert_eq!(
        second.status.code(),
        Some(10),
        "{}",
        String::from_utf8_lossy(&second.stdout)
    );
    assert_eq!(there(), before);
    assert!(!fixture.path("run2").exists());
    // A killed runner leaves no lock that blocks the next start.
    configure(json!({}));
    vm.signal("-KILL");
    vm.end();
    let vm = fixture.start(None);
    vm.reaches("Booting");
    vm.signal("-TERM");
    assert_eq!(vm.end().code, 10, "{}", fixture.log());
}

/// Another `vm-runner run` in the namespace of that process. Returns once it handles signals.
fn beside(first: u32) -> Option<u32> {
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let is_it = |pid: &u32| {
        let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.starts_with("/tmp/vm-runner")
            && arguments.ends_with("\0run\0")
            && namespace(*pid) == namespace(first)
    };
    let pids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let second = pids.into_iter().find(is_it)?;
    let caught = u64::from_str_radix(&field(second, "SigCgt"), 16).ok()?;
    (caught & (1 << 14) != 0).then_some(second)
}

/// A suspended process: signals reach it only after this is dropped. (The kernel would resume a stopped process when
/// its parent exits.)
struct Stuck(libc::pid_t);

impl Stuck {
    fn make(pid: u32) -> Self {
        let pid = libc::pid_t::try_from(pid).unwrap();
        // SAFETY: no memory of this process is read or written.
        let results = unsafe {
            let seized = libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0);
            [seized, libc::ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0)]
        };
        assert_eq!(results, [0, 0], "{}", std::io::Error::last_os_error());
        // SAFETY: as above.
        assert_eq!(
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) },
            pid
        );
        Self(pid)
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        // SAFETY: no memory of this process is read or written.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0, 0) };
    }
}

/// Whether that process exists.
fn lives(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn qemu_of_a_killed_runner_exits_before_its_disk_is_used_again() {
    let image = Fixture::with_guest();
    let device = LoopDevice::of(&image.path("disk.img"));
    let (one, two) = (
        Fixture::with_device(&device.0).alone(),
        Fixture::with_device(&device.0),
    );
    let drives = json!([{"type": "raw", "resource": "/dev/system-disk"}]);
    for fixture in [&one, &two] {
        fixture.configure(
            &json!({}),
            &json!({"drives": drives, "useTpm": true, "powerdownTimeout": 0}),
        );
    }
    let vm = one.start(None);
    vm.reaches("Booting");
    let (qemu, tpm) = (vm.qemu(), vm.child("swtpm"));
    let stuck = Stuck::make(qemu);
    vm.signal("-KILL");
    vm.end();
    for (fixture, message) in [
        (&two, "the disk /dev/system-disk is in use"),
        (
            &one,
            "another vm-runner, or its QEMU, uses the directory /tmp/data",
        ),
    ] {
        let end = fixture.start(None).end();
        assert_eq!(
            (end.code, &end.outcome["reason"]),
            (67, &json!("DiskInUse")),
            "{}",
            end.log
        );
        assert!(
            end.outcome["message"]
                .as_str()
                .unwrap()
                .starts_with(message),
            "{}",
            end.log
        );
    }
    assert!(lives(qemu));
    drop(stuck);
    let began = Instant::now();
    while lives(qemu) || lives(tpm) {
        assert!(began.elapsed() < LIMIT, "no process reaps them");
        std::thread::sleep(Duration::from_millis(20));
    }
    for fixture in [&one, &two] {
        let vm = fixture.start(None);
        vm.reaches("Booting");
        vm.signal("-TERM");
        assert_eq!(vm.end().code, 10, "{}", fixture.log());
    }
}
