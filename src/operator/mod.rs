//! The program `vm-operator`: command line, start and shutdown, HTTP pages for probes and metrics.

pub mod cli;
mod fatal;
pub mod http;
mod peerpod;
mod run;
pub mod set;
pub mod sets;
#[cfg(feature = "web")]
mod web;
