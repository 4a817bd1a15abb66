//! (pure) The kinds `VirtualMachine`, `VmReport`, `VmPool`, `VmAssignment`, `PeerPod` and `SIPCluster`, and the contract between operator and runner.
//!
//! | module | content |
//! |---|---|
//! | [`vm`] | the kind `VirtualMachine`: spec, status, schema and rules; names of its objects, labels and annotations |
//! | [`runner`] | the contract between operator and runner: configuration file, outcome, download of images, metrics |
//! | [`conditions`] | conditions of any kind, and their changes |
//! | [`diagnosis`] | a problem of an object, with the next step |
//! | [`logging`] | the parts of Java's logging configuration that have an effect |
//! | [`peerpod`] | the kind `PeerPod` of confidential containers |
//! | [`pool`] | the kinds `VmPool` and `VmAssignment` |
//! | [`metal3`] | the kind `BareMetalHost` of Metal3: the fields that the project reads |
//! | [`quantity`] | sizes |
//! | [`report`] | the kind `VmReport`: the report of a runner |
//! | [`sip`] | the kind `SIPCluster` of Airship |

/// Declares constants, and a list with value and documentation of each. `docs/reference.md` is generated from the list.
macro_rules! listed {
    ($(#[$about:meta])* $list:ident { $($(#[doc = $text:literal])+ pub const $name:ident: &str = $value:literal;)* }) => {
        $($(#[doc = $text])+ pub const $name: &str = $value;)*
        $(#[$about])*
        pub const $list: &[(&str, &str)] = &[$(($value, concat!($($text),+))),*];
    };
}

pub mod conditions;
pub mod diagnosis;
pub mod logging;
pub mod metal3;
pub mod peerpod;
pub mod pool;
pub mod quantity;
pub mod report;
pub mod runner;
pub mod sip;
pub mod vm;

pub use peerpod::PeerPod;
pub use pool::{VmAssignment, VmPool};
pub use report::{VmReport, VmReportSpec, VmReportStatus};
pub use sip::SIPCluster;
pub use vm::{VirtualMachine, VirtualMachineSpec, VirtualMachineStatus};

/// Bytes as text: two lower-case hexadecimal digits for each.
#[must_use]
pub fn hex<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> String {
    bytes
        .into_iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
