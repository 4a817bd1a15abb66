//! QMP, the protocol of QEMU's monitor: the [`codec`], [`commands`], [`events`] and the connection
//! of the [`client`].

mod client;
mod codec;
mod commands;
mod events;
#[cfg(test)]
pub mod testing;

pub use client::{Client, Error, QmpSignal, connect};
#[cfg(any(test, feature = "fuzzing"))]
pub use codec::fuzzing::check_qmp;
pub use commands::{ADD_CPU, Command, CpuSlot};
pub use events::{IoError, QmpEvent};
