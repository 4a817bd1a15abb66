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
                format!("{key}: the runner cannot open {TUN} as uid {user}: {error}; {}", device_hint(error))
            }
            TapError::Create(error) => format!(
                "{key}: the runner cannot create a tap device: {error}; add the capability NET_ADMIN to the runner's \
                 container, and set the container's command to {}",
                names::TAP_RUNNER
            ),
            TapError::Attach(error) => {
                let hint = "create the bridge on the node, or select a node with this bridge (spec.nodeSelector)";
                format!("{key}: the runner cannot attach the tap device to the bridge {bridge:?}: {error}; {hint}")
            }
        })
    })
}

/// The step that helps if the device cannot be opened.
fn device_hint(error: Errno) -> &'static str {
    match error {
        Errno::NOENT => {
            "to give pods the device /dev/net/tun, set tap.tunResource to the device plugin's resource, or \
             tap.hostPath to true, in the operator's ConfigMap"
        }
        Errno::NODEV | Errno::NXIO => "load the kernel module tun on the node (modprobe tun)",
        Errno::ACCESS => {
            "give all users access to /dev/net/tun on the node (chmod 666). Or use a device plugin: in the operator's \
             ConfigMap, set tap.hostPath to false and tap.tunResource to the plugin's resource"
        }
        _ => {
            "use a device plugin for /dev/net/tun: in the operator's ConfigMap, set tap.hostPath to false and \
             tap.tunResource to the plugin's resource"
        }
    }
}
