//! The errors of a reconcile, and the delay before the next one.

use crate::k8s::retry;
use std::time::Duration;

/// The longest delay while the API server is unavailable, or while another program keeps writing first.
pub const UNAVAILABLE_BACKOFF_MAX: Duration = Duration::from_secs(30);

/// A failed reconcile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server could not be reached, or it returned an error.
    #[error("cannot {verb} {kind} {name}: {}", plain(source))]
    Api {
        /// The verb of the request.
        verb: &'static str,
        /// Kind of the object.
        kind: Box<str>,
        /// Name of the object.
        name: String,
        /// The cause.
        source: kube::Error,
    },
    /// The name of a child is taken by an object that the primary object does not control.
    #[error(
        "{kind} {name} already exists, but has another owner or no owner, so the operator does not change it"
    )]
    OwnedByOther {
        /// Kind of the object.
        kind: &'static str,
        /// Name of the object.
        name: String,
        /// Its owner, if it is known.
        owner: Option<String>,
    },
    /// A child of a previous primary object with the same name still exists and will be deleted.
    #[error("{kind} {name} of a deleted owner still exists; {next}")]
    OwnedByPrevious {
        /// Kind of the object.
        kind: &'static str,
        /// Name of the object.
        name: String,
        /// The way in which it will be deleted.
        next: String,
    },
    /// An object was deleted or replaced since the observation, so the next reconcile decides.
    #[error("{kind} {name} was deleted or replaced after the operator had read it")]
    Changed {
        /// Kind of the object.
        kind: &'static str,
        /// Name of the object.
        name: String,
    },
    /// The reconcile took too long.
    #[error(
        "the reconcile has not finished within {0:?}, because the API server answers slowly or not at all; check the load of the API server"
    )]
    Timeout(Duration),
    /// A defect of this program. Other objects are still reconciled.
    #[error("internal error of the operator; report it as a bug: {0}")]
    Panic(String),
}

/// The message of the API server, without the rest of the `Status` object.
fn plain(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// The delay before the next reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// A delay that grows with each failure of the same object, up to this limit.
    Backoff(Duration),
    /// A fixed delay.
    After(Duration),
}

impl Error {
    /// The HTTP status code of the response, if there was a response.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } => Some(status.code),
            _ => None,
        }
    }

    /// Whether the API server says that the object does not exist. A 404 that names no object is about the kind: its definition is missing,
    /// or the API server is starting.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        let Self::Api {
            name,
            source: kube::Error::Api(status),
            ..
        } = self
        else {
            return false;
        };
        let details = status.details.as_ref();
        status.code == 404 && details.is_some_and(|details| details.name == *name)
    }

    /// Whether the API server rejects the value of this field, such as `metadata.name`.
    #[must_use]
    pub fn is_about(&self, field: &str) -> bool {
        let Self::Api {
            source: kube::Error::Api(status),
            ..
        } = self
        else {
            return false;
        };
        let mut causes = status.details.iter().flat_map(|details| &details.causes);
        causes.any(|cause| cause.field == field)
    }

    /// Whether the API server rejects the object as it is. A retry does not help until something changes.
    #[must_use]
    pub fn is_rejection(&self) -> bool {
        matches!(
            self,
            Self::OwnedByOther { .. } | Self::OwnedByPrevious { .. }
        ) || matches!(self.code(), Some(400 | 403 | 422))
    }

    /// The metric label and event reason.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match (self, self.code()) {
            (Self::Timeout(_), _) => "Timeout",
            (Self::Panic(_), _) => "InternalError",
            (_, Some(409)) | (Self::Changed { .. }, _) => "Conflict",
            (_, Some(429)) => "Throttled",
            _ if self.is_rejection() => "Rejected",
            _ => "ApiUnavailable",
        }
    }

    /// The delay before the next reconcile. The delays are short for an unavailable API server, because it can return
    /// at any time.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } => match (status.code, &status.details) {
                (429 | 500.., Some(details)) if details.retry_after_seconds > 0 => {
                    let longest = if status.code == 429 {
                        retry::BACKOFF_MAX
                    } else {
                        UNAVAILABLE_BACKOFF_MAX
                    };
                    Retry::After(
                        Duration::from_secs(details.retry_after_seconds.into()).min(longest),
                    )
                }
                // An overloaded server often gives no `Retry-After`.
                (409 | 429 | 500.., _) => Retry::Backoff(UNAVAILABLE_BACKOFF_MAX),
                _ => Retry::Backoff(retry::BACKOFF_MAX),
            },
            Self::OwnedByPrevious { .. } | Self::Changed { .. } => {
                Retry::After(Duration::from_secs(1))
            }
            Self::Api { .. } | Self::Timeout(_) => Retry::Backoff(UNAVAILABLE_BACKOFF_MAX),
            Self::OwnedByOther { .. } | Self::Panic(_) => Retry::Backoff(retry::BACKOFF_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response_with(code: u16) -> Error {
        overloaded(code, 0)
    }

    fn overloaded(code: u16, seconds: u32) -> Error {
        let details = serde_json::json!({"retryAfterSeconds": seconds});
        let status =
            serde_json::json!({"code": code, "message": "m", "reason": "r", "details": details});
        let status = serde_json::from_value(status).unwrap();
        Error::Api {
            verb: "get",
            kind: "Pod".into(),
            name: "a".to_owned(),
            source: kube::Error::Api(status),
        }
    }

    #[test]
    fn unavailable_server_is_retried_soon_and_a_rejection_is_not() {
        let lost = kube::Error::Service("the connection was lost".into());
        let lost = Error::Api {
            verb: "get",
            kind: "Pod".into(),
            name: "a".to_owned(),
            source: lost,
        };
        for unavailable in [
            lost,
            Error::Timeout(Duration::ZERO),
            response_with(429),
            response_with(500),
            response_with(503),
        ] {
            assert_eq!(
                unavailable.retry(),
                Retry::Backoff(UNAVAILABLE_BACKOFF_MAX),
                "{unavailable}"
            );
        }
        let foreign = Error::OwnedByOther {
            kind: "Pod",
            name: "a".to_owned(),
            owner: None,
        };
        for rejected in [response_with(403), response_with(422), foreign] {
            assert_eq!(
                rejected.retry(),
                Retry::Backoff(retry::BACKOFF_MAX),
                "{rejected}"
            );
        }
        assert_eq!(
            response_with(409).retry(),
            Retry::Backoff(UNAVAILABLE_BACKOFF_MAX)
        );
    }

    #[test]
    fn a_server_that_says_when_is_not_asked_before_but_within_five_minutes() {
        for (code, seconds, pause) in [
            (429, 1, 1),
            (429, 45, 45),
            (503, 20, 20),
            (503, 200, 30),
            (500, 7, 7),
            (429, u32::MAX, 300),
        ] {
            assert_eq!(
                overloaded(code, seconds).retry(),
                Retry::After(Duration::from_secs(pause)),
                "{code} {seconds}"
            );
        }
        assert_eq!(
            overloaded(409, 7).retry(),
            Retry::Backoff(UNAVAILABLE_BACKOFF_MAX)
        );
    }
}
