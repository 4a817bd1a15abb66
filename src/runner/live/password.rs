//! (client) Sets the display's password.
//!
//! A password is never valid for longer than configured. One with an invalid expiry is not set, and the expiry of a new
//! password never applies to the previous one.

use crate::api::vm::conditions::ConditionReason;
use crate::runner::desired::DesiredState;
use crate::runner::desired::display_password::{self, DisplayPassword, EXPIRY_NOW};
use crate::runner::failure::Problem;
use crate::runner::live::{LiveUpdater, Progress};
use crate::runner::qmp::{Command, Error};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::rand::SecureRandom;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;

/// The state of the display's password.
#[derive(Default)]
pub(super) struct PasswordState {
    /// The password in effect; unknown if QEMU did not answer.
    applied: Option<DisplayPassword>,
    /// The password that QEMU rejected, or that is invalid: it is tried once.
    rejected: Option<DisplayPassword>,
    /// Whether QEMU has a one-time password instead, until the Secret changes.
    is_replaced: bool,
    /// Whether a user got the password of the Secret by the web console.
    is_given: bool,
    /// The assignment of the VM when a user got a password.
    assignment: Option<String>,
    /// Number of times that clients were disconnected.
    disconnects: u64,
}

/// A request for a password of the display.
pub struct PasswordRequest {
    /// Seconds for which a one-time password is valid.
    pub valid_seconds: u32,
    /// The assignment of the VM.
    pub assignment: Option<String>,
    /// Gets the password, and the seconds for which it is valid if it is a one-time password. None if QEMU has not set it.
    pub answer: oneshot::Sender<Option<(String, Option<u32>)>>,
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
        let applied = self.display.applied.as_ref();
        // A changed Secret replaces a one-time password.
        let present = applied.filter(|applied| !self.display.is_replaced || *applied == password);
        match display_password::commands(Some(password), present) {
            Ok(commands) if commands.is_empty() => self.settle_password(None, None),
            Ok(commands) => self.set_password(password, commands).await?,
            Err(why) => {
                let why = format!("{why}; {}", self.display.consequence());
                self.settle_password(
                    Some(password),
                    Some(Problem::new(ConditionReason::PasswordNotSet, why)),
                );
            }
        }
        Ok(())
    }

    /// Answers with the password of the Secret, if it is valid for longer. Otherwise sets a one-time password, as the Java VM-Operator
    /// does.
    pub(super) async fn set_one_time_password(
        &mut self,
        of_secret: Option<&DisplayPassword>,
        PasswordRequest {
            valid_seconds,
            assignment,
            answer,
        }: PasswordRequest,
    ) {
        let previous = std::mem::replace(&mut self.display.assignment, assignment);
        let is_of_other = previous.is_some() && previous != self.display.assignment;
        let applied = self
            .display
            .applied
            .as_ref()
            .filter(|_| !self.display.is_replaced && !is_of_other);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let end = now.unwrap_or_default().as_secs() + u64::from(valid_seconds);
        let lasting =
            of_secret.filter(|password| Some(*password) == applied && password.is_valid_at(end));
        if let Some(password) = lasting {
            self.display.is_given = true;
            let _ = answer.send(Some((password.text.clone(), None)));
            return;
        }
        let Some(password) = random_password() else {
            return;
        };
        self.display.is_replaced = true;
        let set = async {
            let client = &self.client;
            let new = Command::set_password(&password);
            // The client of a previous user of the pool does not see the desktop of this user.
            let new = if is_of_other {
                new.and_disconnect()
            } else {
                new
            };
            client.execute(new).await?;
            let expiry = format!("+{valid_seconds}");
            client.execute(Command::expire_password(&expiry)).await
        };
        let password = match set.await {
            Ok(_) => {
                let _ = self.progress.send(Progress::PasswordSet);
                Some((password, Some(valid_seconds)))
            }
            Err(error) => {
                tracing::warn!("QEMU has not set a one-time password of the display: {error}");
                // It may have the password, with the expiry of the previous one.
                let expiry = Command::expire_password(EXPIRY_NOW);
                drop(self.client.execute(expiry).await);
                None
            }
        };
        let _ = answer.send(password);
    }

    /// Disconnects the clients of the display as often as wanted. A password that a user got by the web console is replaced. If no user
    /// did, the password of the Secret remains valid. Displays without a password cannot disconnect clients.
    pub(super) async fn follow_disconnects(&mut self, desired: &DesiredState) -> Result<(), Error> {
        if self.display.disconnects == desired.disconnects {
            return Ok(());
        }
        let applied = self.display.applied.as_ref();
        let kept = applied.filter(|_| !self.display.is_replaced && !self.display.is_given);
        let (text, is_kept) = match kept {
            Some(password) => (Some(password.text.clone()), true),
            None => (random_password(), false),
        };
        if let Some(text) = text.filter(|_| desired.password.is_some()) {
            if !is_kept {
                self.display.is_replaced = true;
                self.try_command(Command::expire_password(EXPIRY_NOW))
                    .await?;
            }
            let new = Command::set_password(&text).and_disconnect();
            self.try_command(new).await?;
        }
        (self.display.is_given, self.display.assignment) = (false, None);
        self.display.disconnects = desired.disconnects;
        Ok(())
    }

    /// Runs the commands for a password. If QEMU does not answer one, all are run again.
    async fn set_password(
        &mut self,
        password: &DisplayPassword,
        commands: Vec<Command>,
    ) -> Result<(), Error> {
        let is_replaced = std::mem::take(&mut self.display.is_replaced);
        self.display.is_given = false;
        let before = self.display.applied.take().filter(|_| !is_replaced);
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
                "QEMU rejects {field} in the display Secret ({description}). Change the value in the Secret; {consequence}"
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

/// A password that nobody knows yet.
fn random_password() -> Option<String> {
    let mut random = [0; 16];
    let filled = ring::rand::SystemRandom::new().fill(&mut random);
    filled.is_ok().then(|| BASE64.encode(random))
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
