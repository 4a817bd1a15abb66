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
                "{key}: no tap can be made: {error}; the pod needs the capability NET_ADMIN, and has to start {}, to which \
                 the image gives it",
                names::TAP_RUNNER
            ),
            TapError::Attach(error) => {
                let hint = "make the bridge on the node, or let the VM run where it is (spec.nodeSelector)";
                format!("{key}: no tap can be put on the bridge {bridge}: {error}; {hint}")
            }
        })
    })
}

/// What helps where the device cannot be opened.
fn device_hint(error: Errno) -> &'static str {
    match error {
        Errno::NOENT => {
            "a pod gets it by the resource that the setting tap.tunResource names, or by tap.hostPath"
        }
        Errno::NODEV | Errno::NXIO => "load the kernel's module on the node: modprobe tun",
        Errno::ACCESS => {
            "let everybody use it on the node (chmod 666), or let a device plugin give it to the pod's user"
        }
        _ => {
            "let the container runtime give it to the pod, by a device plugin's resource (setting tap.tunResource)"
        }
    }
}
