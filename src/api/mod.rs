//! What operator and runner agree on: pure data, no I/O.
//!
//! | module | what |
//! |---|---|
//! | [`virtual_machine`] | the `VirtualMachine` kind: spec, status, schema and its rules |
//! | [`runner_config`] | the file by which the operator tells the runner what to run |
//! | [`outcome`] | how the runner tells the operator why it ended |
//! | [`conditions`] | condition types, reasons, and how a condition changes |
//! | [`fetch`] | how images get into the image repository |
//! | [`logging`] | what of Java's way to configure logging has a meaning |
//! | [`names`] | labels, annotations, field managers, names of children |
//! | [`quantity`] | sizes |
//! | [`vm_metrics`] | figures that a runner serves about its machine |

/// Constants, and a list of them: value and documentation of each, of which `docs/reference.md` is made.
macro_rules! listed {
    ($(#[$about:meta])* $list:ident { $($(#[doc = $text:literal])+ pub const $name:ident: &str = $value:literal;)* }) => {
        $($(#[doc = $text])+ pub const $name: &str = $value;)*
        $(#[$about])*
        pub const $list: &[(&str, &str)] = &[$(($value, concat!($($text),+))),*];
    };
}

pub mod conditions;
pub mod logging;
pub mod quantity;
pub mod runner;
pub mod vm;

pub use vm::{VirtualMachine, VirtualMachineSpec, VirtualMachineStatus};

/// Bytes as text: two lower-case digits for each.
#[must_use]
pub fn hex<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> String {
    bytes
        .into_iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
