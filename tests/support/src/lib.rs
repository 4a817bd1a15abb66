//! Code that several tests share. Never published.
//!
//! | module | content |
//! |---|---|
//! | [`memory`] | an API server in memory |
//! | [`real`] | a real API server with an etcd of its own |
//! | [`signal`] | tells of changes, in an order that does not depend on chance |
//! | [`fault`], [`layer`], [`traffic`] | faults between an operator and the API server, and the requests that pass |
//! | [`played`] | scheduler, volume binder, kubelet, runner and garbage collector; the history of all objects |
//! | [`judge`], [`history`] | checks of the final objects, and of every revision |
//! | [`timings`] | clocks and durations, virtual or real |
//! | [`enumeration`] | every fault at every call of a controller, simulated or on a real API server |
//! | [`vms`] | the controller of VMs and its scenarios |
//! | [`install`] | the definition of VMs on a real API server |
//!
//! All modules but `memory`, `real` and `signal` need the feature `operator`.

pub mod memory;
pub mod real;
pub mod signal;

#[cfg(feature = "operator")]
pub mod enumeration;
#[cfg(feature = "operator")]
pub mod fault;
#[cfg(feature = "operator")]
pub mod history;
#[cfg(feature = "operator")]
pub mod install;
#[cfg(feature = "operator")]
pub mod judge;
#[cfg(feature = "operator")]
pub mod layer;
#[cfg(feature = "operator")]
pub mod played;
#[cfg(feature = "operator")]
pub mod timings;
#[cfg(feature = "operator")]
pub mod traffic;
#[cfg(feature = "operator")]
pub mod vms;
