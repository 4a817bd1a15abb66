//! Changes while the guest runs, and the serial console.

use crate::api::{Api, condition};
use crate::fixture::{DISPLAY, Fixture};
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

#[test]
fn b34_cpus_follow_the_configuration_and_a_bad_one_changes_nothing() {
    let (fixture, api) = (Fixture::with_guest(), Api::start());
    let configure = |generation: i64, vm| {
        fixture.configure(&json!({"namespace": "ns", "generation": generation}), &vm)
    };
    configure(1, json!({"maximumCpus": 4, "currentCpus": 1}));
    let vm = fixture.start(Some(&api));
    let mut console = vm.console();
    console.wait("TINY boot=1");
    vm.reaches("Booted");
    configure(2, json!({"maximumCpus": 4, "currentCpus": 2}));
    let confirmed = |generation: i64| {
        let last = api.statuses().pop()?;
        // The guest agent reports an added CPU later than QEMU.
        let is_confirmed = condition(&last, "Running")["observedGeneration"] == generation
            && last["status"]["cpus"] == 2;
        is_confirmed.then_some(last)
    };
    vm.until("generation 2", || confirmed(2));
    console.type_line("sh until [ $(grep -c ^processor /proc/cpuinfo) = 2 ]; do sleep 0.2; done");
    console.type_line("cpus");
    console.wait("TINY cpus 2");
    configure(
        3,
        json!({"maximumCpus": 4, "currentCpus": 2, "maximumRam": "8Gb"}),
    );
    let status = vm.until("a rejection", || {
        api.statuses()
            .pop()
            .filter(|last| condition(last, "ConfigInSync")["status"] == "False")
    });
    assert_eq!(
        condition(&status, "ConfigInSync")["reason"],
        "InvalidConfig"
    );
    assert_eq!(condition(&status, "Running")["observedGeneration"], 2);
    configure(4, json!({"maximumCpus": 4, "currentCpus": 8}));
    let status = vm.until("generation 4", || confirmed(4));
    assert_eq!(condition(&status, "CpusInSync")["status"], "False");
    assert_eq!(condition(&status, "ConfigInSync")["status"], "True");
}

#[test]
fn hundred_changes_of_cpus_under_emulation_leave_qemu_running_and_report_the_cpus_of_the_guest() {
    let (fixture, api) = (Fixture::with_guest(), Api::start());
    let configure = |generation: i64, cpus: u32| {
        let runner = json!({"namespace": "ns", "generation": generation});
        fixture.configure(&runner, &json!({"maximumCpus": 4, "currentCpus": cpus}));
    };
    configure(1, 1);
    let vm = fixture.start(Some(&api));
    let mut console = vm.console();
    console.wait("ready");
    vm.reaches("Booted");
    let qemu = vm.qemu();
    let confirmed = |generation: i64| {
        vm.until("a report", || {
            let last = api.statuses().pop()?;
            let in_sync = condition(&last, "CpusInSync").clone();
            (in_sync["observedGeneration"] == generation).then_some((last, in_sync))
        })
    };
    // A fixed sequence of numbers from 1 to 4 without order (a linear congruential generator).
    let mut random = 1u32;
    for generation in 2..=101 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        configure(generation, 1 + (random >> 16) % 4);
        std::thread::sleep(Duration::from_millis(300));
    }
    configure(102, 4);
    let (status, in_sync) = confirmed(102);
    assert_eq!((&in_sync["status"], vm.qemu()), (&json!("False"), qemu));
    assert!(
        in_sync["message"]
            .as_str()
            .unwrap()
            .contains("restart the VM"),
        "{in_sync}"
    );
    // The guest's own number is the reported one.
    let cpus = status["status"]["cpus"].as_u64().unwrap();
    console.type_line("cpus");
    console.wait(&format!("TINY cpus {cpus}"));
    let end = vm.exec(&["power-off"]);
    assert!(end.status.success());
    assert_eq!(vm.end().outcome["qemuExit"], 0);
}

#[test]
fn display_password_is_set_and_appears_in_no_log_or_argument() {
    let (fixture, api) = (Fixture::new(), Api::start());
    fixture.configure(
        &json!({"namespace": "ns"}),
        &json!({
            "drives": [], "display": {"spice": {"port": DISPLAY}}, "powerdownTimeout": 0,
        }),
    );
    fixture.write("config/display-password", "geheim1\n");
    fixture.write("config/password-expiry", "now\n");
    let vm = fixture.start(Some(&api));
    let serial = |n: i64| {
        vm.until("a password serial", || {
            (api.statuses().pop()?["status"]["displayPasswordSerial"] == n).then_some(())
        });
    };
    serial(1);
    fixture.write("config/password-expiry", "never\n");
    serial(2);
    fixture.write("config/display-password", "geheim2\n");
    serial(3);
    let arguments = std::fs::read_to_string(format!("/proc/{}/cmdline", vm.qemu())).unwrap();
    assert!(arguments.contains("disable-ticketing=off"));
    vm.signal("-TERM");
    let end = vm.end();
    assert!(
        !end.log.contains("geheim") && !arguments.contains("geheim"),
        "{}",
        end.log
    );
}

