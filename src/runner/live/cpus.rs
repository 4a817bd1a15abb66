//! (client) Changes the number of CPUs, once for each target.

use crate::api::vm::conditions::ConditionReason;
use crate::runner::desired::DesiredState;
use crate::runner::desired::cpus::{self, CpuPlan};
use crate::runner::failure::Problem;
use crate::runner::live::{LiveUpdater, Progress};
use crate::runner::qmp::{ADD_CPU, Command, CpuSlot, Error};
use std::time::Duration;
use tokio::time::Instant;

/// Number of checks, and the delay between them, before a CPU that the guest has not released is a
/// problem.
const SETTLE_POLLS: u32 = 10;
const SETTLE_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time after which a guest without an answer of its agent is treated as booted. Guests without an
/// agent can release CPUs too.
const AGENT_WAIT_MAX: Duration = Duration::from_secs(120);
/// Delay before a guest that has not released CPUs gets the request again.
const GUEST_RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// A request for a number of CPUs.
pub(super) struct CpuRequest {
    target: CpuTarget,
    at: Instant,
    /// QEMU's error message, if it has rejected the request.
    rejection: Option<String>,
}

/// The number of CPUs, whether the guest has booted, and the number of that boot. Each combination
/// is requested once.
type CpuTarget = (u32, bool, u64);

impl CpuRequest {
    /// Whether the request is final: QEMU would reject it again.
    fn is_settled(&self) -> bool {
        self.rejection.is_some()
    }

    fn covers(&self, target: CpuTarget) -> bool {
        self.target == target && (self.is_settled() || self.at.elapsed() < GUEST_RETRY_INTERVAL)
    }
}

impl LiveUpdater {
    /// Applies the number of CPUs. Returns whether no further check is needed before the next
    /// event.
    pub(super) async fn follow_cpus(&mut self, desired: &DesiredState) -> Result<bool, Error> {
        let slots: Vec<CpuSlot> = self.client.query(Command::query_cpu_slots()).await?;
        let mut plan = cpus::plan(desired, &slots);
        if plan == CpuPlan::WaitForGuest && self.time_since_boot(desired.reboots) > AGENT_WAIT_MAX {
            plan = cpus::plan(
                &DesiredState {
                    booted: true,
                    ..desired.clone()
                },
                &slots,
            );
        }
        if let CpuPlan::Run(commands) = &plan
            && let Some(why) = self.addition_limit(commands, slots.len())
        {
            plan = CpuPlan::Impossible(why);
        }
        let waits = plan == CpuPlan::WaitForGuest;
        if !waits && desired.booted || plan == CpuPlan::Equal {
            self.waits_since = None;
        }
        let not_followed = |why: String| Some(Problem::new(ConditionReason::NotFollowed, why));
        let (slots, problem) = match plan {
            CpuPlan::Equal => {
                self.cpus = None;
                (slots, None)
            }
            CpuPlan::Impossible(why) => (slots, not_followed(why)),
            CpuPlan::WaitForGuest => {
                let why = "the guest may still be booting; the runner waits up to two minutes for the guest agent, then removes CPUs";
                (slots, not_followed(why.to_owned()))
            }
            CpuPlan::Run(commands) => self.run_plan(commands, desired, slots).await?,
        };
        let repeats = problem.is_some()
            && self
                .cpus
                .as_ref()
                .is_some_and(|requested| !requested.is_settled());
        let _ = self.progress.send(Progress::Cpus {
            count: cpus::count(&slots),
            problem,
        });
        Ok(!waits && !repeats)
    }

    /// The reason why an emulating QEMU cannot carry out the commands. It has a context for each of the possible CPUs.
    /// Each added CPU takes one, and a removed CPU does not return it. One CPU too many aborts QEMU
    /// (`tcg_register_thread`).
    fn addition_limit(&self, commands: &[Command], maximum: usize) -> Option<String> {
        let additions = commands.iter().filter(|it| it.name == ADD_CPU).count();
        let limit = maximum.saturating_sub(1);
        let is_beyond = self.emulated && additions > 0 && self.cpu_additions + additions > limit;
        is_beyond.then(|| {
            format!(
                "QEMU can add at most {limit} CPUs to an emulated VM per start, and has already added {}; restart the VM to get \
                 more CPUs",
                self.cpu_additions
            )
        })
    }

    /// The time since which the runner waits for the guest agent of that boot.
    fn time_since_boot(&mut self, boot: u64) -> Duration {
        match self.waits_since {
            Some((since_boot, at)) if since_boot == boot => at.elapsed(),
            _ => self.waits_since.insert((boot, Instant::now())).1.elapsed(),
        }
    }

    /// Runs the commands, unless they were run for the same target before.
    async fn run_plan(
        &mut self,
        commands: Vec<Command>,
        desired: &DesiredState,
        mut slots: Vec<CpuSlot>,
    ) -> Result<(Vec<CpuSlot>, Option<Problem>), Error> {
        let wanted = desired.live.cpus;
        let target = (wanted, desired.booted, desired.reboots);
        if !self
            .cpus
            .as_ref()
            .is_some_and(|requested| requested.covers(target))
        {
            let mut rejection = None;
            for command in commands {
                let adds = command.name == ADD_CPU;
                match self.client.execute(command).await {
                    Err(Error::Rejected { description, .. }) => {
                        rejection = Some(description);
                        break;
                    }
                    result => {
                        // QEMU may carry out an unanswered command later.
                        self.cpu_additions += usize::from(adds);
                        drop(result?);
                    }
                }
            }
            self.cpus = Some(CpuRequest {
                target,
                at: Instant::now(),
                rejection,
            });
            slots = self.wait_for_release(wanted).await?;
        }
        let rejection = self
            .cpus
            .as_ref()
            .and_then(|requested| requested.rejection.as_deref());
        let problem = (cpus::count(&slots) != wanted).then(|| problem(desired, rejection, &slots));
        Ok((slots, problem))
    }

    /// The CPU slots after the guest has had time to release CPUs, or as soon as the number is
    /// reached.
    async fn wait_for_release(&self, wanted: u32) -> Result<Vec<CpuSlot>, Error> {
        for _ in 0..SETTLE_POLLS {
            let slots: Vec<CpuSlot> = self.client.query(Command::query_cpu_slots()).await?;
            if cpus::count(&slots) <= wanted {
                return Ok(slots);
            }
            tokio::time::sleep(SETTLE_POLL_INTERVAL).await;
        }
        self.client.query(Command::query_cpu_slots()).await
    }
}

fn problem(desired: &DesiredState, qemu_rejection: Option<&str>, slots: &[CpuSlot]) -> Problem {
    let wanted = desired.live.cpus;
    if let Some(why) = qemu_rejection {
        return Problem::new(
            ConditionReason::NotFollowed,
            format!(
                "QEMU cannot change the number of CPUs to {wanted}: {why}; restart the VM to change the number"
            ),
        );
    }
    let retry_note = format!(
        "The runner repeats the request after {} minutes, a reboot of the guest, or a change of spec.vm.currentCpus. To get \
         {wanted} CPUs now, restart the VM (spec.vm.restartRequest)",
        GUEST_RETRY_INTERVAL.as_secs() / 60
    );
    match cpus::rejected_by_guest(desired, slots).as_slice() {
        [] => Problem::new(
            ConditionReason::NotFollowed,
            format!("the guest has not reacted to the request for {wanted} CPUs yet. {retry_note}"),
        ),
        kept => Problem::new(
            ConditionReason::RefusedByGuest,
            format!(
                "the guest has not released {}. {retry_note}",
                kept.join(", and ")
            ),
        ),
    }
}
