//! `spec.vm.memory`: the kind of host memory that backs the guest's memory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Host memory that backs the guest's memory. The guest sees no difference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// Huge pages that back the guest's memory. Only a node with enough free huge pages of this size can run the VM. The pod
    /// requests huge pages for `maximumRam`, even if `currentRam` is smaller. `maximumRam` must be a multiple of the page size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<Hugepages>,
    /// Whether QEMU allocates the guest's memory with `share=on`, so that another process in the pod, such as a vhost-user
    /// backend, can map the memory.
    pub shared: bool,
}

/// Huge pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hugepages {
    /// Size of a huge page.
    pub page_size: PageSize,
}

/// Sizes of huge pages on x86.
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
    /// The size as the object, the runner's configuration and the name of the pod's resource spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Large => "2Mi",
            Self::Huge => "1Gi",
        }
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Large => 2 << 20,
            Self::Huge => 1 << 30,
        }
    }
}
