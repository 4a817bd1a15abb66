//! Exits of the runner: each is immediate and has its own code and an explanation.

mod rejected;

use crate::api::{Api, condition};
use crate::fixture::{Fixture, Vm, run};
use crate::processes::is_in_kernel_function;
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, Instant};

/// Configures a VM that needs no disk.
fn diskless(fixture: &Fixture, vm: Value) {
    let mut vm = vm;
    vm["drives"] = json!([]);
    fixture.configure(&json!({}), &vm);
}

#[test]
fn a_killed_qemu_is_a_crash_at_once() {
    let fixture = Fixture::with_guest();
    fixture.configure(&json!({}), &json!({}));
    let vm = fixture.start(None);
    vm.reaches("Booted");
    run("kill", &["-KILL".as_ref(), vm.qemu().to_string().as_ref()]);
    let end = vm.end();
    assert_eq!(
        (end.code, &end.outcome["reason"], &end.outcome["qemuExit"]),
        (71, &json!("QemuCrashed"), &json!(-9))
    );
}

#[test]
fn a_request_to_end_during_the_start_ends_the_machine_at_once() {
    let fixture = Fixture::new();
    diskless(&fixture, json!({}));
    let vm = fixture.start(None);
    vm.qemu();
    vm.signal("-TERM");
    let end = vm.end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (10, &json!("Stopped")),
        "{}",
        end.log
    );
}

#[test]
fn guest_shuts_down_completely_despite_repeated_sigterm_and_sigterm_to_its_programs() {
    let fixture = Fixture::with_guest();
    fixture.configure(&json!({}), &json!({"useTpm": true}));
    let vm = fixture.start(None);
    let mut console = vm.console();
    console.wait("ready");
    vm.reaches("Booted");
    console.slow_down_shutdown(60);
    let requested = Instant::now();
    vm.signal("-TERM");
    console.wait("TINY shuts down");
    // As a container runtime after its restart, and as the shutdown of a node.
    vm.signal("-TERM");
    for pid in [vm.qemu(), vm.child("swtpm")] {
        run("kill", &["-TERM".as_ref(), pid.to_string().as_ref()]);
    }
    vm.signal("-TERM");
    console.wait("TINY is down");
    assert!(requested.elapsed() >= Duration::from_secs(60));
    let end = vm.end();
    assert_eq!(
        (end.code, &end.outcome["reason"], &end.outcome["qemuExit"]),
        (10, &json!("Stopped"), &json!(0)),
        "{}",
        end.log
    );
}

/// Configures a VM with a disk that has this program in its first sector.
fn with_boot_sector(fixture: &Fixture, program: &[u8]) {
    let mut image = vec![0; 1 << 20];
    image[..program.len()].copy_from_slice(program);
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(fixture.path("disk.img"), image).unwrap();
    fixture.own("disk.img");
    fixture.configure(&json!({}), &json!({}));
}

#[test]
fn guest_without_operating_system_is_ended_within_half_a_minute() {
    let fixtures = [(); 4].map(|()| Fixture::new());
    let [bios, uefi, empty, sector] = &fixtures;
    diskless(bios, json!({}));
    diskless(uefi, json!({"firmware": "uefi"}));
    fs::write(empty.path("disk.img"), vec![0; 1 << 20]).unwrap();
    empty.own("disk.img");
    empty.configure(&json!({}), &json!({}));
    // hlt; jmp
    with_boot_sector(sector, &[0xf4, 0xeb, 0xfd]);
    let vms = fixtures.each_ref().map(|fixture| fixture.start(None));
    for vm in &vms {
        vm.reaches("Booting");
    }
    for vm in vms {
        vm.signal("-TERM");
        let requested = Instant::now();
        let end = vm.end();
        assert_eq!(
            (end.code, &end.outcome["reason"], &end.outcome["qemuExit"]),
            (10, &json!("Stopped"), &json!(0)),
            "{}",
            end.log
        );
        assert!(
            requested.elapsed() < Duration::from_secs(30),
            "{:?}: {}",
            requested.elapsed(),
            end.log
        );
    }
}

