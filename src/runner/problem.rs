//! (pure) Something that is not as it should be, in a machine that runs all the same.

use crate::api::conditions::ConditionReason;

/// Something that is not as it should be: a reason of a condition, and what a user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The condition's reason.
    pub reason: ConditionReason,
    /// What is wrong, where, and what to do.
    pub message: String,
}

impl Problem {
    /// A problem.
    pub fn new(reason: ConditionReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}
