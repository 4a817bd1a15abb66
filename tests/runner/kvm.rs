//! Hardware acceleration: it is checked before it is used, runs a boot sector, and is replaced by emulation if it fails.
//!
//! Tests with the machine's KVM fail without one, unless `KVM=absent` is set. The KVM of some machines runs a boot sector and
//! no operating system.

use crate::api::{Api, condition};
use crate::fixture::{Fixture, Vm};
use crate::syscalls::{Answer, with_kvm_run};
use serde_json::{Value, json};
use std::fs;
use support::boot_sector::machine_has_kvm;

/// The mode that allows the pod's user to open the device, and the device number of KVM.
const KVM: &str = "666 10 232";

/// The CPU of the node. Some paravirtual KVMs report capabilities that they reject: QEMU then aborts at its start.
const HOST: &str = "host,-arch-capabilities";

/// The acceleration of the guest, as the running runner reports it.
fn accelerated(fixture: &Fixture, device: &str) -> Value {
    let api = Api::start();
    fixture.configure(&json!({"namespace": "ns"}), &json!({"accelerator": "auto"}));
    let vm = fixture.start_with_kvm(Some(&api), device);
    vm.reaches("Booted");
    vm.until("a report", || {
        let last = api.statuses().pop()?;
        let booted = condition(&last, "Booted")["status"] == "True";
        booted.then(|| condition(&last, "Accelerated").clone())
    })
}

#[test]
fn a_kvm_that_cannot_be_used_is_explained_and_the_guest_is_emulated() {
    let fixture = Fixture::with_guest();
    for (device, text) in [
        (
            "666 1 3",
            "/dev/kvm has the device number 1:3, but KVM has 10:232",
        ),
        (
            "600 10 232",
            "uid 107 cannot open /dev/kvm: Permission denied",
        ),
    ] {
        let accelerated = accelerated(&fixture, device);
        assert_eq!(
            (&accelerated["status"], &accelerated["reason"]),
            (&json!("False"), &json!("KvmNotAvailable"))
        );
        assert!(
            accelerated["message"].as_str().unwrap().contains(text),
            "{accelerated}"
        );
        assert!(!fixture.log().contains(" -accel kvm "), "{}", fixture.log());
        fixture.configure(&json!({}), &json!({"accelerator": "kvm"}));
        let end = fixture.start_with_kvm(None, device).end();
        assert_eq!(
            (end.code, &end.outcome["reason"]),
            (69, &json!("AcceleratorUnavailable")),
            "{}",
            end.log
        );
        assert!(
            end.outcome["message"].as_str().unwrap().contains(text),
            "{}",
            end.outcome
        );
    }
}

#[test]
fn unknown_cpu_model_is_a_configuration_error_reported_with_alternatives() {
    let fixture = Fixture::new();
    for (accelerator, model, text, hint) in [
        (
            "tcg",
            "nehalem-9",
            "unable to find CPU model 'nehalem-9'",
            "use the CPU model `host`, which works on every node, or a model that `qemu-system-x86_64 -cpu help` prints",
        ),
        (
            "auto",
            "nehalem-9",
            "unable to find CPU model 'nehalem-9'",
            "use the CPU model `host`, which works on every node, or a model that `qemu-system-x86_64 -cpu help` prints",
        ),
        (
            "tcg",
            "Haswell,enforce",
            "TCG doesn't support requested features",
            "use the CPU model `host`, which works on every node, or a model that `qemu-system-x86_64 -cpu help` prints",
        ),
        (
            "tcg",
            "max,+sse9",
            "Property 'max-x86_64-cpu.sse9' not found",
            "correct the CPU features, the part of the value after the first comma",
        ),
    ] {
        fixture.configure(
            &json!({}),
            &json!({"drives": [], "accelerator": accelerator, "cpuModel": model}),
        );
        let end = fixture.start(None).end();
        assert_eq!(
            (end.code, &end.outcome["reason"]),
            (64, &json!("InvalidConfig")),
            "{}",
            end.log
        );
        let message = end.outcome["message"].as_str().unwrap();
        assert!(
            message.starts_with(&format!(
                "/tmp/config/config.yaml: vm.cpuModel: the CPU model {model:?} "
            )),
            "{message}"
        );
        assert!(
            message.contains(text) && message.contains(hint),
            "{message}"
        );
    }
    // The command that the message names.
    let models = fixture.qemu(&["-cpu", "help"]).output().unwrap();
    let models = String::from_utf8_lossy(&models.stdout).into_owned();
    assert!(
        models.contains(" Nehalem ") && models.contains(" max "),
        "{models}"
    );
}