#[test]
fn guest_that_reacts_to_its_power_button_after_a_minute_is_not_cut_off() {
    const TICKS_PER_MINUTE: u16 = 1093;
    let [low, high] = TICKS_PER_MINUTE.to_le_bytes();
    #[rustfmt::skip]
    let program = [
        // Enables the button: sets bit 8 of port 0x602.
        0xba, 0x02, 0x06, 0xed, 0x80, 0xcc, 0x01, 0xef,
        // Waits for bit 8 of port 0x600.
        0xba, 0x00, 0x06, 0xed, 0xf6, 0xc4, 0x01, 0x74, 0xf7,
        // Waits for a minute by the BIOS's clock.
        0xb4, 0x00, 0xcd, 0x1a, 0x89, 0xd3,
        0xb4, 0x00, 0xcd, 0x1a, 0x29, 0xda, 0x81, 0xfa, low, high, 0x72, 0xf4,
        // Powers off: writes 0x2000 to port 0x604.
        0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, 0xf4,
    ];
    let fixture = Fixture::new();
    with_boot_sector(&fixture, &program);
    let vm = fixture.start(None);
    vm.reaches("Booting");
    vm.signal("-TERM");
    let requested = Instant::now();
    let end = vm.end();
    assert_eq!(
        (end.code, &end.outcome["qemuExit"]),
        (10, &json!(0)),
        "{}",
        end.log
    );
    let took = requested.elapsed();
    assert!((55..300).contains(&took.as_secs()), "{took:?}: {}", end.log);
}

/// Waits until the runner handles signals. The kernel drops earlier ones, because PID 1 has no handler for them.
fn takes_signals(vm: &Vm) {
    let term = 1u64 << 14;
    vm.until("a runner that takes signals", || {
        let status = fs::read_to_string(format!("/proc/{}/status", vm.pid())).ok()?;
        let caught = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))?
            .trim();
        (u64::from_str_radix(caught, 16).ok()? & term != 0).then_some(())
    });
}

#[test]
fn a_request_to_end_is_followed_at_any_moment_of_the_start() {
    for after in [0, 10, 20, 40, 80, 160, 320, 640] {
        let fixture = Fixture::new();
        diskless(
            &fixture,
            json!({"useTpm": true, "firmware": "uefi", "powerdownTimeout": 0}),
        );
        let vm = fixture.start(None);
        takes_signals(&vm);
        std::thread::sleep(Duration::from_millis(after));
        vm.signal("-TERM");
        let end = vm.end();
        assert_eq!(
            (end.code, &end.outcome["reason"]),
            (10, &json!("Stopped")),
            "after {after} ms: {}",
            end.log
        );
        assert!(
            !fixture.path("run").exists(),
            "after {after} ms: {}",
            end.log
        );
    }
}

#[test]
fn a_request_to_end_does_not_wait_for_a_tpm_that_does_not_start() {
    let fixture = Fixture::new();
    diskless(&fixture, json!({"useTpm": true}));
    // A reader of the pipe waits for a writer. QEMU waits for its TPM before its QMP greeting.
    run("mkfifo", &[fixture.path("data/tpm2-00.permall").as_ref()]);
    fixture.own("data/tpm2-00.permall");
    let vm = fixture.start(None);
    vm.qemu();
    let tpm = vm.child("swtpm");
    vm.until("a TPM that opens its state", || {
        is_in_kernel_function(tpm, "wait_for_partner").then_some(())
    });
    vm.signal("-TERM");
    let end = vm.end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (10, &json!("Stopped")),
        "{}",
        end.log
    );
    assert!(!end.log.contains("to=Booting"), "{}", end.log);
}

#[test]
fn a_machine_without_a_guest_is_ended_within_its_time() {
    let fixture = Fixture::new();
    diskless(&fixture, json!({"powerdownTimeout": 3}));
    let vm = fixture.start(None);
    vm.reaches("Booting");
    vm.signal("-TERM");
    let requested = Instant::now();
    let end = vm.end();
    assert_eq!(end.code, 10, "{}", end.log);
    // Five times the configured time at most.
    let took = requested.elapsed();
    assert!((3..15).contains(&took.as_secs()), "{took:?}");
}

#[test]
fn a_second_request_to_end_has_no_patience() {
    let fixture = Fixture::new();
    diskless(&fixture, json!({"powerdownTimeout": 600}));
    let vm = fixture.start(None);
    vm.reaches("Booting");
    // From a terminal. Container runtimes send SIGTERM, and may repeat it.
    vm.signal("-INT");
    vm.reaches("Terminating");
    vm.signal("-INT");
    assert_eq!(vm.end().code, 10);
}

#[test]
fn powered_off_machine_does_not_wait_for_the_guest() {
    for is_ending in [false, true] {
        let fixture = Fixture::new();
        diskless(&fixture, json!({"powerdownTimeout": 600}));
        let vm = fixture.start(None);
        vm.reaches("Booting");
        if is_ending {
            vm.signal("-TERM");
            vm.reaches("Terminating");
        }
        let off = vm.exec(&["power-off"]);
        assert!(
            off.status.success(),
            "{}",
            String::from_utf8_lossy(&off.stderr)
        );
        let end = vm.end();
        assert_eq!(
            (end.code, &end.outcome["reason"]),
            (10, &json!("Stopped")),
            "{}",
            end.log
        );
        assert_eq!(
            end.outcome["qemuExit"], 0,
            "QEMU has had time to write: {}",
            end.log
        );
    }
}

