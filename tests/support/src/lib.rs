//! Code that several tests share. Never published.

pub mod memory;
pub mod real;
