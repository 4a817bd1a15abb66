//! (pure) The board: machine type, firmware, memory, CPUs, TPM and clock.

use crate::api::runner::config::VmConfig;
use crate::runner::machine::{Acceleration, Machine, StandardDevice};
use crate::runner::qemu::Descriptors;
use crate::runner::qemu::args::{Args, escape};
use serde_json::{Value, json};

/// Number of spare root ports, at most 8.
const SPARE_PORT_COUNT: u8 = 4;

/// Name, UUID and machine type.
pub fn identity(args: &mut Args, machine: &Machine) {
    args.plain(
        "-name",
        &format!("guest={},debug-threads=on", escape(&machine.spec.vm.name)),
    );
    args.plain("-uuid", &machine.uuid);
    let mut options = format!(
        "{},usb=off,vmport=off,dump-guest-core=off,memory-backend=pc.ram,hpet=off",
        escape(&machine.machine_type)
    );
    if let Some(firmware) = &machine.firmware {
        if firmware.secure {
            options.push_str(",smm=on");
        }
        options.push_str(",pflash0=fw-rom-device,pflash1=fw-eeprom-device");
    }
    args.plain("-machine", &options);
    // Nothing could wake a suspended guest.
    args.plain("-global", "ICH9-LPC.disable_s3=1");
    args.plain("-global", "ICH9-LPC.disable_s4=1");
    if machine.acceleration == Acceleration::Kvm {
        args.plain("-global", "kvm-pit.lost_tick_policy=delay");
    }
}

pub fn firmware(args: &mut Args, machine: &Machine) {
    if let Some(firmware) = &machine.firmware {
        for (name, path, read_only) in [
            ("fw-rom", &firmware.rom, true),
            ("fw-eeprom", &firmware.vars, false),
        ] {
            let file = format!("{name}-file");
            let content = json!({
                "driver": "file", "node-name": file, "filename": path, "auto-read-only": true, "discard": "unmap",
            });
            args.json("-blockdev", &content);
            let device = json!({
                "driver": "raw", "node-name": format!("{name}-device"), "file": file, "read-only": read_only,
            });
            args.json("-blockdev", &device);
        }
        if firmware.secure {
            args.plain("-global", "driver=cfi.pflash01,property=secure,value=on");
        }
    }
    if machine.spec.vm.boot_menu {
        args.plain("-boot", "menu=on");
    }
}

/// Memory and the balloon. The balloon deflates before the guest runs out of memory.
pub fn memory(args: &mut Args, machine: &Machine) {
    let bytes = machine.spec.ram.0;
    args.json("-object", &backend(&machine.spec.vm, bytes));
    args.plain("-m", &format!("{bytes}B"));
    let balloon = json!({
        "driver": "virtio-balloon-pci", "id": "balloon0", "deflate-on-oom": true, "free-page-reporting": true,
    });
    args.pci_device(machine.pci_slots.standard(StandardDevice::Balloon), balloon);
}

/// The memory backend. Huge pages and shared memory use a memfd, so that no volume has to be
/// mounted. Huge pages are reserved when QEMU starts; QEMU does not start without them.
fn backend(vm: &VmConfig, bytes: u64) -> Value {
    if vm.hugepages.is_none() && !vm.shared_memory {
        return json!({"qom-type": "memory-backend-ram", "id": "pc.ram", "size": bytes});
    }
    let mut file =
        json!({"qom-type": "memory-backend-memfd", "id": "pc.ram", "size": bytes, "share": true});
    if let (Some(page), Some(fields)) = (vm.hugepages, file.as_object_mut()) {
        fields.insert("hugetlb".to_owned(), json!(true));
        fields.insert("hugetlbsize".to_owned(), json!(page.bytes()));
    }
    file
}

/// The TPM: swtpm at the other end of that descriptor.
pub fn tpm(args: &mut Args, machine: &Machine, descriptors: Descriptors) {
    if machine.spec.vm.use_tpm {
        args.plain(
            "-chardev",
            &format!("socket,id=chrtpm,fd={}", descriptors.tpm),
        );
        args.plain("-tpmdev", "emulator,id=tpm0,chardev=chrtpm");
        args.device(&json!({"driver": "tpm-tis", "tpmdev": "tpm0"}));
    }
}

/// One CPU, and slots for the others. QEMU can remove only CPUs that were added later.
pub fn processors(args: &mut Args, machine: &Machine) {
    args.plain("-cpu", &machine.cpu_model);
    let vm = &machine.spec.vm;
    let mut smp = format!("1,maxcpus={}", machine.spec.maximum_cpus);
    let parts = [
        ("sockets", vm.sockets),
        ("dies", vm.dies_per_socket),
        ("cores", vm.cores_per_die),
        ("threads", vm.threads_per_core),
    ];
    for (name, count) in parts.into_iter().filter(|(_, count)| *count > 0) {
        smp.push_str(&format!(",{name}={count}"));
    }
    args.plain("-smp", &smp);
    if let Some(accelerator) = machine.acceleration.name() {
        args.plain("-accel", accelerator);
    }
    if machine.iommu {
        args.device(&json!({"driver": "intel-iommu", "device-iotlb": true}));
    }
}

/// Devices by which the guest detects that it is a copy, and reports a crash.
pub fn guest_notifications(args: &mut Args, machine: &Machine) {
    if let Some(guid) = &machine.generation_id {
        args.device(&json!({"driver": "vmgenid", "id": "vmgenid0", "guid": guid}));
    }
    if machine.panic_device {
        args.device(&json!({"driver": "pvpanic", "id": "pvpanic0"}));
    }
}

/// Spare PCIe root ports: functions of one slot. Without them, no device can ever be connected to a
/// running VM.
pub fn spare_ports(args: &mut Args, machine: &Machine) {
    let Some(slot) = machine.pci_slots.spare_ports else {
        return;
    };
    for n in 0..SPARE_PORT_COUNT {
        args.device(&json!({
            "driver": "pcie-root-port", "id": format!("spare-port{n}"), "bus": "pcie.0",
            "addr": format!("{slot:#x}.{n:#x}"), "multifunction": true, "chassis": n + 1, "port": n,
        }));
    }
}

pub fn clock(args: &mut Args, machine: &Machine) {
    let (base, clock) = (
        escape(&machine.spec.vm.rtc_base),
        machine.spec.vm.rtc_clock.as_str(),
    );
    args.plain("-rtc", &format!("base={base},clock={clock},driftfix=slew"));
}