#[test]
fn a_console_talks_to_the_guest_and_its_log_begins_with_the_boot() {
    let fixture = Fixture::with_guest();
    fixture.configure(&json!({}), &json!({}));
    let vm = fixture.start(None);
    let mut console = vm.console();
    console.wait("TINY boot=1");
    let mut command = vm.exec_command(&["console"]);
    let mut attached = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keys, mut screen) = (
        attached.stdin.take().unwrap(),
        attached.stdout.take().unwrap(),
    );
    keys.write_all(b"echo one\n").unwrap();
    let mut shown = String::new();
    while !shown.contains("TINY echo one") {
        let mut buffer = [0; 4096];
        let n = screen.read(&mut buffer).unwrap();
        assert!(n > 0, "the console has closed: {shown}");
        shown.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    keys.write_all(b"\x1d").unwrap();
    assert!(attached.wait().unwrap().success());
    assert!(
        shown.contains("TINY echo one") && !shown.contains("TINY boot"),
        "{shown}"
    );
    let log = || String::from_utf8(vm.exec(&["console", "--log"]).stdout).unwrap();
    assert!(
        log().contains("TINY boot=1") && log().contains("TINY echo one"),
        "{}",
        log()
    );
    console.type_line("reboot");
    console.wait("TINY boot=2");
    assert!(
        log().contains("TINY boot=2") && !log().contains("TINY echo one"),
        "{}",
        log()
    );
}

#[test]
fn a_guest_that_reboots_is_not_booted_until_its_agent_answers_again() {
    let (fixture, api) = (Fixture::with_guest(), Api::start());
    fixture.configure(&json!({"namespace": "ns"}), &json!({}));
    let vm = fixture.start(Some(&api));
    let mut console = vm.console();
    // Two changes in quick succession are one report, so each is awaited before the next.
    let reported_after = |reports: usize, booted: &str| {
        vm.until(&format!("a report with Booted={booted}"), || {
            let mut later = api.statuses().into_iter().enumerate().skip(reports);
            later.find(|(_, status)| condition(status, "Booted")["status"] == booted)
        })
    };
    let (first, _) = reported_after(0, "True");
    console.type_line("reboot");
    let (rebooting, status) = reported_after(first, "False");
    assert!(
        status["status"]["osinfo"].is_null(),
        "what the guest was before its reboot is not what it is now: {status}"
    );
    reported_after(rebooting, "True");
}

#[test]
fn cpu_retained_by_the_guest_is_reported_and_unplug_is_retried_for_another_count() {
    let (fixture, api) = (Fixture::with_guest(), Api::start());
    let configure = |generation: i64, cpus: u32| {
        let runner = json!({"namespace": "ns", "generation": generation, "logLevel": "debug"});
        fixture.configure(&runner, &json!({"maximumCpus": 4, "currentCpus": cpus}));
    };
    configure(1, 2);
    let vm = fixture.start(Some(&api));
    let mut console = vm.console();
    console.wait("TINY boot=1");
    vm.reaches("Booted");
    let mut gives = |back: u32| {
        console.type_line(&format!(
            "sh echo {back} >/sys/firmware/acpi/hotplug/processor/enabled && echo set {back}"
        ));
        console.wait(&format!("TINY sh set {back}"));
    };
    gives(0);
    configure(2, 1);
    let wait_for_condition = |reason: &str, generation: i64| {
        vm.until(reason, || {
            let last = api.statuses().pop()?;
            let found = condition(&last, "CpusInSync").clone();
            (found["reason"] == reason && found["observedGeneration"] == generation)
                .then_some((last, found))
        })
    };
    let (status, cpus_in_sync) = wait_for_condition("RefusedByGuest", 2);
    assert_eq!(
        (&status["status"]["cpus"], &cpus_in_sync["status"]),
        (&json!(2), &json!("False"))
    );
    for text in ["has not released cpu-1", "_OST status 0x80", "currentCpus"] {
        assert!(
            cpus_in_sync["message"].as_str().unwrap().contains(text),
            "{cpus_in_sync}"
        );
    }
    gives(1);
    // Another configuration with the same number is followed without another request.
    configure(3, 1);
    wait_for_condition("RefusedByGuest", 3);
    let removals = || fixture.log().matches("device_del").count();
    assert_eq!(removals(), 1, "{}", fixture.log());
    configure(4, 2);
    wait_for_condition("AsConfigured", 4);
    configure(5, 1);
    let (status, _) = wait_for_condition("AsConfigured", 5);
    assert_eq!(
        (&status["status"]["cpus"], removals()),
        (&json!(1), 2),
        "{}",
        fixture.log()
    );
}

#[test]
fn unreadable_configuration_is_reported_and_changes_nothing() {
    let (fixture, api) = (Fixture::new(), Api::start());
    let configure = |generation: i64| {
        fixture.configure(
            &json!({"namespace": "ns", "generation": generation}),
            &json!({"drives": [], "powerdownTimeout": 0, "maximumCpus": 2}),
        );
    };
    configure(1);
    let vm = fixture.start(Some(&api));
    let wait_for_condition = |status: &str, generation: i64, text: &str| {
        vm.until(text, || {
            let last = api.statuses().pop()?;
            let found = condition(&last, "ConfigInSync");
            let message = found["message"].as_str()?.contains(text);
            (found["status"] == status && found["observedGeneration"] == generation && message)
                .then_some(())
        });
    };
    wait_for_condition("True", 1, "");
    let path = fixture.path("config/config.yaml");
    fs::write(&path, [b'{', 0xff, 0xfe, b'}']).unwrap();
    wait_for_condition("False", 1, "/tmp/config/config.yaml is not UTF-8 text");
    configure(2);
    wait_for_condition("True", 2, "");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    wait_for_condition(
        "False",
        2,
        "uid 107 cannot read the configuration file /tmp/config/config.yaml",
    );
    // The same value again causes no report, and the file is valid as before.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    wait_for_condition("True", 2, "");
    vm.signal("-TERM");
    assert_eq!(vm.end().code, 10);
}
