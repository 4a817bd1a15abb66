//! Programs in the guest that the runner talks to.

pub mod guest;
