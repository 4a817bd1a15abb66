//! What can go wrong in a reconcile, and when to try again.

use crate::k8s::retry;
use std::time::Duration;

/// The longest pause where the API server does not answer, or cannot, and where somebody else is always first.
pub const LONGEST_AWAY: Duration = Duration::from_secs(30);

/// A failed reconcile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server could not be asked, or has answered with an error.
    #[error("cannot {verb} {kind} {name}: {}", plain(source))]
    Api {
        /// What was tried.
        verb: &'static str,
        /// Kind of the object.
        kind: &'static str,
        /// Name of the object.
        name: String,
        /// The answer.
        source: kube::Error,
    },
    /// An object has the name of one of the VM's and is another's.
    #[error("{kind} {name} exists and is not controlled by this VM")]
    Foreign {
        /// Kind of the object.
        kind: &'static str,
        /// Name of the object.
        name: String,
        /// Its owner, if it is known.
        owner: Option<String>,
    },
    /// An object is left from an earlier VM of this name, and goes.
    #[error("{kind} {name} is left from an earlier VM of this name; {next}")]
    OfEarlier {
        /// Kind of the object.
        kind: &'static str,
        /// Name of the object.
        name: String,
        /// What becomes of it.
        next: String,
    },
    /// The reconcile took too long.
    #[error("not done within {0:?}; the API server answers slowly or not at all")]
    Timeout(Duration),
    /// A defect of ours. The VM is left alone; others go on.
    #[error("internal error: {0}")]
    Panic(String),
}

/// The API server's own words, without the dump of the whole answer.
fn plain(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// When to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// After a pause that grows with each failure of the same object, up to that.
    Backoff(Duration),
    /// After that time.
    After(Duration),
}

impl Error {
    /// The answer's HTTP status, if there was an answer.
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

    /// Whether the API server refuses the object as it is: trying again does not help before something changes.
    #[must_use]
    pub fn is_rejection(&self) -> bool {
        matches!(self, Self::Foreign { .. } | Self::OfEarlier { .. })
            || matches!(self.code(), Some(400 | 403 | 422))
    }

    /// Metric label and event reason.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match (self, self.code()) {
            (Self::Timeout(_), _) => "Timeout",
            (Self::Panic(_), _) => "InternalError",
            (_, Some(409)) => "Conflict",
            (_, Some(429)) => "Throttled",
            _ if self.is_rejection() => "Rejected",
            _ => "ApiUnavailable",
        }
    }

    /// When to try again. An API server that is away may be back at any time: what was missed meanwhile is not put off
    /// for long.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } => match (status.code, &status.details) {
                (429 | 500.., Some(details)) if details.retry_after_seconds > 0 => {
                    let longest = if status.code == 429 {
                        retry::LONGEST
                    } else {
                        LONGEST_AWAY
                    };
                    Retry::After(
                        Duration::from_secs(details.retry_after_seconds.into()).min(longest),
                    )
                }
                // A server that is busy often says nothing but that.
                (409 | 429 | 500.., _) => Retry::Backoff(LONGEST_AWAY),
                _ => Retry::Backoff(retry::LONGEST),
            },
            Self::OfEarlier { .. } => Retry::After(Duration::from_secs(1)),
            Self::Api { .. } | Self::Timeout(_) => Retry::Backoff(LONGEST_AWAY),
            Self::Foreign { .. } | Self::Panic(_) => Retry::Backoff(retry::LONGEST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16) -> Error {
        busy(code, 0)
    }

    fn busy(code: u16, seconds: u32) -> Error {
        let details = serde_json::json!({"retryAfterSeconds": seconds});
        let status =
            serde_json::json!({"code": code, "message": "m", "reason": "r", "details": details});
        let status = serde_json::from_value(status).unwrap();
        Error::Api {
            verb: "get",
            kind: "Pod",
            name: "vm".to_owned(),
            source: kube::Error::Api(status),
        }
    }

    #[test]
    fn a_server_that_is_away_is_asked_again_soon_and_one_that_refuses_is_not() {
        let lost = kube::Error::Service("the connection was lost".into());
        let lost = Error::Api {
            verb: "get",
            kind: "Pod",
            name: "vm".to_owned(),
            source: lost,
        };
        for away in [
            lost,
            Error::Timeout(Duration::ZERO),
            refused(429),
            refused(500),
            refused(503),
        ] {
            assert_eq!(away.retry(), Retry::Backoff(LONGEST_AWAY), "{away}");
        }
        let foreign = Error::Foreign {
            kind: "Pod",
            name: "vm".to_owned(),
            owner: None,
        };
        for refused in [refused(403), refused(422), foreign] {
            assert_eq!(refused.retry(), Retry::Backoff(retry::LONGEST), "{refused}");
        }
        assert_eq!(refused(409).retry(), Retry::Backoff(LONGEST_AWAY));
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
                busy(code, seconds).retry(),
                Retry::After(Duration::from_secs(pause)),
                "{code} {seconds}"
            );
        }
        assert_eq!(busy(409, 7).retry(), Retry::Backoff(LONGEST_AWAY));
    }
}
