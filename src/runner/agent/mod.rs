//! Programs in the guest that the runner talks to.

pub mod guest;
pub mod login;
pub mod vmop;
