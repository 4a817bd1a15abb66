//! (pure) The display's password.

use crate::runner::qmp::Command;
use std::fmt;

/// A password and when it ends.
#[derive(Clone, PartialEq, Eq)]
pub struct Password {
    /// The password itself.
    pub text: String,
    /// In the syntax of `expire_password`; none means never.
    pub expiry: Option<String>,
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Password(not shown, expiry {:?})", self.expiry)
    }
}

impl Password {
    /// From the contents of the two files. Editors and `echo` end a file with a line end, which is no part of it.
    pub fn of_files(password: Option<String>, expiry: Option<String>) -> Option<Self> {
        let expiry = expiry.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        password.map(|text| Self { text: text.trim_end_matches(['\r', '\n']).to_owned(), expiry })
    }
}

/// The commands that take the display from what it has to what it should have. The expiry goes along with each new
/// password: a relative one counts from there.
pub fn commands(desired: Option<&Password>, applied: Option<&Password>) -> Vec<Command> {
    let Some(password) = desired.filter(|password| Some(*password) != applied) else { return Vec::new() };
    let mut commands = Vec::new();
    if applied.is_none_or(|applied| applied.text != password.text) {
        commands.push(Command::set_password(&password.text));
    }
    let had_expiry = applied.is_some_and(|applied| applied.expiry.is_some());
    let expiry = password.expiry.as_deref().or(had_expiry.then_some("never"));
    commands.extend(expiry.map(Command::expire_password));
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(text: &str, expiry: Option<&str>) -> Option<Password> {
        Password::of_files(Some(text.to_owned()), expiry.map(str::to_owned))
    }

    #[test]
    fn line_ends_of_the_files_are_no_part_of_their_values() {
        let password = password("pass word \n", Some("+10\n")).unwrap();
        assert_eq!((password.text.as_str(), password.expiry.as_deref()), ("pass word ", Some("+10")));
        assert_eq!(Password::of_files(None, Some("now".to_owned())), None);
    }

    #[test]
    fn a_password_is_set_with_its_expiry_and_only_when_something_changes() {
        let (one, two) = (password("a", Some("now")), password("b", Some("now")));
        assert_eq!(commands(one.as_ref(), None), [Command::set_password("a"), Command::expire_password("now")]);
        assert_eq!(commands(one.as_ref(), one.as_ref()), []);
        assert_eq!(commands(two.as_ref(), one.as_ref()).len(), 2);
        let never = password("a", None);
        assert_eq!(commands(never.as_ref(), one.as_ref()), [Command::expire_password("never")]);
        assert_eq!(commands(never.as_ref(), None), [Command::set_password("a")]);
    }

    #[test]
    fn a_password_is_never_shown() {
        assert!(!format!("{:?}", password("geheim", None)).contains("geheim"));
    }
}
