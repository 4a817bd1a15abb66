//! Logs and metrics.

pub mod logs;
pub mod metrics;
mod process;
pub mod scraped;
pub mod work_queue;
