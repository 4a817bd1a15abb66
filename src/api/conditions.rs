//! Conditions of any kind of object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use std::fmt::Debug;

/// The reason of a condition.
pub trait Reason: Copy + Debug {
    /// The text of the reason in a condition.
    fn as_str(self) -> &'static str;

    /// Whether a condition of that type can have the reason.
    fn is_of(self, _type: &str) -> bool {
        true
    }
}

/// A desired condition, without its transition time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredCondition<R> {
    /// The condition's type.
    pub type_: &'static str,
    /// Whether the status is `True` instead of `False`.
    pub status: bool,
    /// The reason for its status.
    pub reason: R,
    /// The message for users.
    pub message: String,
}

impl<R: Reason> DesiredCondition<R> {
    /// The condition to write at the time `now`. `present` are the conditions of the object: if the status is unchanged, the
    /// transition time is retained. That of a definition's default is replaced.
    #[must_use]
    pub fn at(&self, present: &[Condition], generation: Option<i64>, now: Timestamp) -> Condition {
        debug_assert!(
            self.reason.is_of(self.type_),
            "the reason is not declared for the type of this condition: {self:?}"
        );
        let status = if self.status { "True" } else { "False" };
        let before = find(present, self.type_)
            .filter(|c| c.status == status && c.last_transition_time.0 != Timestamp::UNIX_EPOCH);
        // Objects have whole seconds.
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        Condition {
            type_: self.type_.to_owned(),
            status: status.to_owned(),
            observed_generation: generation,
            last_transition_time: before.map_or(Time(now), |c| c.last_transition_time.clone()),
            reason: self.reason.as_str().to_owned(),
            message: self.message.clone(),
        }
    }
}

/// The condition of a type.
#[must_use]
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether the condition of a type is present and `True`.
#[must_use]
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|c| c.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug)]
    struct Same;

    impl Reason for Same {
        fn as_str(self) -> &'static str {
            "Same"
        }
    }

    #[test]
    fn the_transition_time_changes_with_the_status_only() {
        let desired = |status| DesiredCondition {
            type_: "Ready",
            status,
            reason: Same,
            message: String::new(),
        };
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let default = desired(false).at(&[], None, Timestamp::UNIX_EPOCH);
        let first = desired(false).at(&[default], Some(2), at(10));
        assert_eq!(first.last_transition_time.0, at(10));
        let second = desired(true).at(&[first], Some(2), at(20));
        assert_eq!(second.last_transition_time.0, at(20));
        assert_eq!(
            desired(true)
                .at(&[second], Some(3), at(30))
                .last_transition_time
                .0,
            at(20)
        );
    }
}
