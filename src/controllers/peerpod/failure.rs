//! (pure) Failures of calls to providers.

use crate::api::peerpod::PeerPodReason;
use std::time::Duration;

/// The failure of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason that is reported.
    pub reason: PeerPodReason,
    /// Cause and next step. It contains no secret.
    pub message: String,
    /// The code of the provider, empty without one.
    pub code: String,
    /// The delay that the provider demands.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure without an answer of the provider.
    pub fn new(reason: PeerPodReason, message: String) -> Self {
        Self {
            reason,
            message,
            code: String::new(),
            retry_after: None,
        }
    }

    /// Whether all calls to the provider fail. Otherwise the failure is about one instance or one action.
    pub fn is_of_provider(&self) -> bool {
        matches!(
            self.reason,
            PeerPodReason::ConfigMissing
                | PeerPodReason::ConfigInvalid
                | PeerPodReason::CredentialsRejected
                | PeerPodReason::Throttled
                | PeerPodReason::ProviderUnreachable
        )
    }
}
