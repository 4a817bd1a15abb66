//! (pure) QEMU's command line, built from a [`Machine`].
//!
//! Invariants: devices have the slots of the Java VM-Operator, because guests identify devices by
//! them. The same VM gives the same arguments. The arguments contain no secret. Structured options
//! are JSON, so that a value cannot add options. Other options have doubled commas.

mod args;
mod board;
mod drives;
mod peripherals;

pub use drives::{cd_device, cd_image, cd_node, disk_node};
pub use peripherals::{GUEST_AGENT_CHANNEL, VMOP_AGENT_CHANNEL};

use crate::runner::machine::Machine;
use args::Args;
use serde_json::json;

pub const PROGRAM: &str = "/usr/bin/qemu-system-x86_64";

/// Denies obsolete system calls, new privileges, new programs, and changes of priority, scheduling and CPU affinity.
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// File descriptors that QEMU inherits.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Descriptors {
    pub monitor: i32,
    pub serial: i32,
    pub guest_agent: i32,
    pub vmop_agent: i32,
    pub tpm: i32,
}

/// The numbers of the descriptors in QEMU.
pub const DESCRIPTORS: Descriptors = Descriptors {
    monitor: 3,
    serial: 4,
    guest_agent: 5,
    vmop_agent: 6,
    tpm: 7,
};

/// The number of a tap's descriptor in QEMU. Taps come after all other descriptors.
pub fn tap_descriptor(n: usize) -> i32 {
    DESCRIPTORS.tpm + 1 + i32::try_from(n).unwrap_or_default()
}

/// All arguments without the program.
pub fn arguments(machine: &Machine, descriptors: Descriptors) -> Vec<String> {
    let mut args = Args::default();
    process(&mut args, descriptors);
    board::identity(&mut args, machine);
    board::firmware(&mut args, machine);
    board::memory(&mut args, machine);
    board::tpm(&mut args, machine, descriptors);
    board::processors(&mut args, machine);
    board::guest_notifications(&mut args, machine);
    board::spare_ports(&mut args, machine);
    board::clock(&mut args, machine);
    peripherals::serial(&mut args, descriptors);
    peripherals::agents(&mut args, machine, descriptors);
    peripherals::input_and_entropy(&mut args, machine);
    peripherals::screen_and_sound(&mut args, machine);
    peripherals::networks(&mut args, machine);
    drives::cds(&mut args, machine);
    drives::disks(&mut args, machine);
    drives::seed(&mut args, machine);
    peripherals::spice(&mut args, machine);
    args.into_vec()
}

/// Options of the process: starts paused and sandboxed, without default devices, and pauses when
/// the guest powers off, so that only the runner ends QEMU.
fn process(args: &mut Args, descriptors: Descriptors) {
    for flag in ["-S", "-nodefaults", "-no-user-config"] {
        args.flag(flag);
    }
    args.plain("-display", "none");
    // Without a port: clients come by QMP. Without a keyboard layout, because clients send the places of keys.
    args.plain("-vnc", "none");
    args.plain("-sandbox", SANDBOX);
    args.plain("-action", "shutdown=pause");
    args.plain(
        "-chardev",
        &format!("socket,id=charmonitor,fd={}", descriptors.monitor),
    );
    args.plain("-mon", "chardev=charmonitor,id=monitor,mode=control");
}

/// A character device on a listening socket. QEMU inherits the socket, so no client has to wait
/// until it exists.
fn listener(id: &str, descriptor: i32) -> String {
    format!("socket,id={id},fd={descriptor},server=on,wait=off")
}

/// Adds the position in the boot order, if there is one.
fn bootable(mut device: serde_json::Value, bootindex: Option<u32>) -> serde_json::Value {
    if let (Some(fields), Some(index)) = (device.as_object_mut(), bootindex) {
        fields.insert("bootindex".to_owned(), json!(index));
    }
    device
}

#[cfg(test)]
mod tests;
