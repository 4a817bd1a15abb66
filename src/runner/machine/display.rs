//! (io) The display's password and certificate: files beside the configuration, from the display
//! Secret.

use crate::api::runner::outcome::EndReason;
use crate::api::vm::names;
use crate::runner::desired::display_password::DisplayPassword;
use crate::runner::failure::Failure;
use crate::runner::machine::path_failure::ProcessUser;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The password in that directory, if there is one. An unreadable file is an error: a display that
/// requires a password must never start without one, and a password with an expiry must never be
/// valid forever.
pub fn password(folder: &Path) -> Result<Option<DisplayPassword>, Failure> {
    let Some(text) = text(&folder.join(names::SECRET_PASSWORD))? else {
        return Ok(None);
    };
    Ok(DisplayPassword::from_files(
        Some(text),
        self::text(&folder.join(names::SECRET_EXPIRY))?,
    ))
}

fn text(path: &Path) -> Result<Option<String>, Failure> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            let message = format!(
                "{} in the display Secret is not UTF-8 text; write the value as UTF-8",
                path.display()
            );
            Err(Failure::new(EndReason::InvalidConfig, message))
        }
        Err(error) => {
            Err(ProcessUser::current().access_failure("cannot be read", path, path, &error))
        }
    }
}

/// Files of a certificate, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate and intermediate certificates.
    pub chain: PathBuf,
    pub key: PathBuf,
    /// The certificate authority. Without one, the certificate itself.
    pub authority: PathBuf,
}

impl Certificate {
    /// The certificate in that directory, if there is one. An incomplete one is an error: an
    /// encrypted display must never start without encryption.
    pub fn find(folder: &Path) -> Result<Option<Self>, Failure> {
        let file = |name: &str| Some(folder.join(name)).filter(|path| path.exists());
        let found = [names::SECRET_TLS_CERTIFICATE, names::SECRET_TLS_KEY].map(file);
        let (chain, key) = match found {
            [None, None] => return Ok(None),
            [Some(chain), Some(key)] => (chain, key),
            [chain, _] => {
                let (present, missing) = match chain {
                    Some(_) => (names::SECRET_TLS_CERTIFICATE, names::SECRET_TLS_KEY),
                    None => (names::SECRET_TLS_KEY, names::SECRET_TLS_CERTIFICATE),
                };
                let message = format!(
                    "the display Secret has {present}, but no {missing}; add {missing} for an encrypted display, or remove {present}"
                );
                return Err(Failure::new(EndReason::InvalidConfig, message));
            }
        };
        let authority = file(names::SECRET_TLS_AUTHORITY).unwrap_or_else(|| chain.clone());
        for path in [&chain, &key, &authority] {
            File::open(path).map_err(|error| {
                ProcessUser::current().access_failure("cannot be read", path, path, &error)
            })?;
        }
        Ok(Some(Self {
            chain,
            key,
            authority,
        }))
    }

    pub fn files(&self) -> [&PathBuf; 3] {
        [&self.chain, &self.key, &self.authority]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_certificate_is_none_and_no_display_comes_up_without_the_other_half() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str| std::fs::write(dir.path().join(name), "x").unwrap();
        assert_eq!(Certificate::find(dir.path()), Ok(None));
        write("ca.crt");
        assert_eq!(Certificate::find(dir.path()), Ok(None));
        write("tls.crt");
        let failure = Certificate::find(dir.path()).unwrap_err();
        assert_eq!(failure.reason, EndReason::InvalidConfig);
        assert!(
            failure.message.contains("has tls.crt, but no tls.key"),
            "{failure}"
        );
        write("tls.key");
        assert_eq!(
            Certificate::find(dir.path()).unwrap().unwrap().authority,
            dir.path().join("ca.crt")
        );
        std::fs::remove_file(dir.path().join("ca.crt")).unwrap();
        assert_eq!(
            Certificate::find(dir.path()).unwrap().unwrap().authority,
            dir.path().join("tls.crt")
        );
    }

    #[test]
    fn only_a_missing_file_means_no_password() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let read = || password(dir.path());
        fs::write(path("password-expiry"), [0xff, 0xfe]).unwrap();
        assert_eq!(read(), Ok(None));
        fs::write(path("display-password"), "geheim").unwrap();
        let failure = read().unwrap_err();
        assert_eq!(failure.reason, EndReason::InvalidConfig);
        assert!(
            failure
                .message
                .contains("password-expiry in the display Secret is not UTF-8 text"),
            "{failure}"
        );
        fs::write(path("password-expiry"), "now").unwrap();
        assert_eq!(
            read(),
            Ok(DisplayPassword::from_files(
                Some("geheim".to_owned()),
                Some("now".to_owned())
            ))
        );
        fs::write(path("display-password"), [0xff, 0xfe]).unwrap();
        assert!(
            read()
                .unwrap_err()
                .message
                .contains("display-password in the display Secret is not UTF-8 text")
        );
        fs::remove_file(path("display-password")).unwrap();
        fs::create_dir(path("display-password")).unwrap();
        assert_eq!(read().unwrap_err().reason, EndReason::DataNotAccessible);
    }
}
