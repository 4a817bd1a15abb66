//! What operator and runner agree on: pure data, no I/O.
//!
//! | module | what |
//! |---|---|
//! | [`virtual_machine`] | the `VirtualMachine` kind: spec, status, schema and its rules |
//! | [`runner_config`] | the file by which the operator tells the runner what to run |
//! | [`outcome`] | how the runner tells the operator why it ended |
//! | [`conditions`] | condition types, reasons, and how a condition changes |
//! | [`names`] | labels, annotations, field managers, names of children |
//! | [`quantity`] | sizes |

pub mod conditions;
pub mod names;
pub mod outcome;
pub mod quantity;
pub mod runner_config;
pub mod virtual_machine;

pub use virtual_machine::{VirtualMachine, VirtualMachineSpec, VirtualMachineStatus};
