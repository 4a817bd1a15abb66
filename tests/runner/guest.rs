//! Guests that boot and shut down, on request or by themselves.

use crate::api::{Api, condition};
use crate::fixture::{Fixture, LIMIT, POD_UID, run};
use crate::host::LoopDevice;
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt;

#[test]
fn a_guest_boots_by_bios_and_is_shut_down_by_its_agent() {
    let (fixture, api) = (Fixture::with_guest(), Api::start());
    fixture.configure(&json!({"namespace": "ns"}), &json!({}));
    let vm = fixture.start(Some(&api));
    vm.console().wait("TINY boot=1");
    vm.reaches("Booted");
    // Up to here, two writes report everything.
    vm.until("a report", || {
        (condition(api.statuses().last()?, "Booted")["status"] == "True").then_some(())
    });
    let statuses = api.statuses();
    assert_eq!(statuses.len(), 2, "{statuses:#?}");
    assert_eq!(statuses[0]["metadata"], json!({"name": POD_UID}));
    assert_eq!(condition(&statuses[0], "Running")["reason"], "VmStarted");
    assert_eq!(condition(&statuses[0], "Running")["observedGeneration"], 1);
    let status = &statuses[1]["status"];
    assert_eq!(
        (&status["osinfo"]["id"], &status["cpus"], &status["ram"]),
        (&json!("tiny"), &json!(1), &json!("512Mi"))
    );
    let mut console = vm.console();
    vm.signal("-TERM");
    console.wait("TINY agentshutdown");
    let end = vm.end();
    assert_eq!(end.code, 10, "{}", end.log);
    assert_eq!(
        end.outcome,
        json!({"reason": "Stopped", "qemuExit": 0, "byGuest": false})
    );
    let last = api.statuses().pop().unwrap();
    assert_eq!(
        (&last["status"]["cpus"], &last["status"]["ram"]),
        (&json!(0), &json!("0"))
    );
    assert_eq!(condition(&last, "Running")["reason"], "VmStopped");
    assert_eq!(last["status"]["osinfo"], json!(null));
    assert!(
        !fixture.path("run").exists(),
        "the runtime directory is deleted"
    );
}

#[test]
fn a_guest_without_agent_is_shut_down_by_its_power_button() {
    let fixture = Fixture::with_guest();
    // The button is pressed after a sixth of that time.
    fixture.configure(&json!({}), &json!({"powerdownTimeout": 30}));
    let vm = fixture.start(None);
    let mut console = vm.console();
    console.wait("ready");
    vm.reaches("Booted");
    console.type_line(
        "sh mount --bind /bin/false $(which qemu-ga); killall qemu-ga; sleep 2; echo gone",
    );
    console.wait("TINY sh gone");
    vm.signal("-TERM");
    let end = vm.end();
    assert_eq!(
        end.outcome,
        json!({"reason": "Stopped", "qemuExit": 0, "byGuest": false}),
        "{}",
        end.log
    );
    assert_eq!(end.code, 10, "{}", end.log);
    let counts = fixture.start(None).console().wait("ready");
    assert!(
        counts.contains("boot=2 powerbuttons=1 agentshutdowns=0"),
        "{counts}"
    );
}

#[test]
fn a_guest_boots_by_uefi_and_keeps_its_machine() {
    let fixture = Fixture::with_guest();
    fixture.configure(&json!({}), &json!({"firmware": "uefi"}));
    let vm = fixture.start(None);
    let mut console = vm.console();
    console.wait("TINY boot=1");
    console.type_line("poweroff");
    let end = vm.end();
    assert_eq!(end.code, 0, "{}", end.log);
    assert_eq!(
        end.outcome,
        json!({"reason": "GuestShutdown", "qemuExit": 0, "byGuest": true})
    );
    let read = |name: &str| fs::read_to_string(fixture.path("data").join(name)).unwrap();
    let (uuid, machine) = (read("uuid.txt"), read("machine.json"));
    assert!(machine.contains("pc-q35-"), "{machine}");
    let variables = fs::metadata(fixture.path("data/fw-vars.fd")).unwrap().ino();
    let vm = fixture.start(None);
    vm.console().wait("TINY boot=2");
    assert_eq!((read("uuid.txt"), read("machine.json")), (uuid, machine));
    assert_eq!(
        fs::metadata(fixture.path("data/fw-vars.fd")).unwrap().ino(),
        variables,
        "seeded once"
    );
}

#[test]
fn a_guest_with_secure_boot_firmware_a_seed_and_no_medium_boots() {
    let fixture = Fixture::with_guest();
    fixture.configure(
        &json!({"cloudInit": {"userData": {"hostname": "h"}}}),
        &json!({
            // The disk is not signed. The firmware must not start it.
            "firmware": "secure",
            "drives": [{"type": "raw", "resource": "/tmp/disk.img"}, {"type": "ide-cd", "file": "/tmp/none.iso"}],
        }),
    );
    let vm = fixture.start(None);
    vm.logged(
        "CD drive 0 is empty: the runner cannot use the directory /tmp/images with the CD images",
    );
    vm.console().wait("Access Denied");
}

