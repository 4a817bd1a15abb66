//! Hardware acceleration is tested before it is used. The tests pass with and without a working KVM.

use crate::api::{Api, condition};
use crate::fixture::Fixture;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The mode that allows the pod's user to open the device, and the device number of KVM.
const KVM: &str = "666 10 232";

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
        ("666 1 3", "/dev/kvm is device 1:3 and not KVM's"),
        (
            "600 10 232",
            "/dev/kvm cannot be opened by uid 107: Permission denied",
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
        assert!(
            !fixture.log().contains("KVM was tested"),
            "{}",
            fixture.log()
        );
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
fn a_cpu_model_that_qemu_does_not_have_is_a_wrong_configuration_and_told_with_those_that_work() {
    let fixture = Fixture::new();
    for (accelerator, model, text, hint) in [
        (
            "tcg",
            "nehalem-9",
            "unable to find CPU model 'nehalem-9'",
            "among those that work: max, Nehalem, ",
        ),
        (
            "auto",
            "nehalem-9",
            "unable to find CPU model 'nehalem-9'",
            "among those that work: max, Nehalem, ",
        ),
        (
            "tcg",
            "Haswell,enforce",
            "TCG doesn't support requested features",
            "among those that work: max, ",
        ),
        (
            "tcg",
            "max,+sse9",
            "Property 'max-x86_64-cpu.sse9' not found",
            "correct its features",
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
            message.starts_with(&format!("/tmp/config/config.yaml: vm.cpuModel: {model:?} ")),
            "{message}"
        );
        assert!(
            message.contains(text) && message.contains(hint),
            "{message}"
        );
        // CPU models with missing features are not among them.
        assert!(
            !message.contains("host,") && !message.contains("Skylake"),
            "{message}"
        );
    }
}

#[test]
fn the_machines_own_kvm_runs_the_guest_or_it_is_said_why_not() {
    if !Path::new("/dev/kvm").exists() {
        return;
    }
    let fixture = Fixture::with_guest();
    let accelerated = accelerated(&fixture, KVM);
    let log = fixture.log();
    assert!(log.contains("KVM was tested"), "{log}");
    if accelerated["status"] == "True" {
        assert!(log.contains(" -accel kvm "), "{log}");
        return;
    }
    // The guest has booted anyway, and nothing of the attempt remains.
    assert_eq!(accelerated["reason"], "KvmDoesNotWork");
    assert!(
        accelerated["message"]
            .as_str()
            .unwrap()
            .contains("/dev/kvm runs no guest: "),
        "{accelerated}"
    );
    assert!(log.contains(" -accel tcg "), "{log}");
    assert!(!fixture.path("run/kvm-probe.bin").exists());
    fixture.configure(&json!({}), &json!({"accelerator": "kvm"}));
    let end = fixture.start_with_kvm(None, KVM).end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (69, &json!("AcceleratorUnavailable")),
        "{}",
        end.log
    );
}

#[test]
fn the_guest_that_kvm_is_tried_with_comes_to_its_end_and_to_64_bits() {
    let fixture = Fixture::new();
    let (bios, through) = vm_operator::runner::kvm_guest();
    let ends = |name: &str, bios: &[u8], model: &str| {
        fs::write(fixture.path(name), bios).unwrap();
        let bios = format!("/tmp/{name}");
        let arguments = "-nodefaults -no-user-config -no-reboot -display none -machine q35 -accel tcg -m 16M -device \
            isa-debug-exit,iobase=0xf4,iosize=4 -bios";
        let arguments = [
            &arguments.split_whitespace().collect::<Vec<_>>()[..],
            &[&bios, "-cpu", model],
        ]
        .concat();
        fixture.qemu(&arguments).status().unwrap().code()
    };
    // Also models without 64 bits or without the CPUID leaf for it.
    for model in ["max", "qemu64", "qemu32", "486"] {
        assert_eq!(ends("whole.bin", &bios, model), Some(through), "{model}");
    }
    // Without its first page table it fails only if it enters 64-bit mode.
    let table = bios
        .windows(4)
        .position(|bytes| bytes == [0x03, 0x20, 0, 0])
        .unwrap();
    let broken = [&bios[..table], &[0x02], &bios[table + 1..]].concat();
    assert_eq!(
        (
            ends("broken.bin", &broken, "max"),
            ends("broken.bin", &broken, "qemu32")
        ),
        (Some(0), Some(through))
    );
}
