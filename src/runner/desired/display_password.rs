//! (pure) The display's password.

use crate::runner::qmp::Command;
use std::fmt;

/// The password that the display requires.
#[derive(Clone, PartialEq, Eq)]
pub struct DisplayPassword {
    pub text: String,
    /// In the syntax of QMP's `expire_password`. None means never.
    pub expiry: Option<String>,
}

impl fmt::Debug for DisplayPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Password(not shown, expiry {:?})", self.expiry)
    }
}

impl DisplayPassword {
    /// From the contents of the two files. A line end at the end of a file, which editors and
    /// `echo` add, is removed.
    pub fn from_files(password: Option<String>, expiry: Option<String>) -> Option<Self> {
        let expiry = expiry
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty());
        password.map(|text| Self {
            text: text.trim_end_matches(['\r', '\n']).to_owned(),
            expiry,
        })
    }
}

impl DisplayPassword {
    /// The expiry for QEMU, or None if it is invalid. QEMU itself accepts more: it takes a number
    /// beyond its range for a time in the past.
    pub fn valid_expiry(&self) -> Option<&str> {
        let end = self.expiry.as_deref().unwrap_or(EXPIRY_NEVER);
        let seconds = end.strip_prefix('+').unwrap_or(end);
        let is_number = !seconds.is_empty() && seconds.bytes().all(|byte| byte.is_ascii_digit());
        let is_time = is_number
            && seconds
                .parse::<u64>()
                .is_ok_and(|seconds| seconds <= EXPIRY_MAX);
        (is_time || [EXPIRY_NOW, EXPIRY_NEVER].contains(&end)).then_some(end)
    }
}

impl DisplayPassword {
    /// Whether the password is valid until that time in seconds since 1970. A relative expiry does not count, because the time of its
    /// beginning is not known.
    pub fn is_valid_at(&self, time: u64) -> bool {
        match self.valid_expiry() {
            Some(EXPIRY_NEVER) => true,
            Some(end) => end.parse().is_ok_and(|end: u64| end >= time) && !end.starts_with('+'),
            None => false,
        }
    }
}

/// Expiries that are not numbers.
pub const EXPIRY_NOW: &str = "now";
const EXPIRY_NEVER: &str = "never";
/// The latest expiry in seconds that QEMU does not take for a time in the past: half of its range.
const EXPIRY_MAX: u64 = 1 << 62;

/// The longest password that a SPICE client can send, in bytes. QEMU accepts a longer one, which no client can use.
const LENGTH_MAX: usize = 59;

/// The commands that change the display from the applied to the desired password. Each new password is sent with its expiry: a
/// relative expiry counts from then, and QEMU would otherwise keep the previous one.
///
/// # Errors
/// If the password or its expiry is invalid, with the key of the Secret.
pub fn commands(
    desired: Option<&DisplayPassword>,
    applied: Option<&DisplayPassword>,
) -> Result<Vec<Command>, String> {
    let Some(password) = desired.filter(|password| Some(*password) != applied) else {
        return Ok(Vec::new());
    };
    let length = password.text.len();
    if length > LENGTH_MAX {
        return Err(format!(
            "display-password in the display Secret has {length} bytes, and clients can send {LENGTH_MAX}; use a shorter password"
        ));
    }
    let end = password.valid_expiry().ok_or_else(|| {
        format!(
            "password-expiry in the display Secret has the invalid value {:?}; use now, never, +<seconds>, or seconds since 1970",
            password.expiry.as_deref().unwrap_or_default()
        )
    })?;
    let is_new = applied.is_none_or(|applied| applied.text != password.text);
    let new = is_new.then(|| Command::set_password(&password.text));
    let end = Command::expire_password(end);
    Ok(new.into_iter().chain([end]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(text: &str, expiry: Option<&str>) -> Option<DisplayPassword> {
        DisplayPassword::from_files(Some(text.to_owned()), expiry.map(str::to_owned))
    }

    #[test]
    fn line_ends_of_the_files_are_no_part_of_their_values() {
        let password = password("pass word \n", Some("+10\n")).unwrap();
        assert_eq!(
            (password.text.as_str(), password.expiry.as_deref()),
            ("pass word ", Some("+10"))
        );
        assert_eq!(
            DisplayPassword::from_files(None, Some("now".to_owned())),
            None
        );
    }

    #[test]
    fn a_password_is_set_with_its_expiry_and_only_when_something_changes() {
        let (one, two) = (password("a", Some("now")), password("b", Some("now")));
        let commands = |desired: &Option<DisplayPassword>, applied: Option<&DisplayPassword>| {
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
    fn a_password_that_no_client_can_send_gives_no_command() {
        let commands =
            |length: usize| commands(password(&"ä".repeat(length / 2), None).as_ref(), None);
        assert_eq!(commands(58).unwrap().len(), 2);
        assert!(commands(60).unwrap_err().contains("display-password"));
    }

    #[test]
    fn password_with_invalid_expiry_causes_no_command() {
        for end in ["now", "never", "+0", "+86400", "1900000000", "0"] {
            assert_eq!(password("a", Some(end)).unwrap().valid_expiry(), Some(end));
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
            assert_eq!(password.as_ref().unwrap().valid_expiry(), None, "{end}");
            assert!(commands(password.as_ref(), None).is_err(), "{end}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        assert!(!format!("{:?}", password("geheim", None)).contains("geheim"));
    }
}
