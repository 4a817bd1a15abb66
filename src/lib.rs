//! Virtual machines as Kubernetes objects.
//!
//! Imports point downwards only:
//!
//! | layer | module | content |
//! |---|---|---|
//! | 5 | [`operator`] | the program `vm-operator`: command line, start, pages for probes and metrics |
//! | 4 | [`controllers`] | one folder for each kind: [`controllers::vm`] |
//! | 4 | [`runner`] | the program `vm-runner`, PID 1 of each VM's pod: starts QEMU, keeps it as configured, reports |
//! | 4 | [`web`] | `vm-operator web`: the web console |
//! | 4 | [`device_plugin`] | `vm-operator device-plugin`, once on each node: offers `/dev/kvm` and others to pods |
//! | 3 | [`k8s`] | everything between a controller and the API server; knows no kind of ours |
//! | 2 | [`settings`], [`telemetry`], `sys`, `pinned_tls`, `https` | configuration; logs and metrics; the only `unsafe` code, for the runner; TLS between console and runners; requests to services outside the cluster |
//! | 1 | [`api`] | pure data: the kinds, and the contract between operator and runner |
//!
//! The operator and the runner share [`api`] and `k8s::client`. The features `operator` and `runner` build each alone.

pub mod api;
#[cfg(feature = "operator")]
pub mod controllers;
#[cfg(feature = "operator")]
pub mod device_plugin;
#[cfg(any(all(test, feature = "runner"), feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "operator")]
pub mod https;
pub mod k8s;
#[cfg(feature = "operator")]
pub mod operator;
#[cfg(any(feature = "runner", feature = "web"))]
pub mod pinned_tls;
#[cfg(feature = "runner")]
pub mod runner;
#[cfg(feature = "operator")]
pub mod settings;
#[cfg(feature = "runner")]
mod sys;
#[cfg(feature = "operator")]
pub mod telemetry;
#[cfg(feature = "web")]
pub mod web;
