//! (pure) Command lines of short-lived QEMU processes that test KVM and list CPU models.

use crate::runner::machine::Acceleration;
use crate::runner::qemu::args::Args;
use std::path::Path;

/// The machine of both: like the VM's own in all options that matter to KVM.
fn machine(args: &mut Args, secure: bool, accelerator: Option<&str>) {
    for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
        args.flag(flag);
    }
    args.plain("-display", "none");
    args.plain("-sandbox", crate::runner::qemu::SANDBOX);
    args.plain(
        "-machine",
        &format!(
            "q35,usb=off,vmport=off,hpet=off{}",
            if secure { ",smm=on" } else { "" }
        ),
    );
    if let Some(accelerator) = accelerator {
        args.plain("-accel", accelerator);
    }
    args.plain("-m", "16M");
}

/// Runs that guest as the BIOS. The guest ends QEMU through an I/O port.
pub fn probe(model: &str, secure: bool, guest: &Path) -> Vec<String> {
    let mut args = Args::default();
    machine(&mut args, secure, Acceleration::Kvm.name());
    args.plain("-cpu", model);
    args.plain("-bios", &guest.display().to_string());
    args.device(&serde_json::json!({"driver": "isa-debug-exit", "iobase": EXIT_PORT, "iosize": 4}));
    args.into_vec()
}

/// The port through which the guest ends QEMU.
const EXIT_PORT: u16 = 0xf4;

/// Runs no guest, and answers QMP commands on that descriptor.
pub fn cpu_model_query(accelerator: Option<&str>, monitor: i32) -> Vec<String> {
    let mut args = Args::default();
    machine(&mut args, false, accelerator);
    args.flag("-S");
    args.plain("-chardev", &format!("socket,id=charmonitor,fd={monitor}"));
    args.plain("-mon", "chardev=charmonitor,id=monitor,mode=control");
    args.into_vec()
}
