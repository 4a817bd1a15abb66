//! Programs in the guest that the runner talks to.

mod answers;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod guest;
mod lines;
pub mod login;
pub mod vmop;
