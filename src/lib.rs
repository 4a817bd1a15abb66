//! Virtual machines as Kubernetes objects.
//!
//! | module | what | runs as |
//! |---|---|---|
//! | [`api`] | what both halves agree on: the `VirtualMachine` kind, the runner's configuration, names | – |
//! | `connect` | the API client; listening on a port | – |
//! | [`operator`] | turns `VirtualMachine` objects into pods, claims, secrets | `vm-operator`, once in a namespace |
//! | [`device_plugin`] | offers a node's `/dev/kvm` and others to pods | `vm-operator device-plugin`, once on each node |
//! | [`runner`] | starts QEMU in a VM's pod, keeps it as configured, reports | `vm-runner`, PID 1 of each VM's pod |
//!
//! The halves share these two and nothing else; the features `operator` and `runner` build each alone.

pub mod api;
#[cfg(feature = "operator")]
pub mod controllers;
#[cfg(feature = "operator")]
pub mod device_plugin;
#[cfg(any(all(test, feature = "runner"), feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod k8s;
#[cfg(feature = "operator")]
pub mod operator;
#[cfg(feature = "runner")]
pub mod runner;
#[cfg(feature = "operator")]
pub mod settings;
#[cfg(feature = "runner")]
mod sys;
#[cfg(feature = "operator")]
pub mod telemetry;
