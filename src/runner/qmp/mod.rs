//! QEMU's monitor: bytes ([`codec`]), meaning ([`types`], [`events`]) and the connection ([`client`]) apart.

mod client;
mod codec;
mod events;
#[cfg(test)]
pub mod testing;
mod types;

pub use client::{Client, Error, Signal, connect};
#[cfg(any(test, feature = "fuzzing"))]
pub use codec::fuzzing::check_qmp;
pub use events::{Event, IoError};
pub use types::{Command, CpuSlot};
