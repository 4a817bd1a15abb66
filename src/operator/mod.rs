//! The operator: turns `VirtualMachine` objects into pods, claims, secrets, and keeps them equal.
//!
//! ```text
//!  API server ──watch──► streams ──► cache ─┐
//!      ▲                    └─ what changed ─┴─► vm::run ──► vm::reconcile  
//!      └──────────────────── write ◄──────────────────────────────┘
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`vm`] | the controller of `VirtualMachine`: the rooms that a reconcile goes through |
//! | [`controller`] | around each reconcile: deadline, panics, figures, next try |
//! | [`streams`], [`cache`], [`vm_store`], [`views`] | what the operator knows of the cluster, and how little of it |
//! | [`write`], [`events`] | the few ways in which it writes |
//! | [`leader`], [`access`], [`deadlines`] | one operator writes at a time; its requests are counted, and none is waited for without an end |
//! | [`context`], [`settings`], [`vm_state`], [`progress`] | what a reconcile is given |
//! | [`error`], [`owner`], [`backoff`] | errors, the owner of an object whose name is taken, and when to try again |
//! | [`cli`], [`http`], [`metrics`], [`logs`], [`docs`] | the process |

pub mod access;
pub mod backoff;
pub mod cache;
pub mod cli;
pub mod context;
pub mod controller;
pub mod deadlines;
pub mod error;
pub mod events;
pub mod http;
pub mod leader;
pub mod logs;
pub mod metrics;
pub mod owner;
pub mod progress;
pub mod settings;
pub mod streams;
pub mod views;
pub mod vm;
pub mod vm_state;
pub mod vm_store;
pub mod write;
