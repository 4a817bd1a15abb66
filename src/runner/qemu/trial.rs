//! (pure) Command lines of QEMUs that are gone before the machine's own is started.

use crate::runner::machine::Acceleration;
use crate::runner::qemu::args::Args;
use std::path::Path;

/// The machine of both: like the real one where KVM makes a difference.
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

/// One with that guest in place of a BIOS, and the port by which the guest ends it.
pub fn probe(model: &str, secure: bool, guest: &Path) -> Vec<String> {
    let mut args = Args::default();
    machine(&mut args, secure, Acceleration::Kvm.name());
    args.plain("-cpu", model);
    args.plain("-bios", &guest.display().to_string());
    args.device(
        &serde_json::json!({"driver": "isa-debug-exit", "iobase": GUEST_PORT, "iosize": 4}),
    );
    args.into_vec()
}

/// The port by which the guest ends QEMU.
const GUEST_PORT: u16 = 0xf4;

/// One that runs nothing and answers questions at that descriptor.
pub fn asked_for_models(accelerator: Option<&str>, monitor: i32) -> Vec<String> {
    let mut args = Args::default();
    machine(&mut args, false, accelerator);
    args.flag("-S");
    args.plain("-chardev", &format!("socket,id=charmonitor,fd={monitor}"));
    args.plain("-mon", "chardev=charmonitor,id=monitor,mode=control");
    args.into_vec()
}
