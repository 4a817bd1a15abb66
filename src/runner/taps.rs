//! (io) Taps of a VM's networks, and the messages if one cannot be created.

use crate::api::vm::names;
use crate::runner::failure::Failure;
use crate::sys::tap::{self, Tap, TapError};
use rustix::io::Errno;

const TUN: &str = names::TUN_DEVICE;

/// Creates a tap on that bridge; `key` is the field of the configuration.
pub fn open(key: &str, bridge: &str) -> Result<Tap, Failure> {
    tap::open(TUN, names::TAP_INTERFACE, bridge).map_err(|error| {
        Failure::data(match error {
            TapError::Open(error) => {
                let user = rustix::process::getuid().as_raw();
                format!("{key}: {TUN} cannot be opened by uid {user}: {error}; {}", device_hint(error))
            }
            TapError::Create(error) => format!(
                "{key}: no tap can be created: {error}; the pod needs the capability NET_ADMIN and must start {}, to \
                 which the image gives it",
                names::TAP_RUNNER
            ),
            TapError::Attach(error) => {
                let hint = "create the bridge on the node, or select a node that has it (spec.nodeSelector)";
                format!("{key}: no tap can be attached to the bridge {bridge}: {error}; {hint}")
            }
        })
    })
}

/// The step that helps if the device cannot be opened.
fn device_hint(error: Errno) -> &'static str {
    match error {
        Errno::NOENT => "give it to the pod by the setting tap.tunResource or tap.hostPath",
        Errno::NODEV | Errno::NXIO => "load the kernel module on the node: modprobe tun",
        Errno::ACCESS => {
            "give all users access to it on the node (chmod 666), or use a device plugin (setting tap.tunResource)"
        }
        _ => "give it to the pod by a device plugin (setting tap.tunResource)",
    }
}
