//! The API client.

pub mod connect;
#[cfg(feature = "operator")]
pub mod gate;
#[cfg(feature = "operator")]
pub mod timeout;
