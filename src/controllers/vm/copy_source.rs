//! (pure) The PVC that is copied onto a disk.

use crate::k8s::views::ClaimView;
use std::sync::Arc;
use std::time::Duration;

/// Delay while the source is missing or in use. No watch reports that it is free.
pub const RECHECK_DELAY: Duration = Duration::from_secs(10);

/// The source of a copy.
#[derive(Clone, Debug, Default)]
pub struct CopySource {
    /// The PVC, if it exists.
    pub claim: Option<Arc<ClaimView>>,
    /// A pod or VM that can write to it, in the words of a message. A running import is not checked.
    pub writer: Option<String>,
    /// A VM whose import has not filled it yet.
    pub unfilled: Option<String>,
}