#[test]
fn host_kvm_runs_the_guest_or_its_failure_is_explained() {
    if !machine_has_kvm() {
        return;
    }
    let fixture = Fixture::with_guest();
    let accelerated = accelerated(&fixture, KVM);
    let log = fixture.log();
    assert!(log.contains("the KVM check has finished"), "{log}");
    if accelerated["status"] == "True" {
        assert!(log.contains(" -accel kvm "), "{log}");
        return;
    }
    // The guest has booted anyway, and no QEMU was started in the attempt.
    assert_eq!(accelerated["reason"], "KvmDoesNotWork");
    assert!(
        accelerated["message"]
            .as_str()
            .unwrap()
            .contains("the KVM check (/dev/kvm) failed at the step "),
        "{accelerated}"
    );
    assert!(
        log.contains(" -accel tcg ") && !log.contains(" -accel kvm "),
        "{log}"
    );
}

#[test]
fn the_command_prints_each_step_of_the_check() {
    if !machine_has_kvm() {
        return;
    }
    let fixture = Fixture::with_boot_sector();
    fixture.configure(&json!({}), &json!({"accelerator": "kvm", "cpuModel": HOST}));
    let vm = fixture.start_with_kvm(None, KVM);
    vm.reaches("Booting");
    let check = |options: &[&str]| {
        let output = vm.exec(&[&["kvm-check"], options].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), text)
    };
    let (code, text) = check(&["--basic"]);
    let steps = [
        "kernel: ",
        "processor: ",
        "KVM modules: ",
        "open the device: ok",
        "query the version of the KVM interface: ok",
        "create a VM: ok",
        "create a vCPU: ok",
        "run a program in real mode: ok",
        "KVM works",
    ];
    assert_eq!((code, text.lines().count()), (0, steps.len()), "{text}");
    for (line, step) in text.lines().zip(steps) {
        assert!(line.starts_with(step), "{text}");
    }
    let (code, text) = check(&[]);
    let last = text.lines().last().unwrap_or_default();
    match code {
        0 => assert!(
            text.contains("run XSAVE and XRSTOR in 64-bit mode: ok"),
            "{text}"
        ),
        69 => assert!(
            text.contains(" in 64-bit mode: failed: KVM cannot execute a test instruction (KVM internal error, suberror 1")
                && last.starts_with("KVM on this node cannot execute instructions that operating systems need; "),
            "{text}"
        ),
        code => panic!("{code}: {text}"),
    }
}

/// Whether a process has a vCPU of KVM.
fn has_vcpu(process: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let target = |file: fs::DirEntry| fs::read_link(file.path()).unwrap_or_default();
    files
        .flatten()
        .any(|file| target(file).to_string_lossy().contains("kvm-vcpu"))
}

/// Waits for the value of a field in the runner's status.
fn reports(vm: &Vm<'_>, api: &Api, field: &str, value: &Value) {
    vm.until(&format!("{field} is {value}"), || {
        let last = api.statuses().pop()?;
        (last["status"][field] == *value).then_some(())
    });
}

#[test]
fn a_boot_sector_runs_under_kvm_with_each_change_of_a_running_vm() {
    if !machine_has_kvm() {
        return;
    }
    let fixture = Fixture::with_boot_sector();
    let configure = |generation: i64, cpus: u32, reset: i64| {
        fixture.configure(
            &json!({"namespace": "ns", "generation": generation, "resetCounter": reset}),
            &json!({"accelerator": "kvm", "cpuModel": HOST, "maximumCpus": 2, "currentCpus": cpus}),
        );
    };
    configure(1, 1, 0);
    let api = Api::start();
    let vm = fixture.start_with_kvm(Some(&api), KVM);
    let mut console = vm.console();
    console.wait("SECTOR boot=1\r\n");
    assert!(has_vcpu(vm.qemu()));
    let accelerated = vm.until("a report", || {
        let last = api.statuses().pop()?;
        let running = condition(&last, "Running")["status"] == "True";
        running.then(|| condition(&last, "Accelerated").clone())
    });
    assert_eq!(
        (&accelerated["status"], &accelerated["reason"]),
        (&json!("True"), &json!("Kvm"))
    );

    console.type_line("hi");
    console.wait("<h><i>");
    configure(2, 2, 0);
    reports(&vm, &api, "cpus", &json!(2));
    configure(3, 2, 1);
    console.wait("SECTOR boot=2\r\n");
    reports(&vm, &api, "observedResetRequest", &json!(1));

    // The guest obeys the power button.
    vm.signal("-TERM");
    console.wait("SECTOR off");
    let end = vm.end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (10, &json!("Stopped")),
        "{}",
        end.log
    );

    // Its disk has the counter.
    let vm = fixture.start_with_kvm(None, KVM);
    vm.console().wait("SECTOR boot=3\r\n");
}

