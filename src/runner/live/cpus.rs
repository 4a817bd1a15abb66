//! (client) Brings the number of CPUs to what it should be, once for each wish.

use crate::api::conditions::ConditionReason;
use crate::runner::desired::Desired;
use crate::runner::desired::cpus::{self, Plan};
use crate::runner::live::{Machine, Progress};
use crate::runner::problem::Problem;
use crate::runner::qmp::{Command, CpuSlot, Error};
use std::time::Duration;
use tokio::time::Instant;

/// How often, and in which steps, a guest that gives CPUs back is looked at before that is a problem.
const SETTLE_STEPS: u32 = 10;
const SETTLE_STEP: Duration = Duration::from_millis(200);
/// A guest that has run that long without an answer of its agent has none, and is asked for CPUs all the same.
const NO_AGENT: Duration = Duration::from_secs(120);
/// Pause before a guest is asked again for CPUs that it has kept.
const ASK_AGAIN: Duration = Duration::from_secs(600);

/// A number of CPUs that was asked for.
pub(super) struct Asked {
    wish: Wish,
    at: Instant,
    /// Why QEMU has refused.
    refusal: Option<String>,
}

/// What is asked for once: how many CPUs, whether the guest is up, and which of its boots that is.
type Wish = (u32, bool, u64);

impl Asked {
    /// Whether nothing but another wish is worth another try.
    fn is_settled(&self) -> bool {
        self.refusal.is_some()
    }

    fn holds(&self, wish: Wish) -> bool {
        self.wish == wish && (self.is_settled() || self.at.elapsed() < ASK_AGAIN)
    }
}

impl Machine {
    /// Follows the number of CPUs; says whether it need not be looked at again before something happens.
    pub(super) async fn follow_cpus(&mut self, desired: &Desired) -> Result<bool, Error> {
        let slots: Vec<CpuSlot> = self.client.query(Command::query_cpu_slots()).await?;
        let mut plan = cpus::plan(desired, &slots);
        if plan == Plan::WaitForGuest && self.waited_for_boot(desired.reboots) > NO_AGENT {
            plan = cpus::plan(
                &Desired {
                    booted: true,
                    ..desired.clone()
                },
                &slots,
            );
        }
        let waits = plan == Plan::WaitForGuest;
        if !waits && desired.booted || plan == Plan::Equal {
            self.waits_since = None;
        }
        let not_followed = |why: String| Some(Problem::new(ConditionReason::NotFollowed, why));
        let (slots, problem) = match plan {
            Plan::Equal => {
                self.cpus = None;
                (slots, None)
            }
            Plan::Impossible(why) => (slots, not_followed(why)),
            Plan::WaitForGuest => {
                let why =
                    "the guest is asked for CPUs when its agent has answered, or two minutes later";
                (slots, not_followed(why.to_owned()))
            }
            Plan::Run(commands) => self.run_plan(commands, desired, slots).await?,
        };
        let asks_again =
            problem.is_some() && self.cpus.as_ref().is_some_and(|asked| !asked.is_settled());
        let _ = self.progress.send(Progress::Cpus {
            count: cpus::count(&slots),
            problem,
        });
        Ok(!waits && !asks_again)
    }

    /// For how long an answer of the guest's agent has been waited for since that boot.
    fn waited_for_boot(&mut self, boot: u64) -> Duration {
        match self.waits_since {
            Some((since_boot, at)) if since_boot == boot => at.elapsed(),
            _ => self.waits_since.insert((boot, Instant::now())).1.elapsed(),
        }
    }

    /// Gives the commands, unless they were given for the same wish before.
    async fn run_plan(
        &mut self,
        commands: Vec<Command>,
        desired: &Desired,
        mut slots: Vec<CpuSlot>,
    ) -> Result<(Vec<CpuSlot>, Option<Problem>), Error> {
        let wanted = desired.live.cpus;
        let wish = (wanted, desired.booted, desired.reboots);
        if !self.cpus.as_ref().is_some_and(|asked| asked.holds(wish)) {
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
            self.cpus = Some(Asked {
                wish,
                at: Instant::now(),
                refusal,
            });
            slots = self.settled(wanted).await?;
        }
        let refusal = self
            .cpus
            .as_ref()
            .and_then(|asked| asked.refusal.as_deref());
        let problem = (cpus::count(&slots) != wanted).then(|| problem(desired, refusal, &slots));
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

fn problem(desired: &Desired, refusal_of_qemu: Option<&str>, slots: &[CpuSlot]) -> Problem {
    let wanted = desired.live.cpus;
    if let Some(why) = refusal_of_qemu {
        return Problem::new(
            ConditionReason::NotFollowed,
            format!("QEMU refuses {wanted} CPUs: {why}; a new start has them"),
        );
    }
    let again = format!(
        "it is asked again when currentCpus changes, when it has booted anew, or after {} minutes; a new start of the VM \
         has {wanted} CPUs",
        ASK_AGAIN.as_secs() / 60
    );
    match cpus::refusals(desired, slots).as_slice() {
        [] => Problem::new(
            ConditionReason::NotFollowed,
            format!("the guest has not answered the request for {wanted} CPUs (yet); {again}"),
        ),
        kept => Problem::new(
            ConditionReason::RefusedByGuest,
            format!("the guest keeps {}; {again}", kept.join(", and ")),
        ),
    }
}
