//! (pure) The desired state of a running VM, and the commands for CPUs and the display's password.
//!
//! Invariants: no command is planned if the VM is in the desired state. A command that QEMU has
//! rejected is not repeated before the desired state changes.

pub mod cpus;
pub mod display_password;

use crate::api::quantity::Bytes;
use crate::runner::spec::Live;
use display_password::DisplayPassword;
use std::collections::BTreeMap;

/// The desired state of a running VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredState {
    /// Generation of the configuration.
    pub generation: Option<i64>,
    /// Values of the configuration that can change while the VM runs.
    pub live: Live,
    /// Memory that the VM was started with. The balloon can take from it.
    pub ram: Bytes,
    /// The newest reset request.
    pub reset: Option<i64>,
    /// Minimum size of each disk, in bytes.
    pub sizes: Vec<u64>,
    /// Number of times that QEMU has stopped the guest because of a disk error.
    pub stalls: u64,
    /// The display's password, if the display requires one.
    pub password: Option<DisplayPassword>,
    /// Whether the guest has booted and can release CPUs.
    pub booted: bool,
    /// Number of reboots.
    pub reboots: u64,
    /// Devices that the guest has refused to release since it booted: id and reason.
    pub unplug_rejections: BTreeMap<String, String>,
    /// A counter. An increase makes the runner compare the VM with the unchanged desired state again.
    pub attempt: u64,
    /// Number of times that clients of the SPICE display were disconnected.
    pub disconnects: u64,
}

impl DesiredState {
    /// The memory that the balloon leaves to the guest.
    pub fn balloon_target(&self) -> Bytes {
        self.live.ram.unwrap_or(self.ram)
    }

    /// Sets the minimum sizes of the disks, in their order. An entry without a value leaves its
    /// disk unchanged. Disks never shrink.
    pub fn set_disk_sizes(&mut self, sizes: &[Option<Bytes>]) {
        for (have, want) in self.sizes.iter_mut().zip(sizes) {
            *have = want.map_or(*have, |want| want.0);
        }
    }

    /// Sets new values. A new number of CPUs resets the guest's rejections, because they were
    /// answers to another request.
    pub fn set_live(&mut self, live: Live) {
        if live.cpus != self.live.cpus {
            self.unplug_rejections.clear();
        }
        self.live = live;
    }

    /// The guest reboots. A rebooted guest has rejected nothing yet.
    pub fn record_reboot(&mut self) {
        self.reboots += 1;
        self.unplug_rejections.clear();
    }
}
