//! Causes of the actions on pools.

use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// The cause of an action, as events and metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantNames)]
pub enum Why {
    /// A user gets the VM.
    Assigned,
    /// The assignment was deleted.
    Released,
    /// The retention has ended.
    Expired,
    /// Another user has got the VM after the end of the retention.
    Reclaimed,
    /// The VM was deleted.
    VmDeleted,
    /// The pool is being deleted.
    PoolDeleted,
    /// The user has another VM of the pool.
    Duplicate,
    /// The user has waited too long.
    WaitedTooLong,
    /// The pool keeps free VMs running.
    Prewarmed,
}

impl Why {
    /// The reason of events and the label of metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Assigned => "the VM is assigned",
            Self::Released => "the VmAssignment was deleted",
            Self::Expired => "the assignment has expired",
            Self::Reclaimed => "the assignment has expired, and another user needs the VM",
            Self::VmDeleted => "the VM was deleted, or left the pool",
            Self::PoolDeleted => "the pool was deleted",
            Self::Duplicate => "the user has another VM of the pool",
            Self::WaitedTooLong => "no VM became available within 30 minutes",
            Self::Prewarmed => "the pool keeps VMs running for its next users (spec.prewarm)",
        })
    }
}
