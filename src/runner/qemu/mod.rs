//! (pure) QEMU's command line, made of a [`Machine`].
//!
//! What always holds: devices are at the places that the reference's order gives them, because a guest knows them by that;
//! the same machine gives the same arguments; no secret is among them. Structured options are JSON, in which nothing
//! can be smuggled; where QEMU takes none, commas are doubled.

mod args;
mod board;
mod drives;
mod peripherals;
mod trial;

pub use drives::{cd_device, cd_image, cd_node, disk_node};
pub use peripherals::{GUEST_AGENT_CHANNEL, VMOP_AGENT_CHANNEL};
pub use trial::{asked_for_models, probe};

use crate::runner::machine::Machine;
use args::Args;
use serde_json::json;

/// QEMU's program.
pub const PROGRAM: &str = "/usr/bin/qemu-system-x86_64";

/// No privilege, no program, no resource beyond what it starts with.
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

/// The numbers that descriptors have in QEMU.
pub const DESCRIPTORS: Descriptors = Descriptors {
    monitor: 3,
    serial: 4,
    guest_agent: 5,
    vmop_agent: 6,
    tpm: 7,
};

/// The number that the tap of that network has in QEMU, behind all others that it uses.
pub fn tap_descriptor(n: usize) -> i32 {
    DESCRIPTORS.tpm + 1 + i32::try_from(n).unwrap_or_default()
}

/// All arguments but the program.
pub fn arguments(machine: &Machine, descriptors: Descriptors) -> Vec<String> {
    let mut args = Args::default();
    process(&mut args, descriptors);
    board::identity(&mut args, machine);
    board::firmware(&mut args, machine);
    board::memory(&mut args, machine);
    board::tpm(&mut args, machine, descriptors);
    board::processors(&mut args, machine);
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

/// QEMU as a process: paused until told, without anything that it would add by itself, confined, and staying when the
/// guest powers off, so that its end is decided in one place.
fn process(args: &mut Args, descriptors: Descriptors) {
    for flag in ["-S", "-nodefaults", "-no-user-config"] {
        args.flag(flag);
    }
    args.plain("-display", "none");
    args.plain("-sandbox", SANDBOX);
    args.plain("-action", "shutdown=pause");
    args.plain(
        "-chardev",
        &format!("socket,id=charmonitor,fd={}", descriptors.monitor),
    );
    args.plain("-mon", "chardev=charmonitor,id=monitor,mode=control");
}

/// A character device behind a socket that listens already: nobody has to wait for a file to appear.
fn listener(id: &str, descriptor: i32) -> String {
    format!("socket,id={id},fd={descriptor},server=on,wait=off")
}

/// A device with a place in the boot order, if it has one.
fn bootable(mut device: serde_json::Value, bootindex: Option<u32>) -> serde_json::Value {
    if let (Some(fields), Some(index)) = (device.as_object_mut(), bootindex) {
        fields.insert("bootindex".to_owned(), json!(index));
    }
    device
}

#[cfg(test)]
mod tests;
