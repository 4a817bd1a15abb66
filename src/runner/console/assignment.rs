//! (pure) The assignment of a VM to a user of a pool, as far as it decides which consoles end.
//!
//! A console names the assignment under which it was opened. The configuration can be older than that, since a new one arrives seconds
//! later. So a console ends only when its assignment is the former one, or when another one begins.

/// The assignments in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// UID of the present one.
    present: Option<String>,
    /// UID of the one before.
    former: Option<String>,
}

impl Assignment {
    /// The assignment in the first configuration.
    pub fn new(present: Option<String>) -> Self {
        Self {
            present,
            former: None,
        }
    }

    /// Stores the assignment of a new configuration. Returns whether it is another one.
    pub fn change(&mut self, present: Option<&String>) -> bool {
        if self.present.as_ref() == present {
            return false;
        }
        let former = std::mem::replace(&mut self.present, present.cloned());
        self.former = former.or(self.former.take());
        // Only a kubelet or an operator with an older state brings a UID back.
        if self.former == self.present {
            self.former = None;
        }
        true
    }

    /// Whether this assignment is over.
    pub fn has_ended(&self, own: Option<&str>) -> bool {
        own.is_some() && own == self.former.as_deref()
    }

    /// Whether consoles with this assignment end after a change.
    pub fn excludes(&self, own: Option<&str>) -> bool {
        self.has_ended(own) || self.present.is_some() && self.present.as_deref() != own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consoles_of_the_former_user_end_and_those_of_the_next_user_remain() {
        let mut assignment = Assignment::new(None);
        let [one, two] = ["1", "2"].map(str::to_owned);
        let ends = |assignment: &Assignment| {
            [None, Some("1"), Some("2")].map(|own| assignment.excludes(own))
        };
        assert!(!assignment.change(None));
        assert!(assignment.change(Some(&one)));
        assert_eq!(ends(&assignment), [true, false, true]);
        assert!(!assignment.change(Some(&one)), "the same");
        // The second user can have the VM before this configuration arrives.
        assert!(assignment.change(None));
        assert_eq!(ends(&assignment), [false, true, false]);
        let mut returned = assignment.clone();
        assert!(returned.change(Some(&one)));
        assert_eq!(ends(&returned), [true, false, true]);
        assert!(assignment.change(Some(&two)));
        assert_eq!(ends(&assignment), [true, true, false]);
        assert_eq!(
            [None, Some("1"), Some("2")].map(|own| assignment.has_ended(own)),
            [false, true, false]
        );
    }
}
