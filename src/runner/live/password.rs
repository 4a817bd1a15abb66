//! (client) Sets the display's password.
//!
//! A password is never valid for longer than configured. One with an invalid expiry is not set, and the expiry of a new
//! password never applies to the previous one.

use crate::api::conditions::ConditionReason;
use crate::runner::desired::display::{self, NOW, Password};
use crate::runner::live::{Machine, Progress};
use crate::runner::problem::Problem;
use crate::runner::qmp::{Command, Error};

/// The state of the display's password.
#[derive(Default)]
pub(super) struct Display {
    /// The password in effect; unknown if QEMU did not answer.
    applied: Option<Password>,
    /// The password that QEMU rejected, or that is invalid: it is tried once.
    refused: Option<Password>,
}

impl Machine {
    /// Sets the password, unless it is set already or was rejected.
    pub(super) async fn follow_password(&mut self, wanted: Option<&Password>) -> Result<(), Error> {
        let Some(password) =
            wanted.filter(|password| self.display.refused.as_ref() != Some(password))
        else {
            return Ok(());
        };
        match display::commands(Some(password), self.display.applied.as_ref()) {
            Some(commands) if commands.is_empty() => self.settle_password(None, None),
            Some(commands) => self.set_password(password, commands).await?,
            None => {
                let end = password.expiry.as_deref().unwrap_or_default();
                let why = format!(
                    "password-expiry in the display's secret: {end:?} is not allowed; use now, never, +<seconds>, or seconds \
                     since 1970; {}",
                    self.display.stays()
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
        password: &Password,
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
            let Error::Refused { description, .. } = error else {
                return Err(error);
            };
            if is_new && n > 0 {
                // The display has the new password by now, with an unknown expiry.
                let end = Command::expire_password(NOW);
                self.client.execute(end).await?;
                self.display.applied = Some(Password {
                    expiry: Some(NOW.to_owned()),
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
            let stays = self.display.stays();
            let why = format!(
                "{field} in the display's secret: QEMU refuses it ({description}); change it there, a password has at most 60 \
                 characters; {stays}"
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

    /// Notes which password is not tried again, and reports why if that changes.
    fn settle_password(&mut self, refused: Option<&Password>, problem: Option<Problem>) {
        if refused.is_some() || self.display.refused.is_some() {
            self.display.refused = refused.cloned();
            let _ = self.progress.send(Progress::Password(problem));
        }
    }
}

impl Display {
    fn stays(&self) -> &'static str {
        match &self.applied {
            Some(applied) if applied.end() != Some(NOW) => {
                "until then the display has the password before, and its end"
            }
            _ => "until then the display lets nobody in",
        }
    }
}
