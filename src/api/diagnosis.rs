//! A problem of an object: its cause and the next step of the person who can solve it.

use std::fmt;

/// A problem, as conditions, events and logs show it. `R` is the type of its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis<R> {
    /// The reason of the condition and the event.
    pub reason: R,
    /// Path of the invalid field or key. Empty if `problem` names the object.
    pub subject: String,
    /// The cause.
    pub problem: String,
    /// An instruction. Empty if there is nothing to do.
    pub next_step: String,
}

impl<R> Diagnosis<R> {
    /// A problem that names its object.
    pub fn new(
        reason: impl Into<R>,
        problem: impl Into<String>,
        next_step: impl Into<String>,
    ) -> Self {
        Self {
            reason: reason.into(),
            subject: String::new(),
            problem: problem.into(),
            next_step: next_step.into(),
        }
    }
}

impl<R> fmt::Display for Diagnosis<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.subject.is_empty() {
            write!(f, "{}: ", self.subject)?;
        }
        f.write_str(&self.problem)?;
        if !self.next_step.is_empty() {
            write!(f, "; {}", self.next_step)?;
        }
        Ok(())
    }
}
