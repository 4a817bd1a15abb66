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
        let expiry = expiry
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty());
        password.map(|text| Self {
            text: text.trim_end_matches(['\r', '\n']).to_owned(),
            expiry,
        })
    }
}

impl Password {
    /// When it ends, as QEMU takes it; none where that is no time. QEMU itself takes more, and makes of it what nobody means:
    /// what is beyond its range ends at once.
    pub fn end(&self) -> Option<&str> {
        let end = self.expiry.as_deref().unwrap_or(NEVER);
        let seconds = end.strip_prefix('+').unwrap_or(end);
        let is_number = !seconds.is_empty() && seconds.bytes().all(|byte| byte.is_ascii_digit());
        let is_time = is_number
            && seconds
                .parse::<u64>()
                .is_ok_and(|seconds| seconds <= LATEST);
        (is_time || [NOW, NEVER].contains(&end)).then_some(end)
    }
}

/// Ends of a password that are no numbers.
pub const NOW: &str = "now";
const NEVER: &str = "never";
/// Latest end in seconds, from now or since 1970, that QEMU does not take for one in the past: half of its range.
const LATEST: u64 = 1 << 62;

/// The commands that take the display from what it has to what it should have, or nothing where that cannot be. The end goes
/// along with each new password: a relative one counts from there, and that of the one before stays otherwise.
pub fn commands(desired: Option<&Password>, applied: Option<&Password>) -> Option<Vec<Command>> {
    let Some(password) = desired.filter(|password| Some(*password) != applied) else {
        return Some(Vec::new());
    };
    let end = Command::expire_password(password.end()?);
    let is_new = applied.is_none_or(|applied| applied.text != password.text);
    Some(
        is_new
            .then(|| Command::set_password(&password.text))
            .into_iter()
            .chain([end])
            .collect(),
    )
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
        assert_eq!(
            (password.text.as_str(), password.expiry.as_deref()),
            ("pass word ", Some("+10"))
        );
        assert_eq!(Password::of_files(None, Some("now".to_owned())), None);
    }

    #[test]
    fn a_password_is_set_with_its_expiry_and_only_when_something_changes() {
        let (one, two) = (password("a", Some("now")), password("b", Some("now")));
        let commands = |desired: &Option<Password>, applied: Option<&Password>| {
            commands(desired.as_ref(), applied).unwrap()
        };
        assert_eq!(
            commands(&one, None),
            [Command::set_password("a"), Command::expire_password("now")]
        );
        assert_eq!(commands(&one, one.as_ref()), []);
        assert_eq!(commands(&two, one.as_ref()).len(), 2);
        let never = password("a", None);
        assert_eq!(
            commands(&never, one.as_ref()),
            [Command::expire_password("never")]
        );
        assert_eq!(
            commands(&never, None),
            [
                Command::set_password("a"),
                Command::expire_password("never")
            ]
        );
    }

    #[test]
    fn a_password_whose_end_is_no_time_gives_no_command() {
        for end in ["now", "never", "+0", "+86400", "1900000000", "0"] {
            assert_eq!(password("a", Some(end)).unwrap().end(), Some(end));
        }
        for end in [
            "tomorrow",
            "2030-01-01",
            "-1",
            "+",
            "+-1",
            "+ 5",
            "1e9",
            "Never",
            "0x10",
            "18446744073709551615",
        ] {
            let password = password("a", Some(end));
            assert_eq!(
                (
                    password.as_ref().unwrap().end(),
                    commands(password.as_ref(), None)
                ),
                (None, None),
                "{end}"
            );
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        assert!(!format!("{:?}", password("geheim", None)).contains("geheim"));
    }
}
