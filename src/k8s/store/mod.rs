//! The newest known state of objects.

pub mod children;
pub mod primary;
pub mod trim;
