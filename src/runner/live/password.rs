//! (client) Sets the display's password.
//!
//! A password is never valid for longer than configured. One with an invalid expiry is not set, and the expiry of a new
//! password never applies to the previous one.

use crate::api::vm::conditions::ConditionReason;
use crate::runner::desired::display_password::{self, DisplayPassword, EXPIRY_NOW};
use crate::runner::failure::Problem;
use crate::runner::live::{LiveUpdater, Progress};
use crate::runner::qmp::{Command, Error};

/// The state of the display's password.
#[derive(Default)]
pub(super) struct PasswordState {
    /// The password in effect; unknown if QEMU did not answer.
    applied: Option<DisplayPassword>,
    /// The password that QEMU rejected, or that is invalid: it is tried once.
    rejected: Option<DisplayPassword>,
}

impl LiveUpdater {
    /// Sets the password, unless it is set already or was rejected.
    pub(super) async fn follow_password(
        &mut self,
        wanted: Option<&DisplayPassword>,
    ) -> Result<(), Error> {
        let Some(password) =
            wanted.filter(|password| self.display.rejected.as_ref() != Some(password))
        else {
            return Ok(());
        };
        match display_password::commands(Some(password), self.display.applied.as_ref()) {
            Some(commands) if commands.is_empty() => self.settle_password(None, None),
            Some(commands) => self.set_password(password, commands).await?,
            None => {
                let expiry = password.expiry.as_deref().unwrap_or_default();
                let why = format!(
                    "password-expiry in the display Secret has the invalid value {expiry:?}; use now, never, +<seconds>, or \
                     seconds since 1970; {}",
                    self.display.consequence()
                );
                self.settle_password(
                    Some(password),
                    Some(Problem::new(ConditionReason::InvalidConfig, why)),
                );
            }
        }
        Ok(())
    }

    /// Runs the commands for a password. If QEMU does not answer one, all are run again.
    async fn set_password(
        &mut self,
        password: &DisplayPassword,
        commands: Vec<Command>,
    ) -> Result<(), Error> {
        let before = self.display.applied.take();
        let is_new = before
            .as_ref()
            .is_none_or(|before| before.text != password.text);
        for (n, command) in commands.into_iter().enumerate() {
            let Err(error) = self.client.execute(command).await else {
                continue;
            };
            let Error::Rejected { description, .. } = error else {
                return Err(error);
            };
            if is_new && n > 0 {
                // The display has the new password by now, with an unknown expiry.
                let expiry = Command::expire_password(EXPIRY_NOW);
                self.client.execute(expiry).await?;
                self.display.applied = Some(DisplayPassword {
                    expiry: Some(EXPIRY_NOW.to_owned()),
                    ..password.clone()
                });
            } else {
                self.display.applied = before;
            }
            let field = if is_new && n == 0 {
                "display-password"
            } else {
                "password-expiry"
            };
            let consequence = self.display.consequence();
            let why = format!(
                "QEMU rejects {field} in the display Secret ({description}). Change the value in the Secret, and use at most 60 \
                    characters; {consequence}"
            );
            self.settle_password(
                Some(password),
                Some(Problem::new(ConditionReason::PasswordNotSet, why)),
            );
            return Ok(());
        }
        self.display.applied = Some(password.clone());
        let _ = self.progress.send(Progress::PasswordSet);
        self.settle_password(None, None);
        Ok(())
    }

    /// Stores a rejected password, which is not retried, and reports the reason if it changes.
    fn settle_password(&mut self, rejected: Option<&DisplayPassword>, problem: Option<Problem>) {
        if rejected.is_some() || self.display.rejected.is_some() {
            self.display.rejected = rejected.cloned();
            let _ = self.progress.send(Progress::Password(problem));
        }
    }
}

impl PasswordState {
    fn consequence(&self) -> &'static str {
        match &self.applied {
            Some(applied) if applied.valid_expiry() != Some(EXPIRY_NOW) => {
                "until the Secret is correct, the previous password of the display remains valid"
            }
            _ => "until the Secret is correct, the display accepts no password",
        }
    }
}
