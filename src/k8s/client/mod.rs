//! The API client.

pub mod connect;
#[cfg(feature = "operator")]
pub mod gate;
#[cfg(feature = "operator")]
mod request_info;
#[cfg(feature = "operator")]
pub mod timeout;
