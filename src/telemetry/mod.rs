//! Logs and metrics.

pub mod logs;
pub mod metrics;
pub mod pools;
mod process;
pub mod scraped;
pub mod work_queue;
