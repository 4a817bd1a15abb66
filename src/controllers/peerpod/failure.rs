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
    /// Whether all calls to the provider fail. Otherwise the failure is about one instance or one action.
    pub is_of_provider: bool,
    /// The delay that the provider demands.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure of all calls to the provider.
    pub fn of_provider(reason: PeerPodReason, message: String) -> Self {
        Self {
            reason,
            message,
            code: String::new(),
            is_of_provider: true,
            retry_after: None,
        }
    }

    /// A failure that other instances do not have.
    pub fn of_instance(reason: PeerPodReason, message: String) -> Self {
        Self {
            is_of_provider: false,
            ..Self::of_provider(reason, message)
        }
    }

    /// The failure with the code of the provider.
    pub fn with_code(self, code: String) -> Self {
        Self { code, ..self }
    }

    /// The failure with the delay that the provider demands.
    pub fn retry_after(self, retry_after: Option<Duration>) -> Self {
        Self {
            retry_after,
            ..self
        }
    }
}