#[test]
fn repeated_stop_requests_do_not_kill_a_writing_qemu_early() {
    let fixture = Fixture::new();
    diskless(&fixture, json!({"powerdownTimeout": 6}));
    let vm = fixture.start(None);
    vm.reaches("Booting");
    run("kill", &["-STOP".as_ref(), vm.qemu().to_string().as_ref()]);
    let requested = Instant::now();
    for n in 1..=5 {
        vm.signal("-TERM");
        vm.until("a request", || {
            (fixture.log().matches("shutdown requested").count() >= n).then_some(())
        });
    }
    let end = vm.end();
    assert_eq!(
        (end.code, &end.outcome["qemuExit"]),
        (10, &json!(-9)),
        "{}",
        end.log
    );
    // SIGKILL comes 4 s after the configured 6 s; five times that at most.
    assert!(
        (10..50).contains(&requested.elapsed().as_secs()),
        "{:?}",
        requested.elapsed()
    );
}

#[test]
fn hanging_qemu_is_reported_within_a_minute_until_it_answers() {
    let (fixture, api) = (Fixture::new(), Api::start());
    fixture.configure(
        &json!({"namespace": "ns"}),
        &json!({"drives": [], "powerdownTimeout": 0}),
    );
    let vm = fixture.start(Some(&api));
    vm.reaches("Booting");
    let responsive = |reason: &str| {
        vm.until(reason, || {
            let last = api.statuses().pop()?;
            (condition(&last, "QemuResponsive")["reason"] == reason).then_some(())
        });
    };
    responsive("Responsive");
    let signal = |name: &str| run("kill", &[name.as_ref(), vm.qemu().to_string().as_ref()]);
    signal("-STOP");
    let stopped = Instant::now();
    responsive("QemuSilent");
    assert!(
        stopped.elapsed() < Duration::from_secs(60),
        "{:?}",
        stopped.elapsed()
    );
    signal("-CONT");
    responsive("Responsive");
}

#[test]
fn a_stopped_qemu_is_killed_in_the_end() {
    let fixture = Fixture::new();
    diskless(&fixture, json!({"powerdownTimeout": 1}));
    let vm = fixture.start(None);
    vm.reaches("Booting");
    run("kill", &["-STOP".as_ref(), vm.qemu().to_string().as_ref()]);
    vm.signal("-TERM");
    let requested = Instant::now();
    let end = vm.end();
    assert_eq!(
        (end.code, &end.outcome["qemuExit"]),
        (10, &json!(-9)),
        "{}",
        end.log
    );
    // SIGKILL comes 4 s after the configured 1 s; five times that at most.
    assert!(
        (5..25).contains(&requested.elapsed().as_secs()),
        "{:?}",
        requested.elapsed()
    );
}

#[test]
fn b22_an_api_server_that_does_not_answer_delays_nothing() {
    let (fixture, api) = (Fixture::new(), Api::without_responses());
    diskless(&fixture, json!({"powerdownTimeout": 0}));
    let config = fs::read_to_string(fixture.path("config/config.yaml")).unwrap();
    fixture.write(
        "config/config.yaml",
        &config.replace("\"uid\"", "\"namespace\":\"ns\",\"uid\""),
    );
    let vm = fixture.start(Some(&api));
    vm.reaches("Booting");
    vm.signal("-TERM");
    let requested = Instant::now();
    let end = vm.end();
    assert_eq!(end.code, 10, "{}", end.log);
    // The last report has 2 s; five times that at most.
    assert!(
        requested.elapsed() < Duration::from_secs(10),
        "{:?}",
        requested.elapsed()
    );
}

#[test]
fn nothing_that_other_processes_leave_behind_stays() {
    let fixture = Fixture::new();
    diskless(&fixture, json!({}));
    let vm = fixture.start(None);
    vm.reaches("Booting");
    let pid = vm.pid().to_string();
    // The child of the inner shell outlives it, and becomes a child of PID 1.
    run(
        "nsenter",
        &["-t", &pid, "-p", "sh", "-c", "sh -c 'sleep 0.3 &'"].map(AsRef::as_ref),
    );
    vm.until("only QEMU as a child", || {
        (crate::processes::children(vm.pid()).len() == 1).then_some(())
    });
}
