//! Everything between a controller and the API server. No kind of ours is known here.

pub mod client;
#[cfg(feature = "operator")]
pub mod controller;
#[cfg(feature = "operator")]
pub mod error;
#[cfg(feature = "operator")]
pub mod events;
#[cfg(feature = "operator")]
pub mod leader;
#[cfg(feature = "operator")]
pub mod retry;
#[cfg(feature = "operator")]
pub mod store;
#[cfg(feature = "operator")]
pub mod watch;
#[cfg(feature = "operator")]
pub mod writer;
