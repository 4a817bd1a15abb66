//! (io) The display's password: files beside the configuration, as the display's secret has them.

use super::access::User;
use crate::api::names;
use crate::api::outcome::EndReason;
use crate::runner::desired::display::Password;
use crate::runner::failure::Failure;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// The password in that folder, if there is one. A file that is there and cannot be used is an error: a display that should
/// ask for a password must never come up open, and one that ends must not last for ever.
pub fn password(folder: &Path) -> Result<Option<Password>, Failure> {
    let Some(text) = text(&folder.join(names::SECRET_PASSWORD))? else { return Ok(None) };
    Ok(Password::of_files(Some(text), self::text(&folder.join(names::SECRET_EXPIRY))?))
}

fn text(path: &Path) -> Result<Option<String>, Failure> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            let message = format!("{} is not text in UTF-8; write it anew in the display's secret", path.display());
            Err(Failure::new(EndReason::InvalidConfig, message))
        }
        Err(error) => Err(User::of_process().cannot("cannot be read", path, path, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_is_not_there_is_no_password() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let read = || password(dir.path());
        fs::write(path("password-expiry"), [0xff, 0xfe]).unwrap();
        assert_eq!(read(), Ok(None));
        fs::write(path("display-password"), "geheim").unwrap();
        let failure = read().unwrap_err();
        assert_eq!(failure.reason, EndReason::InvalidConfig);
        assert!(failure.message.contains("password-expiry is not text"), "{failure}");
        fs::write(path("password-expiry"), "now").unwrap();
        assert_eq!(read(), Ok(Password::of_files(Some("geheim".to_owned()), Some("now".to_owned()))));
        fs::write(path("display-password"), [0xff, 0xfe]).unwrap();
        assert!(read().unwrap_err().message.contains("display-password is not text"));
        fs::remove_file(path("display-password")).unwrap();
        fs::create_dir(path("display-password")).unwrap();
        assert_eq!(read().unwrap_err().reason, EndReason::DataNotAccessible);
    }
}
