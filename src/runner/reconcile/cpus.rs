//! (client) Brings the number of CPUs to what it should be, once for each wish.

use super::{Machine, Progress};
use crate::runner::desired::Desired;
use crate::runner::desired::cpus::{self, Plan};
use crate::runner::qmp::{Command, CpuSlot, Error};
use std::time::Duration;
use tokio::time::Instant;

/// How often, and in which steps, a guest that gives CPUs back is looked at before that is a problem.
const SETTLE_STEPS: u32 = 10;
const SETTLE_STEP: Duration = Duration::from_millis(200);
/// A guest that has run that long without an answer of its agent has none, and is asked for CPUs all the same.
const NO_AGENT: Duration = Duration::from_secs(120);

impl Machine {
    /// Follows the number of CPUs; says whether it need not be looked at again before something happens.
    pub(super) async fn follow_cpus(&mut self, desired: &Desired) -> Result<bool, Error> {
        let slots: Vec<CpuSlot> = self.client.query(Command::query_cpu_slots()).await?;
        let wanted = desired.live.cpus;
        let mut plan = cpus::plan(desired, &slots);
        if plan == Plan::WaitForGuest && self.waits_since.get_or_insert_with(Instant::now).elapsed() > NO_AGENT {
            plan = cpus::plan(&Desired { booted: true, ..desired.clone() }, &slots);
        }
        let waits = plan == Plan::WaitForGuest;
        if !waits && desired.booted || plan == Plan::Equal {
            self.waits_since = None;
        }
        let (slots, problem) = match plan {
            Plan::Equal => {
                self.cpus = None;
                (slots, None)
            }
            Plan::Impossible(why) => (slots, Some(why)),
            Plan::WaitForGuest => (
                slots,
                Some("the guest is asked for CPUs when its agent has answered, or two minutes later".to_owned()),
            ),
            Plan::Run(commands) => self.run_plan(commands, (wanted, desired.booted), slots).await?,
        };
        let _ = self.progress.send(Progress::Cpus { count: cpus::count(&slots), problem });
        Ok(!waits)
    }

    /// Gives the commands, unless they were given for the same wish before.
    async fn run_plan(
        &mut self,
        commands: Vec<Command>,
        wish: (u32, bool),
        slots: Vec<CpuSlot>,
    ) -> Result<(Vec<CpuSlot>, Option<String>), Error> {
        if let Some((_, why)) = self.cpus.as_ref().filter(|(tried, _)| *tried == wish) {
            return Ok((slots, Some(not_followed(wish.0, why.as_deref()))));
        }
        let mut refusal = None;
        for command in commands {
            match self.client.execute(command).await {
                Err(Error::Refused { description, .. }) => {
                    refusal = Some(description);
                    break;
                }
                result => drop(result?),
            }
        }
        self.cpus = Some((wish, refusal.clone()));
        let slots = self.settled(wish.0).await?;
        let problem = (cpus::count(&slots) != wish.0).then(|| not_followed(wish.0, refusal.as_deref()));
        Ok((slots, problem))
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
}

fn not_followed(wanted: u32, refusal: Option<&str>) -> String {
    match refusal {
        Some(why) => format!("QEMU refuses {wanted} CPUs: {why}; a new start has them"),
        None => format!("the guest has not followed to {wanted} CPUs (yet); a new start has them"),
    }
}