#[test]
fn a_qemu_that_kvm_ends_is_unavailable_acceleration() {
    if !machine_has_kvm() {
        return;
    }
    let fixture = Fixture::with_boot_sector();
    let configure = |model: &str| {
        let vm = json!({"accelerator": "kvm", "cpuModel": model});
        fixture.configure(&json!({}), &vm);
    };
    // QEMU exits if KVM cannot do this. Some machines' KVM can.
    configure("host,hv-vpindex");
    let vm = fixture.start_with_kvm(None, KVM);
    vm.until("an end or a guest", || {
        let log = fixture.log();
        (log.contains("the runner exits")
            || log.contains("QEMU has exited")
            || log.contains("to=Booting"))
        .then_some(())
    });
    if !fixture.log().contains("to=Booting") {
        let end = vm.end();
        assert_eq!(
            (end.code, &end.outcome["reason"]),
            (69, &json!("AcceleratorUnavailable")),
            "{}",
            end.log
        );
        let message = end.outcome["message"].as_str().unwrap();
        assert!(
            message.starts_with("the VM requires KVM, but QEMU exited with "),
            "{message}"
        );
    } else {
        drop(vm);
    }
    // A vCPU that KVM does not run, on any machine.
    configure(HOST);
    let fails = |thread: &str| match thread {
        "exe" => Answer::Kernel,
        _ => Answer::Errno(libc::EFAULT),
    };
    with_kvm_run(fails, || {
        let end = fixture.start_with_kvm(None, KVM).end();
        assert_eq!(
            (end.code, &end.outcome["reason"]),
            (69, &json!("AcceleratorUnavailable")),
            "{}",
            end.log
        );
        let message = end.outcome["message"].as_str().unwrap();
        assert!(
            message.contains("KVM cannot resume the guest")
                && message.contains("kvm run failed Bad address"),
            "{message}"
        );
    });
}

#[test]
fn a_vm_whose_kvm_fails_after_the_check_starts_once_more_under_emulation() {
    if !machine_has_kvm() {
        return;
    }
    let fixture = Fixture::with_boot_sector();
    let vm = json!({"accelerator": "auto", "cpuModel": HOST});
    fixture.configure(&json!({"namespace": "ns"}), &vm);
    let api = Api::start();
    // The check passes, and QEMU's vCPU fails.
    let answer = |thread: &str| match thread {
        "exe" => Answer::Halt,
        _ => Answer::Errno(libc::EFAULT),
    };
    with_kvm_run(answer, || {
        let vm = fixture.start_with_kvm(Some(&api), KVM);
        // The first QEMU has a console too.
        vm.logged(" -accel tcg ");
        let mut console = vm.console();
        console.wait("SECTOR boot=1\r\n");
        let log = fixture.log();
        assert_eq!(log.matches(" -accel kvm ").count(), 1, "{log}");
        assert_eq!(log.matches(" -accel tcg ").count(), 1, "{log}");
        let accelerated = vm.until("a report", || {
            let last = api.statuses().pop()?;
            let running = condition(&last, "Running")["status"] == "True";
            let accelerated = condition(&last, "Accelerated").clone();
            (running && accelerated["status"] == "False").then_some(accelerated)
        });
        assert_eq!(accelerated["reason"], "KvmFailed");
        let message = accelerated["message"].as_str().unwrap();
        assert!(message.contains("kvm run failed Bad address"), "{message}");
        let record = fs::read_to_string(fixture.path("data/machine.json")).unwrap();
        // The choice of the start with KVM, and none of the fallback.
        assert!(record.contains(r#""screen":"virtio-vga""#), "{record}");
        // The second QEMU is the runner's like any other one.
        vm.signal("-TERM");
        console.wait("SECTOR off");
        let end = vm.end();
        assert_eq!(
            (end.code, &end.outcome["reason"]),
            (10, &json!("Stopped")),
            "{}",
            end.log
        );
    });
}

#[test]
fn a_check_that_hangs_is_repeated_once_and_then_the_guest_is_emulated() {
    if !machine_has_kvm() {
        return;
    }
    let fixture = Fixture::with_boot_sector();
    fixture.configure(&json!({"namespace": "ns"}), &json!({"accelerator": "auto"}));
    let api = Api::start();
    with_kvm_run(
        |_| Answer::Never,
        || {
            let vm = fixture.start_with_kvm(Some(&api), KVM);
            vm.console().wait("SECTOR boot=1\r\n");
            let log = fixture.log();
            assert_eq!(
                log.matches("the KVM check has finished").count(),
                2,
                "{log}"
            );
            vm.until("a report", || {
                let last = api.statuses().pop()?;
                let reason = &condition(&last, "Accelerated")["reason"];
                (reason == "KvmCheckTimedOut").then_some(())
            });
            let record = fs::read_to_string(fixture.path("data/machine.json")).unwrap();
            assert!(!record.contains("screen"), "{record}");
        },
    );
}
