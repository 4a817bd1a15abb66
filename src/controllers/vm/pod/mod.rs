//! (pure) Changes of a VM's pod while it runs, and its restart.

pub mod refresh_volume;
pub mod restart;
