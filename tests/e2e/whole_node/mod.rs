//! Tests that need the node for themselves, as they take it away or change what it does for every pod.
//!
//! They take all slots. The test harness starts tests by name, so those of this module come last: if one of them came between
//! the others, the machine would be idle until the last guest of those has ended.

mod device_ownership;
mod drain;
mod kubelet;
mod loss;
