//! (client) Makes the running machine what it should be: asks the pure [`desired`](super::desired) for commands, gives
//! them, tells what came of it.
//!
//! One task, newest wish wins. What always holds: a wish that QEMU refuses is tried once; one that could not be
//! brought to QEMU is tried again.

use super::desired::cpus::{self, Plan};
use super::desired::display::{self, Password};
use super::desired::{Desired, memory};
use super::qmp::{Client, Command, CpuSlot, Error};
use crate::api::quantity::Bytes;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Pause before commands are tried again that could not be brought to QEMU.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// How often, and in which steps, a guest that gives CPUs back is looked at before that is a problem.
const SETTLE_STEPS: u32 = 10;
const SETTLE_STEP: Duration = Duration::from_millis(200);

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// How many CPUs there are, and why not as many as wanted.
    Cpus {
        /// How many there are.
        count: u32,
        /// Why there are not as many as wanted.
        problem: Option<String>,
    },
    /// The display has a new password.
    PasswordSet,
    /// All of the wish of that generation was brought to QEMU.
    Complete(Option<i64>),
}

/// Follows the wishes until nobody has any more.
pub async fn run(client: Client, mut wishes: watch::Receiver<Desired>, progress: mpsc::UnboundedSender<Progress>) {
    let mut machine = Machine { client, progress, balloon: None, password: None, cpus: None };
    loop {
        let desired = wishes.borrow_and_update().clone();
        let pause = match machine.follow(&desired).await {
            Ok(()) => {
                let _ = machine.progress.send(Progress::Complete(desired.generation));
                None
            }
            Err(error) => {
                tracing::warn!(%error, "the machine is not as configured yet");
                Some(TRY_AGAIN)
            }
        };
        let changed = match pause {
            Some(pause) => tokio::time::timeout(pause, wishes.changed()).await.unwrap_or(Ok(())),
            None => wishes.changed().await,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// The machine as far as it is known what it was asked.
struct Machine {
    client: Client,
    progress: mpsc::UnboundedSender<Progress>,
    balloon: Option<Bytes>,
    password: Option<Password>,
    /// Number of CPUs that was tried, and whether the guest was up then.
    cpus: Option<(u32, bool)>,
}

impl Machine {
    async fn follow(&mut self, desired: &Desired) -> Result<(), Error> {
        self.follow_password(desired).await?;
        self.follow_memory(desired).await?;
        self.follow_cpus(desired).await
    }

    async fn follow_password(&mut self, desired: &Desired) -> Result<(), Error> {
        let commands = display::commands(desired.password.as_ref(), self.password.as_ref());
        if commands.is_empty() {
            return Ok(());
        }
        let mut done = true;
        for command in commands {
            done &= self.give(command).await?;
        }
        self.password.clone_from(&desired.password);
        if done {
            let _ = self.progress.send(Progress::PasswordSet);
        }
        Ok(())
    }

    async fn follow_memory(&mut self, desired: &Desired) -> Result<(), Error> {
        if let Some((target, command)) = memory::command(desired, self.balloon) {
            self.give(command).await?;
            self.balloon = Some(target);
        }
        Ok(())
    }

    async fn follow_cpus(&mut self, desired: &Desired) -> Result<(), Error> {
        let slots: Vec<CpuSlot> = self.client.query(Command::query_cpu_slots()).await?;
        let attempt = (desired.live.cpus, desired.booted);
        let wanted = desired.live.cpus;
        let (slots, problem) = match cpus::plan(desired, &slots) {
            Plan::Equal => {
                self.cpus = None;
                (slots, None)
            }
            Plan::Impossible(why) => (slots, Some(why)),
            Plan::WaitForGuest => {
                (slots, Some("the guest gives CPUs back only when its agent has answered".to_owned()))
            }
            Plan::Run(_) if self.cpus == Some(attempt) => (slots, Some(self.not_followed(wanted))),
            Plan::Run(commands) => {
                for command in commands {
                    if !self.give(command).await? {
                        break;
                    }
                }
                self.cpus = Some(attempt);
                let slots = self.settled(wanted).await?;
                let problem = (cpus::count(&slots) != wanted).then(|| self.not_followed(wanted));
                (slots, problem)
            }
        };
        let _ = self.progress.send(Progress::Cpus { count: cpus::count(&slots), problem });
        Ok(())
    }

    /// The places once there are as many CPUs as wanted, or a guest has had time to give some back.
    async fn settled(&self, wanted: u32) -> Result<Vec<CpuSlot>, Error> {
        for _ in 0..SETTLE_STEPS {
            let slots: Vec<CpuSlot> = self.client.query(Command::query_cpu_slots()).await?;
            if cpus::count(&slots) <= wanted {
                return Ok(slots);
            }
            tokio::time::sleep(SETTLE_STEP).await;
        }
        self.client.query(Command::query_cpu_slots()).await
    }

    fn not_followed(&self, wanted: u32) -> String {
        format!("the guest or QEMU has not followed to {wanted} CPUs; a new start does")
    }

    /// Gives the command; says whether QEMU has taken it. Only what did not reach QEMU is an error.
    async fn give(&self, command: Command) -> Result<bool, Error> {
        match self.client.execute(command).await {
            Ok(_) => Ok(true),
            Err(error @ Error::Refused { .. }) => {
                tracing::warn!(%error, "configuration");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::desired::cpus::tests::desired;
    use crate::runner::qmp::{self, testing::Peer};
    use serde_json::{Value, json};
    use tokio::net::UnixListener;

    struct Rig {
        _dir: tempfile::TempDir,
        peer: Peer,
        wishes: watch::Sender<Desired>,
        progress: mpsc::UnboundedReceiver<Progress>,
    }

    async fn rig(first: Desired) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("monitor.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (signals, _) = mpsc::unbounded_channel();
        let (client, connection) = qmp::connect(path, signals);
        tokio::spawn(connection);
        let peer = Peer::accept(&listener).await;
        let (wishes, wish) = watch::channel(first);
        let (sender, progress) = mpsc::unbounded_channel();
        tokio::spawn(run(client, wish, sender));
        Rig { _dir: dir, peer, wishes, progress }
    }

    /// Two places, the second free.
    fn places(command: &str, _: &Value) -> Result<Value, &'static str> {
        assert_eq!(command, "query-hotpluggable-cpus");
        Ok(json!([
            {"type": "t", "props": {"core-id": 1}, "vcpus-count": 1},
            {"type": "t", "props": {"core-id": 0}, "vcpus-count": 1, "qom-path": "/machine/unattached/device[0]"},
        ]))
    }

    fn no_more(command: &str, _: &Value) -> Result<Value, &'static str> {
        assert_eq!(command, "device_add");
        Err("no more")
    }

    #[tokio::test]
    async fn a_refused_cpu_is_tried_once_and_told() {
        let mut rig = rig(desired(2)).await;
        rig.peer.answer(places).await;
        rig.peer.answer(no_more).await;
        rig.peer.answer(places).await;
        let told = rig.progress.recv().await.unwrap();
        assert!(matches!(told, Progress::Cpus { count: 1, problem: Some(_) }), "{told:?}");
        assert_eq!(rig.progress.recv().await, Some(Progress::Complete(None)));
        // Another look is no other wish.
        rig.wishes.send_modify(|desired| desired.attempt += 1);
        rig.peer.answer(places).await;
        assert_eq!(rig.progress.recv().await, Some(told));
        assert_eq!(rig.progress.recv().await, Some(Progress::Complete(None)));
        // Another number is.
        rig.wishes.send_modify(|desired| desired.live.cpus = 1);
        rig.peer.answer(places).await;
        assert_eq!(rig.progress.recv().await, Some(Progress::Cpus { count: 1, problem: None }));
        rig.progress.recv().await.unwrap();
        rig.wishes.send_modify(|desired| desired.live.cpus = 2);
        rig.peer.answer(places).await;
        rig.peer.answer(no_more).await;
    }

    #[tokio::test]
    async fn a_refused_password_is_not_counted_and_not_repeated() {
        let mut wanted = desired(1);
        wanted.password = Password::of_files(Some("p".to_owned()), Some("whenever".to_owned()));
        let mut rig = rig(wanted).await;
        rig.peer.answer(|command, _| (command == "set_password").then(|| json!({})).ok_or("?")).await;
        rig.peer.answer(|command, _| (command != "expire_password").then(|| json!({})).ok_or("no such time")).await;
        rig.peer.answer(places).await;
        assert!(matches!(rig.progress.recv().await, Some(Progress::Cpus { .. })));
        assert_eq!(rig.progress.recv().await, Some(Progress::Complete(None)));
        rig.wishes.send_modify(|desired| desired.attempt += 1);
        rig.peer.answer(places).await;
    }
}
