//! Results of runs.

use crate::final_state::Content;

/// The result of a run without a fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// The objects before the first step with faults, and at the end.
    pub ends: [Content; 2],
    /// Every place at which a fault is possible.
    pub places: Vec<String>,
}

/// The result of a run with a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The run ends with the same objects, and its history is accepted.
    Same,
    /// As `Same`, but a place was not passed.
    NotReached,
    /// The run ends with other objects.
    Differs(String),
    /// The judge rejects its history, whatever its final objects are.
    Broken(String),
}

impl Verdict {
    pub(super) fn new(end: Result<(), String>, violations: &[String], is_reached: bool) -> Self {
        match end {
            Ok(()) if !violations.is_empty() => Self::Broken(violations.join("; ")),
            Ok(()) if is_reached => Self::Same,
            Ok(()) => Self::NotReached,
            Err(difference) if violations.is_empty() => {
                Self::Differs(format!("the final objects differ:\n    {difference}"))
            }
            Err(difference) => Self::Broken(format!(
                "{}; and the final objects differ:\n    {difference}",
                violations.join("; ")
            )),
        }
    }

    /// The reason for which the run fails, if it does.
    #[must_use]
    pub fn wrong(&self) -> Option<&str> {
        match self {
            Self::Same | Self::NotReached => None,
            Self::Differs(why) | Self::Broken(why) => Some(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Verdict;

    #[test]
    fn a_rejected_history_is_wrong_whatever_the_end_is() {
        let violations = ["2 pods are alive".to_owned()];
        let differs = || Err("a is b".to_owned());
        let wrong = |end| {
            Verdict::new(end, &violations, true)
                .wrong()
                .map(ToOwned::to_owned)
        };
        assert_eq!(wrong(Ok(())).unwrap(), "2 pods are alive");
        assert_eq!(
            wrong(differs()).unwrap(),
            "2 pods are alive; and the final objects differ:\n    a is b"
        );
        assert!(Verdict::new(differs(), &[], true).wrong().is_some());
        assert_eq!(Verdict::new(Ok(()), &[], false), Verdict::NotReached);
    }
}
