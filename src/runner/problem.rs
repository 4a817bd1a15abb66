//! (pure) Something that is not as it should be, in a machine that runs all the same.

/// Something that is not as it should be: a reason of a condition, and what a user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// CamelCase, one of a closed list.
    pub reason: &'static str,
    /// What is wrong, where, and what to do.
    pub message: String,
}

impl Problem {
    /// A problem.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}
