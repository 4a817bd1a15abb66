//! (pure) The contract between the operator and the runner.

pub mod config;
pub mod fetch;
pub mod identity;
pub mod metrics;
pub mod outcome;
pub mod viewer;
