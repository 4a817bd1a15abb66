//! The layer between a controller and the API server. It knows no kind of this project.
//!
//! | module | content |
//! |---|---|
//! | [`client`] | the API client: connections, time-outs, the gate that holds back writes without leadership |
//! | `cluster`, `scope` | the dependencies that all controllers of a process share; those of one namespace |
//! | `controller`, `queue` | the trait `Reconciler`, the loop that runs it, and its queue |
//! | `key`, `state`, `retry` | the identity of an object, the state kept of it, and delays after failures |
//! | `watch`, `forbidden`, `undecodable`, `follow`, `store`, `registry`, `tasks` | lists and watches, the stores that they fill, and their supervision |
//! | `views`, `ownership`, `applied`, `live` | fields of Kubernetes' own kinds, the owners of objects, applied fields, checks against the API server |
//! | `writer`, `finalizer`, `events`, `event_queue`, `error`, `rejection` | writes, events and their queue, errors, and requests that the API server rejects |
//! | `leader` | leader election |

#[cfg(feature = "operator")]
pub mod applied;
pub mod client;
#[cfg(feature = "operator")]
pub mod cluster;
#[cfg(feature = "operator")]
pub mod controller;
#[cfg(feature = "operator")]
pub mod error;
#[cfg(feature = "operator")]
pub mod event_queue;
#[cfg(feature = "operator")]
pub mod events;
#[cfg(feature = "operator")]
pub mod finalizer;
#[cfg(feature = "operator")]
pub mod follow;
#[cfg(feature = "operator")]
pub mod forbidden;
#[cfg(feature = "operator")]
pub mod key;
#[cfg(feature = "operator")]
pub mod leader;
#[cfg(feature = "operator")]
pub mod live;
#[cfg(feature = "operator")]
pub mod ownership;
#[cfg(feature = "operator")]
pub mod queue;
#[cfg(feature = "operator")]
pub mod registry;
#[cfg(feature = "operator")]
pub mod rejection;
#[cfg(feature = "operator")]
pub mod retry;
#[cfg(feature = "operator")]
pub mod scope;
#[cfg(feature = "operator")]
pub mod state;
#[cfg(feature = "operator")]
pub mod store;
#[cfg(feature = "operator")]
pub mod tasks;
#[cfg(feature = "operator")]
pub mod undecodable;
#[cfg(feature = "operator")]
pub mod views;
#[cfg(feature = "operator")]
pub mod watch;
#[cfg(feature = "operator")]
pub mod writer;