#[test]
fn seed_and_ports_reach_the_guest_and_its_addresses_are_reported() {
    let fixture = Fixture::with_guest();
    let port = 8022;
    fixture.configure(
        &json!({"namespace": "ns", "cloudInit": {"userData": {"hostname": "h"}}}),
        &json!({"network": [{"type": "user", "forward": [{"port": port, "guestPort": 8080, "protocol": "TCP"}]}]}),
    );
    let api = Api::start();
    let vm = fixture.start(Some(&api));
    let mut console = vm.console();
    console.wait("TINY boot=1");
    console.type_line(
        "sh strings /dev/vdb | head -c 300000 | grep -o -e CIDATA -e '#cloud-config' | sort -u",
    );
    console.wait("#cloud-config");
    console.wait("CIDATA");
    vm.until("the guest's port", || {
        let mut answer = String::new();
        let mut stream = fixture.network.connect(port).ok()?;
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        std::io::Write::write_all(&mut stream, b"GET / HTTP/1.0\r\n\r\n").ok()?;
        std::io::Read::read_to_string(&mut stream, &mut answer).ok()?;
        answer.contains("TINY http").then_some(())
    });
    let addresses = vm.until("the guest's addresses", || {
        api.statuses().pop()?["status"]["guestIPs"]
            .as_array()
            .cloned()
            .filter(|addresses| !addresses.is_empty())
    });
    assert!(addresses.contains(&json!("10.0.2.15")), "{addresses:?}");
}

#[test]
fn a_machine_has_a_tpm_whose_state_stays() {
    let fixture = Fixture::with_guest();
    fixture.configure(&json!({}), &json!({"firmware": "uefi", "useTpm": true}));
    let vm = fixture.start(None);
    let mut console = vm.console();
    console.wait("TINY boot=1");
    console.type_line("sh ls /sys/firmware/acpi/tables | grep -c TPM2");
    console.wait("TINY sh 1");
    console.type_line("poweroff");
    let end = vm.end();
    assert_eq!(end.code, 0, "{}", end.log);
    assert!(
        fs::metadata(fixture.path("data/tpm2-00.permall"))
            .unwrap()
            .len()
            > 1000
    );
    assert!(!end.log.contains("TPM (swtpm) has exited"), "{}", end.log);
}

#[test]
fn a_tpm_that_cannot_use_its_state_is_a_failed_start_that_tells_why() {
    let (fixture, api) = (Fixture::with_guest(), Api::start());
    fixture.configure(&json!({"namespace": "ns"}), &json!({"useTpm": true}));
    fixture.write("data/tpm2-00.permall", "nonsense");
    fixture.own("data/tpm2-00.permall");
    let end = fixture.start(Some(&api)).end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (70, &json!("StartFailed")),
        "{}",
        end.log
    );
    let message = end.outcome["message"].as_str().unwrap();
    assert!(
        message.contains("TPM (swtpm)") && message.contains("libtpms"),
        "{message}"
    );
    assert!(!end.log.contains("continues without a TPM"), "{}", end.log);
}

#[test]
fn b24_tpm_exit_is_reported_and_the_guest_continues() {
    let (fixture, api) = (Fixture::with_guest(), Api::start());
    fixture.configure(&json!({"namespace": "ns"}), &json!({"useTpm": true}));
    let vm = fixture.start(Some(&api));
    let mut console = vm.console();
    console.wait("ready");
    let wait_for_health = |status: &str| {
        vm.until("a report", || {
            let last = api.statuses().pop()?;
            let healthy = condition(&last, "TpmHealthy").clone();
            (healthy["status"] == status).then_some(healthy)
        })
    };
    wait_for_health("True");
    run(
        "kill",
        &["-KILL".as_ref(), vm.child("swtpm").to_string().as_ref()],
    );
    let healthy = wait_for_health("False");
    assert_eq!(healthy["reason"], "TpmEnded");
    for text in ["signal 9", "continues without a TPM", "restartRequest"] {
        assert!(
            healthy["message"].as_str().unwrap().contains(text),
            "{healthy}"
        );
    }
    console.type_line("sh echo still here");
    console.wait("TINY sh still here");
    console.type_line("poweroff");
    let end = vm.end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (0, &json!("GuestShutdown")),
        "{}",
        end.log
    );
}

#[test]
fn a_second_machine_on_the_same_device_is_refused() {
    let image = Fixture::with_guest();
    let device = LoopDevice::of(&image.path("disk.img"));
    let (one, two) = (
        Fixture::with_device(&device.0),
        Fixture::with_device(&device.0),
    );
    for fixture in [&one, &two] {
        fixture.configure(
            &json!({}),
            &json!({"drives": [{"type": "raw", "resource": "/dev/system-disk"}]}),
        );
    }
    let vm = one.start(None);
    vm.console().wait("TINY boot=1");
    let end = two.start(None).end();
    assert_eq!(end.code, 67, "{}", end.log);
    assert_eq!(end.outcome["reason"], "DiskInUse");
    let message = end.outcome["message"].as_str().unwrap();
    assert!(
        message.starts_with("the disk /dev/system-disk is in use"),
        "{message}"
    );
}
