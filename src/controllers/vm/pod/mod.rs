//! What becomes of a VM's pod.

pub mod exit;
pub mod refresh_volume;
pub mod restart;
