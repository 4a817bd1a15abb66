//! Logs and metrics.

pub mod conditions;
pub mod logs;
pub mod metrics;
pub mod pools;
