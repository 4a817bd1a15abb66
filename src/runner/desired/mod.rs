//! (pure) What a running machine should be, and the commands for CPUs and the display's password.
//!
//! What always holds: where the machine is as it should be there is nothing to do; a command that QEMU has refused is not
//! repeated until what is wanted has changed.

pub mod cpus;
pub mod display;

use crate::api::quantity::Bytes;
use crate::runner::resolved::Live;
use display::Password;
use std::collections::BTreeMap;

/// What a running machine should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// Generation of the configuration.
    pub generation: Option<i64>,
    /// The configuration's part.
    pub live: Live,
    /// Size of the memory, which the balloon takes from.
    pub ram: Bytes,
    /// The last request for a reset.
    pub reset: Option<i64>,
    /// Least size of each disk, in bytes.
    pub sizes: Vec<u64>,
    /// Counts how often the guest was stopped because a disk could not go on.
    pub stalls: u64,
    /// The display's password, if the display asks for one.
    pub password: Option<Password>,
    /// Whether the guest is up, and can give CPUs back.
    pub booted: bool,
    /// Counts the guest's boots after the first.
    pub reboots: u64,
    /// Devices that the guest, since it boots, was asked for and does not let go: their ids, and what it says.
    pub refused: BTreeMap<String, String>,
    /// Counts the occasions to look again at what the machine is.
    pub attempt: u64,
}

impl Desired {
    /// Takes the sizes of the machine's disks, in their order; what is not given stays. No disk shrinks by that.
    pub fn grow(&mut self, sizes: &[Option<Bytes>]) {
        for (have, want) in self.sizes.iter_mut().zip(sizes) {
            *have = want.map_or(*have, |want| want.0);
        }
    }

    /// Takes another configuration; what the guest has refused of the one before is another question then.
    pub fn take(&mut self, live: Live) {
        if live.cpus != self.live.cpus {
            self.refused.clear();
        }
        self.live = live;
    }

    /// The guest boots anew, and has refused nothing yet.
    pub fn reboot(&mut self) {
        self.reboots += 1;
        self.refused.clear();
    }
}
