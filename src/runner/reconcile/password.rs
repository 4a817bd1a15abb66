//! (client) Gives the display its password, before and beside everything else: nothing that takes long delays it.
//!
//! What always holds: a password is never valid for longer than it should be. One whose end cannot be used is not set, and
//! the end of a new one is never given to the one before.

use super::Progress;
use crate::api::conditions::ConditionReason;
use crate::runner::desired::Desired;
use crate::runner::desired::display::{self, NOW, Password};
use crate::runner::problem::Problem;
use crate::runner::qmp::{Client, Command, Error};
use tokio::sync::{Mutex, mpsc, watch};

/// The display's password, which two tasks follow: one does nothing else.
pub(super) struct Display(Mutex<State>);

struct State {
    client: Client,
    progress: mpsc::UnboundedSender<Progress>,
    /// What is in effect; unknown where it was not brought to QEMU, or its answer was lost.
    applied: Option<Password>,
    /// What QEMU has refused, or was not asked for: it is tried once.
    refused: Option<Password>,
}

impl Display {
    pub(super) fn new(client: Client, progress: mpsc::UnboundedSender<Progress>) -> Self {
        Self(Mutex::new(State { client, progress, applied: None, refused: None }))
    }

    /// Follows each wish at once, as long as there are any. What cannot be brought to QEMU is left to who looks again.
    pub(super) async fn run(&self, mut wishes: watch::Receiver<Desired>) {
        loop {
            let password = wishes.borrow_and_update().password.clone();
            if let Err(error) = self.follow(password.as_ref()).await {
                tracing::debug!(%error, "the display's password");
            }
            if wishes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Follows the wish, unless it was followed already.
    pub(super) async fn follow(&self, wanted: Option<&Password>) -> Result<(), Error> {
        self.0.lock().await.follow(wanted).await
    }
}

impl State {
    async fn follow(&mut self, wanted: Option<&Password>) -> Result<(), Error> {
        let Some(password) = wanted.filter(|password| self.refused.as_ref() != Some(password)) else { return Ok(()) };
        match display::commands(Some(password), self.applied.as_ref()) {
            Some(commands) if commands.is_empty() => self.settle(None, None),
            Some(commands) => self.give(password, commands).await?,
            None => {
                let end = password.expiry.as_deref().unwrap_or_default();
                let why = format!(
                    "password-expiry in the display's secret: {end:?} is not allowed; use now, never, +<seconds>, or seconds \
                     since 1970; {}",
                    self.display_stays()
                );
                self.settle(Some(password), Some(Problem::new(ConditionReason::InvalidConfig, why)));
            }
        }
        Ok(())
    }

    /// Gives the commands for a password. Where one is lost, nothing is known to be in effect, and all are given again.
    async fn give(&mut self, password: &Password, commands: Vec<Command>) -> Result<(), Error> {
        let before = self.applied.take();
        let is_new = before.as_ref().is_none_or(|before| before.text != password.text);
        for (n, command) in commands.into_iter().enumerate() {
            let Err(error) = self.client.execute(command).await else { continue };
            let Error::Refused { description, .. } = error else { return Err(error) };
            if is_new && n > 0 {
                // The display has it by now, and until when nobody knows.
                let end = Command::expire_password(NOW);
                self.client.execute(end).await?;
                self.applied = Some(Password { expiry: Some(NOW.to_owned()), ..password.clone() });
            } else {
                self.applied = before;
            }
            let field = if is_new && n == 0 { "display-password" } else { "password-expiry" };
            let stays = self.display_stays();
            let why = format!(
                "{field} in the display's secret: QEMU refuses it ({description}); change it there, a password has at most 60 \
                 characters; {stays}"
            );
            self.settle(Some(password), Some(Problem::new(ConditionReason::PasswordNotSet, why)));
            return Ok(());
        }
        self.applied = Some(password.clone());
        let _ = self.progress.send(Progress::PasswordSet);
        self.settle(None, None);
        Ok(())
    }

    fn display_stays(&self) -> &'static str {
        match &self.applied {
            Some(applied) if applied.end() != Some(NOW) => {
                "until then the display has the password before, and its end"
            }
            _ => "until then the display lets nobody in",
        }
    }

    /// What is not tried again, and why; told where it is news.
    fn settle(&mut self, refused: Option<&Password>, problem: Option<Problem>) {
        if refused.is_some() || self.refused.is_some() {
            self.refused = refused.cloned();
            let _ = self.progress.send(Progress::Password(problem));
        }
    }
}
