//! Programs in the guest that the runner talks to.

mod answers;
#[cfg(test)]
mod fuzz;
pub mod guest;
mod lines;
pub mod login;
pub mod vmop;
