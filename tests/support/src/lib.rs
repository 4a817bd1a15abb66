//! Code that several tests share. It is never published.
//!
//! | module | content |
//! |---|---|
//! | [`boot_sector`] | a guest that runs under any KVM |
//! | [`memory`] | an API server in memory |
//! | [`real`] | a real API server with its own etcd |
//! | [`example`] | the examples, with values in place of placeholders |
//! | [`rights`] | the permissions of roles, and their comparison with requests |
//! | [`web`] | a web server with configurable faults |
//! | [`pages`] | the commands of the pages in `docs/` |
//! | [`provenance`] | date, commit and machine of a measurement |
//! | [`processor`] | processor times of processes and of the machine |
//! | [`replay`] | the writes of a client about VMs, and another client that sends the same writes |
//! | [`generator`], [`mutation`] | valid specs, and specs with mutations |
//! | [`observed`] | `Observed` values of a VM without children |
//! | [`signal`] | notifications of changes in a deterministic order |
//! | [`fault`], [`layer`], [`traffic`] | faults between an operator and the API server, and its requests in progress |
//! | [`components`] | simulated scheduler, volume binder, kubelet, runner and garbage collector; the history of all objects |
//! | [`final_state`], [`invariants`] | checks of the final objects, and of each revision |
//! | [`timings`] | clocks and durations, virtual or real |
//! | [`enumeration`] | every fault at every call of a controller, simulated or on a real API server |
//! | [`vms`], [`pools`], [`peerpods`], [`sip`] | the controllers of VMs, pools, PeerPods and SIPClusters, and their scenarios |
//! | [`install`] | the definition of VMs on a real API server |
//!
//! The modules that start or call the operator need the feature `operator`.

pub mod boot_sector;
pub mod example;
pub mod memory;
pub mod pages;
pub mod processor;
pub mod provenance;
pub mod real;
#[cfg(feature = "operator")]
pub mod replay;
pub mod rights;
pub mod signal;
pub mod web;

#[cfg(feature = "operator")]
pub mod components;
#[cfg(feature = "operator")]
pub mod enumeration;
#[cfg(feature = "operator")]
pub mod fault;
#[cfg(feature = "operator")]
pub mod final_state;
#[cfg(feature = "operator")]
pub mod generator;
#[cfg(feature = "operator")]
pub mod install;
#[cfg(feature = "operator")]
pub mod invariants;
#[cfg(feature = "operator")]
pub mod layer;
#[cfg(feature = "operator")]
pub mod mutation;
#[cfg(feature = "operator")]
pub mod observed;
#[cfg(feature = "operator")]
pub mod peerpods;
#[cfg(feature = "operator")]
pub mod pools;
#[cfg(feature = "operator")]
pub mod sip;
#[cfg(feature = "operator")]
pub mod timings;
#[cfg(feature = "operator")]
pub mod traffic;
#[cfg(feature = "operator")]
pub mod vms;
