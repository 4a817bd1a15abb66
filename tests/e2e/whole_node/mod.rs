//! Tests that need the node for themselves, because they stop it or change it for each pod.
//!
//! They take all slots. The test harness starts tests by name, so those of this module come last. Between others, they
//! would leave the machine idle until the last guest has stopped.

mod device_ownership;
mod device_plugin;
mod drain;
mod kubelet;
mod loss;
