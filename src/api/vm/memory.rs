//! `spec.vm.memory`: what the machine's memory is made of.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the machine's memory is made of. The guest sees no difference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// Huge pages that the node has set aside. The pod asks for as many as `maximumRam` takes, which is to be a whole number
    /// of them, whatever `currentRam` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<Hugepages>,
    /// Whether QEMU can share the memory with other programs of the pod, such as a vhost-user device.
    pub shared: bool,
}

/// Huge pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hugepages {
    /// Their size.
    pub page_size: PageSize,
}

/// The sizes that huge pages have on x86.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PageSize {
    /// 2 MiB.
    #[serde(rename = "2Mi")]
    Large,
    /// 1 GiB.
    #[serde(rename = "1Gi")]
    Huge,
}

impl PageSize {
    /// The size, in the object, in the runner's configuration and in the name of the pod's resource.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Large => "2Mi",
            Self::Huge => "1Gi",
        }
    }

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Large => 2 << 20,
            Self::Huge => 1 << 30,
        }
    }
}
