//! (pure) Changes and restarts of a running pod.

pub mod refresh_volume;
pub mod resources;
pub mod restart;
