//! (client) The watches: the VMs themselves (`vms`), and the objects that the operator creates for them or reads (`children`).
//! [`crate::k8s::watch`] lists, follows and recovers from errors.

mod children;
mod vms;

pub use children::children;
pub use vms::{report_all_undecodable, vms};
