//! Code that several tests share. Never published.
//!
//! | module | content |
//! |---|---|
//! | [`memory`] | an API server in memory |
//! | [`real`] | a real API server with an etcd of its own |
//! | [`web`] | a web server that does what a test wants |
//! | [`taken`] | where and when figures were taken |
//! | [`generator`], [`nonsense`] | specs that are valid, and mutated ones |
//! | [`alone`] | a VM without children, as a reconcile sees it |
//! | [`signal`] | tells of changes, in an order that does not depend on chance |
//! | [`fault`], [`layer`], [`traffic`] | faults between an operator and the API server, and the requests that pass |
//! | [`played`] | scheduler, volume binder, kubelet, runner and garbage collector; the history of all objects |
//! | [`judge`], [`history`] | checks of the final objects, and of every revision |
//! | [`timings`] | clocks and durations, virtual or real |
//! | [`enumeration`] | every fault at every call of a controller, simulated or on a real API server |
//! | [`vms`] | the controller of VMs and its scenarios |
//! | [`install`] | the definition of VMs on a real API server |
//!
//! The modules that start or call the operator need the feature `operator`.

pub mod memory;
pub mod real;
pub mod signal;
pub mod taken;
pub mod web;

#[cfg(feature = "operator")]
pub mod alone;
#[cfg(feature = "operator")]
pub mod enumeration;
#[cfg(feature = "operator")]
pub mod fault;
#[cfg(feature = "operator")]
pub mod generator;
#[cfg(feature = "operator")]
pub mod history;
#[cfg(feature = "operator")]
pub mod install;
#[cfg(feature = "operator")]
pub mod judge;
#[cfg(feature = "operator")]
pub mod layer;
#[cfg(feature = "operator")]
pub mod nonsense;
#[cfg(feature = "operator")]
pub mod played;
#[cfg(feature = "operator")]
pub mod timings;
#[cfg(feature = "operator")]
pub mod traffic;
#[cfg(feature = "operator")]
pub mod vms;
